//! Dot products of one row of weights with a few rows of x, in f32 lanes on every instruction set.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::compiler_fence;

use super::bands::{Block, Chunks, lane_groups};
use super::columns::Dots;
use super::format::Format;
use super::operands::{Operands, prefetch_weights};
use crate::linear::arithmetic::InF32;
use crate::simd::{F32x16, LANES};

/// Decodes weights to f32 in registers.
pub(super) struct Decode<F>(PhantomData<F>);

impl<F: Format> Chunks for Decode<F> {
    type Format = F;
    type Arithmetic = InF32;
    const STEPS: usize = F::PER_LANE;
    const VECTORS: usize = F::PER_LANE;

    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const u8) -> V::Int {
        // SAFETY: the caller's contract.
        unsafe { F::load::<V>(from, LANES) }
    }

    #[inline(always)]
    fn weights<V: F32x16>(lanes: V::Int, step: usize) -> V {
        F::at::<V>(lanes, step)
    }

    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        F::rest::<V>(lanes)
    }
}

impl<F: Format> Dots for Decode<F> {
    const BITS: usize = F::BITS as usize;
    const AFFINE: bool = F::AFFINE;
    const BANDED: bool = true;

    #[inline(always)]
    unsafe fn many<V: F32x16>(
        operands: Operands,
        count: usize,
        band: Range<usize>,
        to: *mut [f32; LANES],
    ) -> bool {
        // SAFETY: the caller's contract.
        unsafe { Block::<Self>::run_if_banded::<V>(operands, count, band, to) }
    }

    #[inline(always)]
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M] {
        let mut sums = [V::splat(0.0); M];
        for (sum, m) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller's contract.
            [*sum] = unsafe { Self::rows::<V, 1>(row, m) };
        }
        sums
    }

    #[inline(always)]
    unsafe fn block<V: F32x16>(first: Operands, m: usize, count: usize) -> V {
        let mut sums = [V::splat(0.0); LANES];
        let mut column = 0;
        // SAFETY: the caller's contract; the condition allows pairs of these rows.
        unsafe {
            if const { V::IN_PLACE && F::AFFINE && matches!(F::BITS, 4 | 6 | 8) }
                && first.axis >= LONG
                && (Self::DIVIDES_ROWS || first.axis.is_multiple_of(LANES * first.group))
            {
                while column + 2 <= count {
                    let two = Self::rows::<V, 2>(first.below(column), m);
                    [sums[column], sums[column + 1]] = two;
                    column += 2;
                }
            }
            while column < count {
                [sums[column]] = Self::rows::<V, 1>(first.below(column), m);
                column += 1;
            }
        }
        V::reduce_add_each(sums)
    }
}

/// With AVX2, rows of at least this many weights of four, six or eight bits are multiplied two at a
/// time, so that two weights share each load of x. On a Zen 3, whose first-level cache of 32 KB has
/// no room for an x of 8192 floats and weights, such rows took 0.8 of the time (0.95 with six
/// bits). Rows of 4096 weights took as long (4 bits) or 0.96 of the time (8 bits) in pairs, and
/// rows of 2048 took longer.
const LONG: usize = 4096;

impl<F: Format> Decode<F> {
    /// Whether rows in pairs can have any number of groups. The groups beyond a multiple of sixteen
    /// are multiplied one row after the other. On a Zen 3, pairs of rows of 11008 weights of four
    /// bits take 0.77 of the time of single rows. Rows of six or eight bits would save nothing.
    const DIVIDES_ROWS: bool = F::BITS == 4;

    /// Multiplies `R` consecutive rows of weights, one or two, with row `m` of x.
    ///
    /// # Safety
    /// The contract of [`Dots::dot`] holds for each of the rows. If `R` is two, the rows have a
    /// multiple of sixteen groups, or [`DIVIDES_ROWS`](Self::DIVIDES_ROWS) is set.
    #[inline(always)]
    unsafe fn rows<V: F32x16, const R: usize>(first: Operands, m: usize) -> [V; R] {
        let groups = first.axis / first.group;
        // The code for two rows would be slower if it also took fewer groups than sixteen.
        let divides = const { R > 1 && Self::DIVIDES_ROWS };
        let sets = if divides { groups - groups % LANES } else { groups };
        // SAFETY: the caller's contract; `sets` is a multiple of sixteen if it divides the groups.
        let [mut sums, mut biases] =
            unsafe { Self::add::<V, R>(first, m, 0..sets, [[V::splat(0.0); R]; 2]) };
        if divides && sets < groups {
            for r in 0..R {
                let before = [[sums[r]], [biases[r]]];
                // SAFETY: the caller's contract; `sets` is a multiple of sixteen.
                let after = unsafe { Self::add::<V, 1>(first.below(r), m, sets..groups, before) };
                [[sums[r]], [biases[r]]] = after;
            }
        }
        for r in 0..R {
            sums[r] = sums[r] + biases[r];
        }
        sums
    }

