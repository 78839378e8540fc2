//! Multiplies rows of x that are rounded to eight bits. x has the same groups as the weights, and
//! each group of x has a scale. Products of bytes are added up as integers within a group, and the
//! sum is scaled.
//!
//! x is about `s * q` with q in -127..=127 and s the group's largest magnitude divided by 127,
//! and a weight is `scale * p + bias` with p of at most eight bits. So a group adds
//! `s * scale * sum(q * p) + bias * s * sum(q)`, and groups are added in the order of k.
//!
//! Each word of x, four bytes, is multiplied with the words of sixteen rows of weights. If x has
//! one row, its bytes are multiplied with codes in the order of memory (`lanes`).

use std::ops::Range;

use super::columns::Columns;
use super::finish::Finish;
use super::lanes::{InLanes, LINE, before_odd, splits_pairs};
use super::order::each_range;
use super::prepare::Prepared;
use super::{Call, Mode, prefill};
use crate::element::Float;
use crate::simd::transpose::numbers;
use crate::simd::{F32x16, Kernel, LANES};
use crate::{Machine, Shared};

/// Whether a call can use products of bytes and saves time with them. `Mxfp8` cannot, since 8-bit
/// floats are not integers. If a CPU adds up products of bytes in sums of sixteen bits, weights can
/// have at most six bits, since products with larger weights would overflow. If x is bf16 and the
/// CPU has tile instructions, the exact products of prompts are faster.
pub(super) fn takes<T: Float>(machine: Machine, call: &Call) -> bool {
    let in_tiles = T::IS_BF16 && machine.level.multiplies_tiles() && !call.of_tokens();
    machine.level.multiplies_bytes(call.bits)
        && !in_tiles
        && !matches!(call.mode, Mode::Mxfp8 | Mode::Plain)
        && call.low_rank.is_none()
}

/// # Safety
/// The contract of [`super::quantized_matmul`]; the mode is neither mxfp8 nor plain, and the call
/// has no low-rank correction. If the machine adds up products of bytes in sixteen bits, weights
/// have at most six bits.
pub unsafe fn run<T: Float>(machine: Machine, call: &Call) {
    // SAFETY: the caller's contract.
    unsafe {
        prefill::normalized::<T>(machine, call, &|x| {
            let groups = (call.axis / call.group).next_multiple_of(LANES);
            let row_bytes = call.axis.next_multiple_of(LINE);
            let prepared = &Prepared::new(call.rows, row_bytes, 2 * groups, 1);
            let from = Shared(x.cast_mut());
            machine.pool.for_each(call.rows, 5 * call.axis, &|rows| {
                let x = from.get().cast_const();
                machine.level.run(Round { x, call, prepared, groups, rows });
            });
            let finish = &Finish::new::<T>(machine, call);
            each_range(machine, call, call.bits as usize, &|range| {
                machine.level.run(InLanes(Columns { call, prepared, finish, range }));
            });
        });
    }
}

/// Rounds rows of x. A prepared row has a byte for each element; its sums are the scaled sum of
/// each group, and then the scale of each group.
struct Round<'a, T> {
    x: *const T,
    call: &'a Call<'a>,
    prepared: &'a Prepared,
    /// The number of groups, rounded up to full vectors.
    groups: usize,
    rows: Range<usize>,
}

impl<T: Float> Kernel for Round<'_, T> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Call { axis, group, bits, .. } = *self.call;
        let apart = splits_pairs(matches!(self.call.mode, Mode::Affine | Mode::KQuant), bits);
        for m in self.rows {
            let bytes = self.prepared.row::<u8>(m).cast_mut();
            let sums = self.prepared.sums(m).cast_mut();
            for index in 0..axis / group {
                // SAFETY: the group lies within its row of x and within the prepared row, which has
                // a sum and a scale for it.
                unsafe {
                    let (x, to) = (self.x.add(m * axis + index * group), bytes.add(index * group));
                    let (scale, sum) = match apart {
                        true => round::<V, T, true>(x, group, to),
                        false => round::<V, T, false>(x, group, to),
                    };
                    *sums.add(index) = sum;
                    *sums.add(self.groups + index) = scale;
                }
            }
        }
    }
}

/// Writes a group as signed bytes. With `APART`, of each eight elements, the ones with even indices
/// come first. Returns the scale of the bytes, and the sum of the bytes times the scale. If an
/// element is not finite, the sum is NaN, and so are the products of the group.
#[inline(always)]
unsafe fn round<V: F32x16, T: Float, const APART: bool>(
    x: *const T,
    group: usize,
    to: *mut u8,
) -> (f32, f32) {
    let places = numbers::<V>(before_odd);
    let mut most = V::splat(0.0);
    let mut sum = V::splat(0.0);
    // SAFETY: the caller's group has a multiple of sixteen elements.
    unsafe {
        for at in (0..group).step_by(LANES) {
            most = most.max(T::load::<V>(x.add(at)).abs());
        }
        let most = most.reduce_max();
        // If the largest magnitude is so small that the quotient is infinite, the largest float
        // takes its place. Then the bytes are smaller than 127, or zero.
        let inverse = if most > 0.0 { (127.0 / most).min(f32::MAX) } else { 0.0 };
        for at in (0..group).step_by(LANES) {
            let rounded = (T::load::<V>(x.add(at)) * V::splat(inverse)).round();
            sum = sum + rounded;
            let bytes = if APART { rounded.permute(places) } else { rounded };
            V::store_bytes(bytes.to_int(), to.add(at));
        }
        let scale = most / 127.0;
        (scale, scale * sum.reduce_add())
    }
}
