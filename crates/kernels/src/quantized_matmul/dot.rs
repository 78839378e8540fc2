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
use crate::simd::{F32x16, LANES, prefetch_far};

/// Decodes weights to f32 in registers.
pub(super) struct Decode<F>(PhantomData<F>);

impl<F: Format> Chunks for Decode<F> {
    type Format = F;
    type Arithmetic = InF32;
    const STEPS: usize = F::PER_LANE;
    const VECTORS: usize = F::PER_LANE;

    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const u8, lanes: usize) -> V::Int {
        // SAFETY: the caller's contract.
        unsafe { F::load::<V>(from, lanes) }
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
        let prepared = row.prepared;
        let groups = row.axis / row.group;
        // The number of lanes of a group is a power of two, since group sizes are powers of two.
        let shift = (row.group / F::PER_LANE).trailing_zeros();
        let lane_groups = lane_groups::<V>(shift);
        let mut packed = row.packed;
        prefetch_far(row.next.0, row.next.1);
        // Compute these addresses once here, since the compiler does not move the computation
        // across a prefetch.
        let (mut x, mut of_x) = ([std::ptr::null(); M], [std::ptr::null(); M]);
        for m in 0..M {
            (x[m], of_x[m]) = (prepared.row::<f32>(rows[m]), prepared.sums(rows[m]));
        }
        let (mut of_groups, step) = (row.scales(Self::ELEMENT), row.step);
        let mut in_memory = [0.0; LANES];
        let mut sums = [V::splat(0.0); M];
        let mut biases = [V::splat(0.0); M];
        for at in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - at);
            row.prefetch_scales(&of_groups);
            // SAFETY: the groups from `at` on and their weights belong to this row; prepared rows
            // cover full chunks, and their sums cover full vectors.
            unsafe {
                let [scales, bias] = F::scales::<V>(&of_groups, 0, count);
                if V::IN_PLACE {
                    scales.store(in_memory.as_mut_ptr());
                }
                of_groups = of_groups.after(step);
                if F::AFFINE {
                    let bias = bias * V::splat(row.bias_factor);
                    for m in 0..M {
                        biases[m] = bias.mul_add(V::load(of_x[m].add(at)), biases[m]);
                    }
                }
                let lanes = count << shift;
                let mut lane = 0;
                while const { V::IN_PLACE && M == 1 && F::PER_LANE >= 8 }
                    && lane + 2 * LANES <= lanes
                {
                    for (c, chunk) in two_chunks::<V, F>(packed, x[0]).into_iter().enumerate() {
                        let group = (lane + c * LANES) >> shift;
                        let scale = V::load_each(in_memory.as_ptr().add(group), shift);
                        sums[0] = chunk.mul_add(scale, sums[0]);
                    }
                    packed = packed.wrapping_add(2 * F::CHUNK_BYTES);
                    x[0] = x[0].add(2 * F::CHUNK);
                    lane += 2 * LANES;
                }
                while lane < lanes {
                    prefetch_weights(packed, F::CHUNK_BYTES);
                    let mut weights = F::load::<V>(packed, LANES.min(lanes - lane));
                    packed = packed.wrapping_add(F::CHUNK_BYTES);
                    let mut chunk = [V::splat(0.0); M];
                    for position in 0..F::PER_LANE {
                        let weight = F::at::<V>(weights, position);
                        weights = F::rest::<V>(weights);
                        for m in 0..M {
                            let of_x = V::load(x[m].add(position * LANES));
                            chunk[m] = weight.mul_add(of_x, chunk[m]);
                        }
                    }
                    let group = lane >> shift;
                    let scale = if V::IN_PLACE {
                        V::load_each(in_memory.as_ptr().add(group), shift)
                    } else {
                        scales.permute(V::add_int(lane_groups, V::splat_int(group as i32)))
                    };
                    for m in 0..M {
                        sums[m] = chunk[m].mul_add(scale, sums[m]);
                        x[m] = x[m].add(F::CHUNK);
                    }
                    lane += LANES;
                }
            }
        }
        for m in 0..M {
            sums[m] = sums[m] + biases[m];
        }
        sums
    }
}

/// Multiplies the weights of two full chunks with a row of x, without their scales. Each
/// multiply-add of a chunk waits for the one before. Meanwhile a Zen 3 hardly begins the next
/// chunk, because a chunk has about a hundred instructions. With two chunks in turn, rows of 2048
/// weights of four bits took 0.86 of the time, but rows of eight bits took longer.
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
