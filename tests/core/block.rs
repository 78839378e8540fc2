//! Weights that are moved into a single block of memory.

use mlx_primitives::internals::{Block, LINE};
use mlx_primitives::memory::LARGE_PAGE;
use mlx_primitives::{Array, Dtype, Result};

use crate::support::Checked;

fn numbers(count: i32) -> Result<Array> {
    let values: Vec<f32> = (0..count).map(|i| i as f32 - 7.5).collect();
    Array::from_slice(&values, [count])
}

#[test]
fn placed_arrays_are_equal_in_separate_lines() -> Checked {
    let square = numbers(1000 * 6)?.reshape([1000, 6])?;
    let arrays = [
        square.transpose([1, 0])?,
        numbers(34)?.astype(Dtype::Bfloat16)?,
        numbers(20_000)?.i(3..11)?,
        square.clone(),
    ];
    arrays.iter().try_for_each(Array::eval)?;
    let mut block = Block::with_room_for(Block::bytes_of(&arrays))?.expect("room");
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let placed: Vec<Array> =
        arrays.iter().map(|array| block.place(array)).collect::<Result<_>>()?;
    for (array, placed) in arrays.iter().zip(&placed) {
        let (start, end) = (placed.address()?, placed.address()? + placed.nbytes());
        if array.nbytes().is_multiple_of(8) {
            assert!(start.is_multiple_of(LINE), "{start:x}");
            assert!(taken.iter().all(|&(from, to)| end <= from || to <= start));
            taken.push((start, end));
        }
    }
    // 34 float16 numbers do not fill whole 8-byte words, so `place` does not move their array.
    assert_eq!(taken.len(), 3);
    drop(block);
    for (array, placed) in arrays.iter().zip(placed) {
        assert_eq!(array.shape(), placed.shape());
        let floats = |array: &Array| array.astype(Dtype::Float32)?.to_vec::<f32>();
        assert_eq!(floats(array)?, floats(&placed)?);
    }
    Ok(())
}

#[test]
fn arrays_without_room_stay_in_place() -> Checked {
    let (small, large) = (numbers(16)?, numbers(4096)?);
    small.eval()?;
    large.eval()?;
    let mut block = Block::with_room_for(Block::bytes_of([&small]))?.expect("room");
    assert_eq!(block.place(&large)?.address()?, large.address()?);
    assert_ne!(block.place(&small)?.address()?, small.address()?);
    let empty = Array::zeros::<f32>(&[0, 3])?;
    assert_eq!(block.place(&empty)?.shape(), [0, 3]);
    Ok(())
}

#[test]
fn large_blocks_begin_with_a_large_page() -> Checked {
    let array = numbers(600_000)?;
    array.eval()?;
    let bytes = Block::bytes_of([&array]);
    assert_eq!(bytes, 2_400_000);
    let mut block = Block::with_room_for(2 * bytes)?.expect("room");
    let [first, second] = [block.place(&array)?, block.place(&array)?];
    let page = if cfg!(target_os = "linux") { LARGE_PAGE } else { LINE };
    assert!(first.address()?.is_multiple_of(page));
    assert_eq!(second.address()?, first.address()? + bytes);
    assert_eq!(second.to_vec::<f32>()?, array.to_vec::<f32>()?);
    // On Linux, the size of the block is rounded up to large pages, so the rest of the last page is
    // free. On other systems, no room is left.
    let left = (2 * bytes).next_multiple_of(page) - 2 * bytes;
    assert!(block.has_room_for(left) && !block.has_room_for(left + LINE + page));
    Ok(())
}
