//! Dot products of one row of weights with a few rows of x, in f32 lanes on every instruction set.

use std::marker::PhantomData;
use std::ops::Range;

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
                for lane in (0..lanes).step_by(LANES) {
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
                }
            }
        }
        for m in 0..M {
            sums[m] = sums[m] + biases[m];
        }
        sums
    }
}
