//! Blocks of rows, and the masks of their scores. The kernels for prompts and for the backward pass
//! process a block of rows at a time.

use super::{Attention, MASKED, Mask};
use crate::element::Float;
use crate::simd::LANES;

/// The number of rows in a block: six vectors, and a multiple of the number of rows in the tiles of
/// [`product`](super::product).
pub const ROWS: usize = 96;

/// A block of rows of one key/value head. A row is a query of one of the heads that share the
/// key/value head.
pub struct Block {
    pub batch: usize,
    pub kv_head: usize,
    pub first: usize,
    pub rows: usize,
    /// The number of rows, rounded up to a multiple of the vector length.
    pub lanes: usize,
}

impl Block {
    /// Returns block number `index` of a key/value head. `head` counts the key/value heads of all
    /// batch entries.
    pub fn new(call: &Attention, head: usize, index: usize) -> Self {
        let first = index * ROWS;
        let rows = ROWS.min(call.rows() - first);
        Self {
            batch: head / call.kv_heads,
            kv_head: head % call.kv_heads,
            first,
            rows,
            lanes: rows.next_multiple_of(LANES),
        }
    }

    /// Returns the query position of a row. A row past the last row has the position of the last
    /// row.
    fn query(&self, call: &Attention, row: usize) -> usize {
        (self.first + row.min(self.rows - 1)) / call.group()
    }

    /// Returns the range of keys that the block has to process. If a mask hides all these keys from
    /// a row, the block has to process all keys instead.
    pub fn span(&self, call: &Attention) -> (usize, usize) {
        call.span(self.query(call, 0), self.query(call, self.rows - 1))
    }

    /// Returns the batch entry, head and position of a row.
    pub fn place(&self, call: &Attention, row: usize) -> (usize, usize, usize) {
        let (head, query) = call.place(self.kv_head, self.first + row);
        (self.batch, head, query)
    }
}

impl Attention {
    /// Masks the scores of a block for the keys `first..first + count`. The scores are stored key
    /// by key.
    ///
    /// # Safety
    /// `scores` must hold `count * block.lanes` floats, and the mask must have the shape that the
    /// call requires.
    #[inline(always)]
    pub(super) unsafe fn mask_block<T: Float>(
        &self,
        scores: *mut f32,
        block: &Block,
        (first, count): (usize, usize),
    ) {
        let lanes = block.lanes;
        // SAFETY: the caller's contract.
        unsafe {
            if !matches!(self.mask, Mask::None) {
                for row in 0..block.rows {
                    let place = block.place(self, row);
                    self.mask_row::<T>(scores.add(row), place, (first, count), lanes);
                }
            }
            // The range of visible keys ends first for the first row, and begins last for the last
            // row.
            let (_, end) = self.visible(block.query(self, 0));
            let (start, _) = self.visible(block.query(self, block.rows - 1));
            if start <= first && first + count <= end {
                return;
            }
            let mut seen = [(0u32, 0u32); ROWS];
            for (row, seen) in seen.iter_mut().enumerate().take(lanes) {
                let (start, end) = self.visible(block.query(self, row));
                let clamp = |key: usize| key.clamp(first, first + count) - first;
                *seen = (clamp(start) as u32, clamp(end) as u32);
            }
            for key in 0..count {
                let scores = std::slice::from_raw_parts_mut(scores.add(key * lanes), lanes);
                for (score, (start, end)) in scores.iter_mut().zip(seen) {
                    let hidden = (key as u32) < start || (key as u32) >= end;
                    *score = if hidden { MASKED } else { *score };
                }
            }
        }
    }

    /// Returns whether a boolean mask, the causal rule or the window hides a key from a row.
    ///
    /// # Safety
    /// The mask must have the shape that the call requires.
    pub(super) unsafe fn hides(
        &self,
        (batch, head, query): (usize, usize, usize),
        key: usize,
    ) -> bool {
        let (start, end) = self.visible(query);
        let Mask::Bool(view) = &self.mask else { return key < start || key >= end };
        let row = view.at::<u8>(batch, head, query);
        // SAFETY: the caller's contract.
        let masked = unsafe { *row.wrapping_offset(key as isize * view.strides[3]) } == 0;
        masked || key < start || key >= end
    }
}
