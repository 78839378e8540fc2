use super::Array;
use super::bridge::ffi as io;
use super::stored::Stored;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;
use crate::memory;
use mlx_primitives_kernels as cpu;

/// The bytes of a cache line. Arrays in a block begin at a cache line, so that no vector load of
/// weights needs two lines.
pub const LINE: usize = 64;
/// The unit of the size of a block and of the offsets in it, in bytes.
const WORD: usize = size_of::<u64>();

/// One allocation that holds several arrays, one after the other. On Linux, large pages hold all
/// arrays of a block of at least 2 MB: the first array begins at the bound of a large page. With
/// small pages at both ends, which held 6 % of the 4-bit weights, two threads decoded 7 % slower
/// and one thread 14 %.
pub struct Block {
    words: Array,
    start: usize,
    bytes: usize,
    used: usize,
}

impl Block {
    /// The number of bytes that these arrays take in a block.
    pub fn bytes_of<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> usize {
        arrays.into_iter().map(|array| array.nbytes().next_multiple_of(LINE)).sum()
    }

    /// An empty block with room for this number of bytes, or `None` if it would have more than
    /// `i32::MAX` words.
    ///
    /// # Errors
    ///
    /// Returns an error if the system refuses the memory.
    pub fn with_room_for(bytes: usize) -> Result<Option<Self>> {
        let large = cfg!(target_os = "linux") && bytes >= memory::LARGE_PAGE;
        let page = if large { memory::LARGE_PAGE } else { LINE };
        let bytes = page + bytes.next_multiple_of(page);
        if bytes / WORD > i32::MAX as usize {
            return Ok(None);
        }
        let words = Array::from_bridge(ffi::block(bytes))?;
        let start = words.address()?;
        memory::advise_large_pages(start, bytes);
        Ok(Some(Self { words, start, bytes, used: start.next_multiple_of(page) - start }))
    }

    /// Whether the block has room for this number of bytes.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= self.bytes - self.used
    }

    /// Copies the arrays into the next free places, and returns views of these places. Arrays that
    /// have not been read from their file yet are read directly into their places, and stay unread
    /// themselves. Returns a contiguous array outside the block for an array that is empty, whose
    /// size is not a multiple of 8 bytes, or for which the block has no room.
    ///
    /// # Errors
    ///
    /// Returns an error if an array cannot be evaluated, or if MLX copies instead of making a view.
    pub fn place(&mut self, arrays: &[&Array]) -> Result<Vec<Array>> {
        let (mut placed, mut waiting, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for array in arrays {
            let (bytes, offset) = (array.nbytes(), self.used);
            let end = offset + bytes;
            if bytes == 0 || bytes % WORD != 0 || end > self.bytes {
                placed.push(array.contiguous()?);
                continue;
            }
            let to = std::ptr::with_exposed_provenance_mut(self.start + offset);
            if io::is_waiting(array.raw()) {
                waiting.push(io::stored_of(array.raw())?);
                places.push((to, bytes));
            } else {
                let array = array.contiguous()?;
                let from = std::ptr::with_exposed_provenance(array.address()?);
                // SAFETY: the array's bytes lie at its address and live until this scope ends; the
                // block's memory belongs to no array yet.
                unsafe { cpu::parallel_copy(from, to, bytes) };
            }
            self.used = (self.start + end).next_multiple_of(LINE) - self.start;
            let (words, dtype) = (self.words.raw(), array.dtype().into());
            let view = Array::from_bridge(ffi::within(words, offset, array.shape(), dtype))?;
            if view.address()? != self.start + offset {
                return Err(Error::argument("block", format_args!("a view, got a copy")));
            }
            placed.push(view);
        }
        let waiting: Vec<&Stored> = waiting.iter().map(Box::as_ref).collect();
        let mut rooms = Vec::new();
        for (to, bytes) in places {
            // SAFETY: the places are apart and within the block. Their views were just made, and
            // nobody has read their elements yet.
            rooms.push(unsafe { std::slice::from_raw_parts_mut(to, bytes) });
        }
        Stored::read_all(&waiting, &mut rooms)?;
        Ok(placed)
    }
}
