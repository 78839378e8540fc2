//! Products of several rows of x in f32 lanes: the weights of a chunk are decoded once for all rows
//! of a band, near the level-one cache. Every product has the order of [`Decode`](super::dot).

use std::marker::PhantomData;
use std::ops::Range;

use super::columns::{BAND, Operands};
use super::dot::{Decode, lane_groups};
use super::format::{Format, load_first};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The most rows of weights that are multiplied together.
const TOGETHER: usize = 3;
/// Floats from the sums of one row of weights to the next.
const PITCH: usize = BAND * LANES;

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub(super) struct Block<'a, T, F> {
    pub operands: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// A row of sixteen columns for each row of the band.
    pub to: *mut [f32; LANES],
    pub types: PhantomData<(T, F)>,
}

/// The state of a block: a vector for each row of weights and row of x.
struct State {
    sums: *mut f32,
    biases: *mut f32,
}

impl<T: Float, F: Format> Kernel for Block<'_, T, F> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { operands, count, ref band, to, .. } = self;
        let (mut sums, mut biases) =
            (Lines::<{ LANES * PITCH }>::uninit(), Lines::<{ LANES * PITCH }>::uninit());
        let state = State { sums: sums.as_mut_ptr(), biases: biases.as_mut_ptr() };
        let mut scales = Lines::<{ LANES * LANES }>::uninit();
        let scales = scales.as_mut_ptr();
        let groups = operands.axis / operands.group;
        let shift = (operands.group / F::PER_LANE).trailing_zeros();
        let lane_groups = lane_groups::<V>(shift);
        let mut chunk = 0;
        // SAFETY: the caller's contract; the state has room for sixteen rows of weights.
        unsafe {
            for column in 0..LANES {
                let bytes = band.len() * LANES;
                std::ptr::write_bytes(state.sums.add(column * PITCH), 0, bytes);
                std::ptr::write_bytes(state.biases.add(column * PITCH), 0, bytes);
            }
            for at in (0..groups).step_by(LANES) {
                let of_groups = LANES.min(groups - at);
                for column in 0..count {
                    let row = operands.below::<Decode<T, F>>(column);
                    row.prefetch_scales::<Decode<T, F>>(at);
                    F::scales::<V, T>(row.scales, at, of_groups).store(scales.add(column * LANES));
                    if F::AFFINE {
                        let bias =
                            load_first::<V, T>(row.biases.cast::<T>().add(at), of_groups);
                        for (i, m) in band.clone().enumerate() {
                            let to = state.biases.add(column * PITCH + i * LANES);
                            let of_x = V::load(operands.prepared.sums(m).add(at));
                            bias.mul_add(of_x, V::load(to)).store(to);
                        }
                    }
                }
                let lanes = of_groups << shift;
                for lane in (0..lanes).step_by(LANES) {
                    let group = V::splat_int((lane >> shift) as i32);
                    let place = V::add_int(lane_groups, group);
                    let part = (chunk, LANES.min(lanes - lane));
                    let mut column = 0;
                    while column < count {
                        let scales = (scales.add(column * LANES), place);
                        // As many as leave room for their sums in registers.
                        column += match count - column {
                            3.. if V::ONE_REGISTER => {
                                self.columns::<V, 3>(column, part, scales, state.sums)
                            }
                            2.. => self.columns::<V, 2>(column, part, scales, state.sums),
                            _ => self.columns::<V, 1>(column, part, scales, state.sums),
                        };
                    }
                    chunk += 1;
                }
            }
            for row in 0..band.len() {
                let mut all = [V::splat(0.0); LANES];
                for (column, all) in all.iter_mut().enumerate().take(count) {
                    let at = column * PITCH + row * LANES;
                    *all = V::load(state.sums.add(at)) + V::load(state.biases.add(at));
                }
                V::reduce_add_each(all).store(to.add(row).cast());
            }
        }
    }
}

impl<T: Float, F: Format> Block<'_, T, F> {
    /// Adds the products of a chunk of `C` rows of weights from `column` on, of which `lanes` lanes
    /// exist; returns `C`.
    #[inline(always)]
    unsafe fn columns<V: F32x16, const C: usize>(
        &self,
        column: usize,
        (chunk, lanes): (usize, usize),
        (scales, place): (*const f32, V::Int),
        sums: *mut f32,
    ) -> usize {
        const { assert!(F::PER_LANE <= 16) };
        let Self { operands, band, .. } = self;
        let mut decoded = Lines::<{ TOGETHER * 16 * LANES }>::uninit();
        let decoded = decoded.as_mut_ptr();
        let mut scale = [V::splat(0.0); C];
        let row_bytes = operands.axis * F::BITS as usize / 8;
        // SAFETY: the caller's contract.
        unsafe {
            for (c, scale) in scale.iter_mut().enumerate() {
                let from = operands.packed.wrapping_add((column + c) * row_bytes);
                let from = from.wrapping_add(chunk * F::CHUNK_BYTES);
                // The same chunk of a row in the next block.
                prefetch_far(from.wrapping_add(LANES * row_bytes), F::CHUNK_BYTES);
                let mut weights = F::load::<V>(from, lanes);
                for position in 0..F::PER_LANE {
                    F::lowest::<V>(weights).store(decoded.add((position * C + c) * LANES));
                    weights = F::rest::<V>(weights);
                }
                *scale = V::load(scales.add(c * LANES)).permute(place);
            }
            let sums = sums.add(column * PITCH);
            let mut row = 0;
            while row < band.len() {
                let of_x = Rows { operands, first: band.start + row, at: chunk * F::CHUNK };
                let to = sums.add(row * LANES);
                row += match band.len() - row {
                    4.. if V::ONE_REGISTER => rows::<V, F, C, 4>(&of_x, decoded, scale, to),
                    2.. => rows::<V, F, C, 2>(&of_x, decoded, scale, to),
                    _ => rows::<V, F, C, 1>(&of_x, decoded, scale, to),
                };
            }
        }
        C
    }
}

/// Rows of x from `first` on, from element `at` on.
struct Rows<'a, 'b> {
    operands: &'a Operands<'b>,
    first: usize,
    at: usize,
}

/// Adds the products of a decoded chunk of `C` rows of weights with `R` rows of x; returns `R`.
#[inline(always)]
unsafe fn rows<V: F32x16, F: Format, const C: usize, const R: usize>(
    rows: &Rows,
    decoded: *const f32,
    scale: [V; C],
    to: *mut f32,
) -> usize {
    let mut x = [std::ptr::null::<f32>(); R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = rows.operands.prepared.row::<f32>(rows.first + r).wrapping_add(rows.at);
    }
    let mut sums = [[V::splat(0.0); R]; C];
    // SAFETY: the caller's contract; prepared rows cover whole chunks.
    unsafe {
        for position in 0..F::PER_LANE {
            let mut weights = [V::splat(0.0); C];
            for (c, weights) in weights.iter_mut().enumerate() {
                *weights = V::load(decoded.add((position * C + c) * LANES));
            }
            for (r, x) in x.iter().enumerate() {
                let of_x = V::load(x.add(position * LANES));
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    sums[r] = weights.mul_add(of_x, sums[r]);
                }
            }
        }
        for (c, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                let to = to.add(c * PITCH + r * LANES);
                sum.mul_add(scale[c], V::load(to)).store(to);
            }
        }
    }
    R
}
