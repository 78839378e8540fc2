//! Products of a chunk (sixteen lanes of packed weights) with more rows of x than two tiles of
//! [`Chunk`] have. The weights of the chunk are decoded once for all rows, into a buffer in the
//! level-one cache.

use super::chunk::{Chunk, Chunks, Part};
use crate::linear::arithmetic::Arithmetic;
use crate::simd::{F32x16, Kernel, LANES, Lines, Register};

/// The number of rows of weights that are decoded together.
pub const COLUMNS: usize = 4;
/// The largest number of vectors in a decoded chunk.
const MOST_STEPS: usize = 16;

/// Does the work of [`Chunk`], with the same sums.
pub struct Decoded<D>(pub Chunk<D>);

impl<D: Chunks> Kernel for Decoded<D> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        const { assert!(D::STEPS <= MOST_STEPS) };
        let Self(chunk) = &self;
        let mut decoded = Lines::<{ MOST_STEPS * COLUMNS * LANES }>::uninit();
        let decoded = decoded.as_mut_ptr();
        let most = Part::<V, D>::ROWS;
        let tiles = chunk.rows.div_ceil(most);
        let (least, more) = (chunk.rows / tiles, chunk.rows % tiles);
        for column in (0..chunk.count).step_by(COLUMNS) {
            // SAFETY: the chunk's contract; the last row of weights replaces rows beyond it.
            unsafe {
                for c in 0..COLUMNS {
                    let below = (column + c).min(chunk.count - 1) * chunk.row_bytes;
                    let packed = chunk.packed.wrapping_add(below);
                    let mut lanes = D::load::<V>(packed, chunk.lanes);
                    for step in 0..D::STEPS {
                        let to = decoded.add((step * COLUMNS + c) * LANES);
                        D::weights::<V>(lanes, step).store(to);
                        lanes = D::rest::<V>(lanes);
                    }
                }
                let mut row = 0;
                for tile in 0..tiles {
                    row += match least + usize::from(tile < more) {
                        3 => self.tile::<V, 3>(decoded, column, row),
                        2 => self.tile::<V, 2>(decoded, column, row),
                        _ => self.tile::<V, 1>(decoded, column, row),
                    };
                }
            }
        }
    }
}

impl<D: Chunks> Decoded<D> {
    /// Multiplies [`COLUMNS`] decoded rows of weights with `R` rows of x, and returns `R`.
    #[inline(always)]
    unsafe fn tile<V: F32x16, const R: usize>(
        &self,
        decoded: *const f32,
        column: usize,
        row: usize,
    ) -> usize {
        let Self(chunk) = self;
        for part in (0..LANES).step_by(Part::<V, D>::LANES) {
            let mut sums = [[Part::<V, D>::zero(); R]; COLUMNS];
            let mut x = chunk.x.wrapping_add(row * LANES + part);
            // SAFETY: the chunk's contract.
            unsafe {
                for step in 0..D::STEPS {
                    let mut of_x = [Part::<V, D>::zero(); R];
                    for (r, of_x) in of_x.iter_mut().enumerate() {
                        *of_x = Register::read(x.add(r * LANES));
                    }
                    for (c, sums) in sums.iter_mut().enumerate() {
                        let w = Register::read(decoded.add((step * COLUMNS + c) * LANES + part));
                        for (sum, x) in sums.iter_mut().zip(of_x) {
                            *sum = D::Arithmetic::add_product::<V>(*sum, w, x);
                        }
                    }
                    x = x.wrapping_add(chunk.apart);
                }
                for (c, sums) in sums.into_iter().enumerate() {
                    chunk.add::<V, R>(sums, [column + c, row], part);
                }
            }
        }
        R
    }
}
