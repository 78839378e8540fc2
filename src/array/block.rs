use super::Array;
use crate::cpu;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;
use crate::memory;

/// A cache line: weights that begin at one are loaded without straddling two.
const LINE: usize = 64;
/// What a block is counted in.
const WORD: usize = size_of::<u64>();

/// Arrays one after the other in one piece of memory, on pages of 2 MB where the system has them.
pub(crate) struct Block {
    words: Array,
    start: usize,
    bytes: usize,
    used: usize,
}

impl Block {
    /// None where the arrays are too large for one.
    pub fn with_room_for<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Option<Self>> {
        let each = arrays.into_iter().map(|array| array.nbytes().next_multiple_of(LINE));
        let bytes = LINE + each.sum::<usize>();
        if bytes / WORD > i32::MAX as usize {
            return Ok(None);
        }
        let words = Array::from_bridge(ffi::block(bytes))?;
        let start = words.address()?;
        memory::advise_huge_pages(start, bytes);
        Ok(Some(Self { words, start, bytes, used: start.next_multiple_of(LINE) - start }))
    }

    /// The same array, in the next place; itself where its bytes are no whole words or have no room.
    pub fn place(&mut self, array: &Array) -> Result<Array> {
        let array = array.contiguous()?;
        let (from, bytes, offset) = (array.address()?, array.nbytes(), self.used);
        let end = offset + bytes;
        if bytes == 0 || bytes % WORD != 0 || end > self.bytes {
            return Ok(array);
        }
        let to = std::ptr::with_exposed_provenance_mut(self.start + offset);
        // SAFETY: the array's bytes lie at its address and live until the end of this function; the
        // block's own memory from `offset` to `end` belongs to no array yet.
        unsafe { cpu::parallel_copy(std::ptr::with_exposed_provenance(from), to, bytes) };
        self.used = end.next_multiple_of(LINE);
        let shape = array.shape();
        let placed =
            Array::from_bridge(ffi::within(self.words.raw(), offset, shape, array.dtype().into()))?;
        if placed.address()? != self.start + offset {
            return Err(Error::argument("block", format_args!("a view, got a copy")));
        }
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, LINE};
    use crate::array::Array;
    use crate::dtype::Dtype;

    type Checked = crate::error::Result<()>;

    fn numbers(count: i32) -> crate::error::Result<Array> {
        let values: Vec<f32> = (0..count).map(|i| i as f32 - 7.5).collect();
        Array::from_slice(&values, &[count])
    }

    #[test]
    fn placed_arrays_are_the_same_in_lines_of_their_own() -> Checked {
        let square = numbers(1000 * 6)?.reshape(&[1000, 6])?;
        let arrays = [
            square.transpose(&[1, 0])?,
            numbers(34)?.astype(Dtype::Bfloat16)?,
            numbers(20_000)?.slice(&[&(3..11)])?,
            square.clone(),
        ];
        arrays.iter().try_for_each(Array::eval)?;
        let mut block = Block::with_room_for(&arrays)?.expect("room");
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let placed: Vec<Array> =
            arrays.iter().map(|array| block.place(array)).collect::<crate::error::Result<_>>()?;
        for (array, placed) in arrays.iter().zip(&placed) {
            let (start, end) = (placed.address()?, placed.address()? + placed.nbytes());
            if array.nbytes().is_multiple_of(8) {
                assert!(start.is_multiple_of(LINE), "{start:x}");
                assert!(taken.iter().all(|&(from, to)| end <= from || to <= start));
                taken.push((start, end));
            }
        }
        // 34 halves are no whole words: that one stays where it was.
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
    fn what_has_no_room_stays_where_it_is() -> Checked {
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
}