    /// Adds the products and the biases of some groups to the sums of `R` consecutive rows.
    ///
    /// # Safety
    /// The contract of [`rows`](Self::rows). The groups begin at a multiple of sixteen, and if `R`
    /// is two, their number is a multiple of sixteen.
    #[inline(always)]
    unsafe fn add<V: F32x16, const R: usize>(
        first: Operands,
        m: usize,
        groups: Range<usize>,
        [mut sums, mut biases]: [[V; R]; 2],
    ) -> [[V; R]; 2] {
        let Operands { prepared, step, .. } = first;
        let start = groups.start * first.group;
        // The number of lanes of a group is a power of two, since group sizes are powers of two.
        let shift = (first.group / F::PER_LANE).trailing_zeros();
        let lane_groups = lane_groups::<V>(shift);
        let mut packed = [std::ptr::null(); R];
        let mut of_groups = [first.scales(<Self as Dots>::ELEMENT); R];
        for r in 0..R {
            let row = first.below(r);
            packed[r] = row.packed.wrapping_add(start * Self::BITS / 8);
            let scales = row.scales(<Self as Dots>::ELEMENT);
            of_groups[r] = scales.after(groups.start / LANES * step);
        }
        // Compute these addresses once here, since the compiler does not move the computation
        // across a prefetch.
        let (mut x, of_x) = (prepared.row::<f32>(m).wrapping_add(start), prepared.sums(m));
        // `load_each` reads eight scales from any group on.
        let mut in_memory = [[0.0; 2 * LANES]; R];
        let mut scales = [V::splat(0.0); R];
        for at in groups.clone().step_by(LANES) {
            let count = if const { R > 1 } { LANES } else { LANES.min(groups.end - at) };
            // SAFETY: the groups from `at` on and their weights belong to these rows; prepared rows
            // cover full chunks, and their sums cover full vectors.
            unsafe {
                for r in 0..R {
                    first.prefetch_scales(&of_groups[r]);
                    let [scale, bias] = first.load_scales::<V, F>(&of_groups[r], count);
                    of_groups[r] = of_groups[r].after(step);
                    scales[r] = scale;
                    if V::IN_PLACE {
                        scale.store(in_memory[r].as_mut_ptr());
                    }
                    if F::AFFINE {
                        biases[r] = bias.mul_add(V::load(of_x.add(at)), biases[r]);
                    }
                }
                let lanes = count << shift;
                let mut lane = 0;
                while const { V::IN_PLACE && R == 1 && F::BITS < 8 } && lane + 2 * LANES <= lanes {
                    for (c, chunk) in two_chunks::<V, F>(packed[0], x).into_iter().enumerate() {
                        let group = (lane + c * LANES) >> shift;
                        let scale = V::load_each(in_memory[0].as_ptr().add(group), shift);
                        sums[0] = chunk.mul_add(scale, sums[0]);
                    }
                    packed[0] = packed[0].wrapping_add(2 * F::CHUNK_BYTES);
                    x = x.add(2 * F::CHUNK);
                    lane += 2 * LANES;
                }
                while lane < lanes {
                    let mut weights = [V::splat_int(0); R];
                    let mut chunk = [V::splat(0.0); R];
                    for r in 0..R {
                        prefetch_weights(packed[r], F::CHUNK_BYTES);
                        let here = if const { R > 1 } { LANES } else { LANES.min(lanes - lane) };
                        weights[r] = F::load::<V>(packed[r], here);
                        packed[r] = packed[r].wrapping_add(F::CHUNK_BYTES);
                    }
                    for position in 0..F::PER_LANE {
                        for r in 0..R {
                            let weight = F::at::<V>(weights[r], position);
                            weights[r] = F::rest::<V>(weights[r]);
                            let of_x = V::load(x.add(position * LANES));
                            chunk[r] = weight.mul_add(of_x, chunk[r]);
                            if const { R > 1 } {
                                // Without this, the compiler computes one row after the other.
                                compiler_fence(SeqCst);
                            }
                        }
                    }
                    x = x.add(F::CHUNK);
                    let group = lane >> shift;
                    for r in 0..R {
                        let scale = if V::IN_PLACE {
                            V::load_each(in_memory[r].as_ptr().add(group), shift)
                        } else {
                            scales[r].permute(V::add_int(lane_groups, V::splat_int(group as i32)))
                        };
                        sums[r] = chunk[r].mul_add(scale, sums[r]);
                    }
                    lane += LANES;
                }
            }
        }
        [sums, biases]
    }
}

/// Multiplies the weights of two full chunks with a row of x, without their scales. Each
/// multiply-add of a chunk waits for the one before. Meanwhile a Zen 3 hardly begins the next
/// chunk, because a chunk has about a hundred instructions. With two chunks in turn, rows of 2048
/// weights of four bits took 0.86 of the time, and with six bits 0.92. Rows of eight bits took
/// longer.
///
/// # Safety
/// The chunks belong to the row of weights, and x covers both.
#[inline(always)]
unsafe fn two_chunks<V: F32x16, F: Format>(packed: *const u8, x: *const f32) -> [V; 2] {
    let mut weights = [V::splat_int(0); 2];
    let mut chunks = [V::splat(0.0); 2];
    prefetch_weights(packed, 2 * F::CHUNK_BYTES);
    // SAFETY: the caller's contract.
    unsafe {
        for (c, weights) in weights.iter_mut().enumerate() {
            *weights = F::load::<V>(packed.add(c * F::CHUNK_BYTES), LANES);
        }
        for position in 0..F::PER_LANE {
            for (c, chunk) in chunks.iter_mut().enumerate() {
                let weight = F::at::<V>(weights[c], position);
                weights[c] = F::rest::<V>(weights[c]);
                let of_x = V::load(x.add(c * F::CHUNK + position * LANES));
                *chunk = weight.mul_add(of_x, *chunk);
            }
            // Without this, the compiler computes one chunk after the other.
            compiler_fence(SeqCst);
        }
    }
    chunks
}
