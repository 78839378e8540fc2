//! The derivatives with respect to an additive mask. They equal the derivatives with respect to the
//! scores after the soft cap. A job stores them tile by tile.

use super::backward_plan::put;
use super::backward_rows::{Jobs, Tile};
use super::block::Block;
use crate::element::Float;
use crate::simd::{F32x16, LANES};

impl<T: Float> Jobs<'_, T> {
    /// Returns the address of the mask's derivatives for a row.
    fn of_mask(&self, block: &Block, row: usize) -> *mut T {
        let call = &self.call.forward;
        let (batch, head, query) = block.place(call, row);
        let at = ((batch * call.queries + query) * call.heads + head) * call.keys;
        self.call.dmask.cast::<T>().wrapping_add(at)
    }

    /// Sets the mask's derivatives to zero for the keys outside the span.
    pub(super) unsafe fn clear_mask(&self, block: &Block, (first, end): (usize, usize)) {
        let rows = if self.call.dmask.is_null() { 0 } else { block.rows };
        for row in 0..rows {
            let to = self.of_mask(block, row);
            // SAFETY: the caller keeps the contract, and the span is within the keys.
            unsafe {
                to.write_bytes(0, first);
                to.add(end).write_bytes(0, self.call.forward.keys - end);
            }
        }
    }

    /// Stores the derivatives with respect to the scores of a tile as derivatives of the mask.
    #[inline(always)]
    pub(super) unsafe fn store_mask<V: F32x16>(
        &self,
        block: &Block,
        Tile { first, count, .. }: Tile,
    ) {
        for lane in (0..block.rows).step_by(LANES) {
            for key in (0..count).step_by(LANES) {
                let keys = LANES.min(count - key);
                // SAFETY: the caller keeps the contract, and every address is within the job's
                // buffers.
                unsafe {
                    let mut square = [V::splat(0.0); LANES];
                    for (i, lanes) in square.iter_mut().enumerate().take(keys) {
                        let at = (key + i) * block.lanes + lane;
                        *lanes = V::load(self.space.of_scores.add(at));
                    }
                    let rows = V::transpose(square).into_iter().enumerate();
                    for (row, lanes) in rows.take(block.rows - lane) {
                        let to = self.of_mask(block, lane + row).add(first + key);
                        put::<V, T>(lanes, to, keys);
                    }
                }
            }
        }
    }
}
