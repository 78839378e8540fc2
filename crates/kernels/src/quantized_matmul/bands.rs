//! Products of several rows of x: the weights of a chunk are decoded once for all rows
//! of a band, near the level-one cache. Every product has the order of [`Dots::dot`].

use std::marker::PhantomData;
use std::ops::Range;

use super::columns::{BAND, Dots, Operands};
use super::format::Format;
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch, prefetch_far};

/// The most rows of weights that are multiplied together.
const TOGETHER: usize = 3;
/// Floats from the sums of one row of weights to the next.
const PITCH: usize = BAND * LANES;

/// Weights that are decoded a chunk at a time.
pub(super) trait Chunks: Dots {
    type Element: Float;
    type Format: Format;
    /// Vectors of a decoded chunk, at most sixteen.
    const STEPS: usize;
    /// Vectors of x for a chunk, of which each is multiplied with as many of the weights'.
    const VECTORS: usize;

    /// Writes the vectors of a chunk of which `lanes` lanes exist, `C` vectors apart.
    ///
    /// # Safety
    /// `from` is readable for the lanes, `to` has room.
    unsafe fn decode<V: F32x16, const C: usize>(from: *const u8, lanes: usize, to: *mut f32);

    /// Adds the products of a vector of weights and one of x.
    fn step<V: F32x16>(sum: V, weights: V, x: V) -> V;
}

/// The group of each of sixteen lanes, counted from the first group of the chunk, where `2^shift`
/// lanes are a group.
#[inline(always)]
pub(super) fn lane_groups<V: F32x16>(shift: u32) -> V::Int {
    let groups: [u32; LANES] = std::array::from_fn(|lane| lane as u32 >> shift);
    // SAFETY: sixteen words; `load` takes any bits as they are.
    unsafe { V::load(groups.as_ptr().cast()).to_bits() }
}

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub(super) struct Block<'a, D> {
    pub operands: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// A row of sixteen columns for each row of the band.
    pub to: *mut [f32; LANES],
    pub dots: PhantomData<D>,
}

/// The state of a block: a vector for each row of weights and row of x.
struct State {
    sums: *mut f32,
    biases: *mut f32,
}

impl<D: Chunks> Kernel for Block<'_, D> {
    const BF16: bool = D::Element::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { operands, count, ref band, to, .. } = self;
        let (mut sums, mut biases) =
            (Lines::<{ LANES * PITCH }>::uninit(), Lines::<{ LANES * PITCH }>::uninit());
        let state = State { sums: sums.as_mut_ptr(), biases: biases.as_mut_ptr() };
        let mut scales = Lines::<{ LANES * LANES }>::uninit();
        let scales = scales.as_mut_ptr();
        let groups = operands.axis / operands.group;
        let shift = (operands.group / D::Format::PER_LANE).trailing_zeros();
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
                    let row = operands.below::<D>(column);
                    row.prefetch_scales::<D>(at);
                    let of_row = D::Format::scales::<V, D::Element>(row.scales, at, of_groups);
                    of_row.store(scales.add(column * LANES));
                    if D::Format::AFFINE {
                        let biases = row.biases.cast::<D::Element>().add(at);
                        let bias = D::Element::load_block::<V>(biases, of_groups);
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
                        let scales = (scales.add(column * LANES).cast_const(), place);
                        // Registers have room for their sums.
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

impl<D: Chunks> Block<'_, D> {
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
        const { assert!(D::STEPS <= 16 && D::STEPS.is_multiple_of(D::VECTORS)) };
        let Self { operands, band, .. } = self;
        let mut decoded = Lines::<{ TOGETHER * 16 * LANES }>::uninit();
        let decoded = decoded.as_mut_ptr();
        let mut scale = [V::splat(0.0); C];
        let row_bytes = operands.axis * D::BITS / 8;
        // SAFETY: the caller's contract.
        unsafe {
            for (c, scale) in scale.iter_mut().enumerate() {
                let from = operands.packed.wrapping_add((column + c) * row_bytes);
                let from = from.wrapping_add(chunk * D::Format::CHUNK_BYTES);
                // The next chunk of this row, and the same chunk of a row in the next block.
                let bytes = D::Format::CHUNK_BYTES;
                prefetch(from.wrapping_add(bytes), bytes);
                prefetch_far(from.wrapping_add(LANES * row_bytes), bytes);
                D::decode::<V, C>(from, lanes, decoded.add(c * LANES));
                *scale = V::load(scales.add(c * LANES)).permute(place);
            }
            let sums = sums.add(column * PITCH);
            let mut row = 0;
            while row < band.len() {
                let of_x =
                    Rows { operands, first: band.start + row, at: chunk * D::VECTORS * LANES };
                let to = sums.add(row * LANES);
                row += match band.len() - row {
                    4.. if V::ONE_REGISTER => rows::<V, D, C, 4>(&of_x, decoded, scale, to),
                    2.. => rows::<V, D, C, 2>(&of_x, decoded, scale, to),
                    _ => rows::<V, D, C, 1>(&of_x, decoded, scale, to),
                };
            }
        }
        C
    }
}

/// Rows of x from `first` on, from word `at` on.
struct Rows<'a, 'b> {
    operands: &'a Operands<'b>,
    first: usize,
    at: usize,
}

/// Adds the products of a decoded chunk of `C` rows of weights with `R` rows of x; returns `R`.
#[inline(always)]
unsafe fn rows<V: F32x16, D: Chunks, const C: usize, const R: usize>(
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
        for step in 0..D::STEPS {
            let mut weights = [V::splat(0.0); C];
            for (c, weights) in weights.iter_mut().enumerate() {
                *weights = V::load(decoded.add((step * C + c) * LANES));
            }
            let vector = step / (D::STEPS / D::VECTORS);
            for (r, x) in x.iter().enumerate() {
                let of_x = V::load(x.add(vector * LANES));
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    sums[r] = D::step(sums[r], *weights, of_x);
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
