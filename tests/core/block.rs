//! Weights that are moved into a single block of memory.

use std::fs;
use std::ops::Range;

use mlx_primitives::internals::{Block, LINE};
use mlx_primitives::io::stored::Stored;
use mlx_primitives::io::{KQuants, gguf_tensors, load_gguf};
use mlx_primitives::memory::LARGE_PAGE;
use mlx_primitives::{Array, Dtype, Result};
use tempfile::TempDir;

use crate::support::compare::assert_same;
use crate::support::gguf::header;
use crate::support::{Checked, message};

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
    let placed = block.place(&arrays.each_ref())?;
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
    let empty = Array::zeros::<f32>(&[0, 3])?;
    let placed = block.place(&[&large, &small, &empty])?;
    assert_eq!(placed[0].address()?, large.address()?);
    assert_ne!(placed[1].address()?, small.address()?);
    assert_eq!(placed[2].shape(), [0, 3]);
    Ok(())
}

#[test]
fn large_blocks_begin_with_a_large_page() -> Checked {
    let array = numbers(600_000)?;
    array.eval()?;
    let bytes = Block::bytes_of([&array]);
    assert_eq!(bytes, 2_400_000);
    let mut block = Block::with_room_for(2 * bytes)?.expect("room");
    let [first, second] = &block.place(&[&array, &array])?[..] else { panic!("two arrays") };
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

/// Arrays of packed weights are read block by block, all parts of a block at once, except parts of
/// different blocks and selected columns.
#[test]
fn parts_of_packed_weights_are_read_in_place() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("blocks.gguf");
    for (kind, block_bytes, weights, k_quants) in [
        (2, 18, 32, KQuants::Affine),
        (3, 20, 32, KQuants::Affine),
        (8, 34, 32, KQuants::Affine),
        (14, 210, 256, KQuants::Affine),
        (12, 144, 256, KQuants::Own),
    ] {
        // A part of the rows has several pieces for threads, of more blocks than are read at once.
        let (rows, blocks) = (600, 48 * 32 / weights);
        let data: Vec<u8> = (0..rows * blocks * block_bytes).map(|i| (i * 37 % 59) as u8).collect();
        let dims = vec![(blocks * weights) as u64, rows as u64];
        fs::write(&path, [header(3, 32, &[], &[("x.weight", dims, kind, 0)]), data].concat())?;
        let arrays = gguf_tensors(&path, k_quants)?.arrays;
        let names = ["x.weight", "x.scales", "x.biases"];
        let all: Vec<&Array> = names.iter().filter_map(|name| arrays.get(*name)).collect();
        let rows = |range: Range<i32>| -> Result<Vec<Array>> {
            all.iter().map(|array| Stored::part(array, 0, &range)).collect()
        };
        let columns = all.iter().map(|array| {
            let half = array.shape()[1] / 2;
            Stored::part(array, 1, &(half..2 * half))
        });
        let mut mixed = rows(50..500)?;
        mixed[1] = rows(100..550)?.swap_remove(1);
        let cases = [mixed, rows(100..550)?, columns.collect::<Result<_>>()?];
        for waiting in cases.iter().map(|case| case.iter().collect()).chain([all.clone()]) {
            let waiting: Vec<&Array> = waiting;
            let mut block = Block::with_room_for(Block::bytes_of(waiting.iter().copied()))?;
            let placed = block.as_mut().expect("room").place(&waiting)?;
            // `place` leaves the arrays themselves unread, so this reads each of them alone.
            for (placed, array) in placed.iter().zip(waiting) {
                let what = format!("type {kind}, {:?}", array.shape());
                match array.dtype() {
                    Dtype::Uint32 => {
                        assert_eq!(placed.to_vec::<u32>()?, array.to_vec::<u32>()?, "{what}");
                    }
                    _ => assert_same(placed, array, &what)?,
                }
            }
        }
    }
    Ok(())
}

/// The file is truncated after its header was checked.
#[test]
fn blocks_of_a_file_that_becomes_shorter_are_refused() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("shorter.gguf");
    let whole =
        [header(3, 32, &[], &[("x.weight", vec![32, 64], 8, 0)]), vec![0; 64 * 34]].concat();
    fs::write(&path, &whole)?;
    let arrays = load_gguf(&path)?.arrays;
    fs::File::options().write(true).open(&path)?.set_len(whole.len() as u64 - 1)?;
    let parts = ["x.weight", "x.scales", "x.biases"].map(|name| &arrays[name]);
    let mut block = Block::with_room_for(Block::bytes_of(parts))?.expect("room");
    let text = message(block.place(&parts));
    assert!(text.contains("shorter.gguf") && text.contains("x.weight"), "{text}");
    Ok(())
}
