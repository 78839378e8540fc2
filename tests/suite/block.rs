//! Weights that are moved into one piece of memory.

use mlx_primitives::internals::{Block, LINE};
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
    let mut block = Block::with_room_for(&arrays)?.expect("room");
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
    // 34 halves do not fill whole words, so that array stays in place.
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
    let mut block = Block::with_room_for([&small])?.expect("room");
    assert_eq!(block.place(&large)?.address()?, large.address()?);
    assert_ne!(block.place(&small)?.address()?, small.address()?);
    let empty = Array::zeros::<f32>(&[0, 3])?;
    assert_eq!(block.place(&empty)?.shape(), [0, 3]);
    Ok(())
}
