//! Splits rows of x into bytes, the digits.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::Call;
use super::super::format::Format;
use super::super::prepare::{Prepared, by_position, normalize, store_parts, with_plain};
use super::layout::{BYTES, TOKENS, WORD, pair};
use crate::Machine;
use crate::element::Float;
use crate::simd::tiles::DIGITS;
use crate::simd::transpose::numbers;
use crate::simd::{F32x16, Kernel, LANES};

/// The number of bytes in a cache line.
const LINE: usize = 64;
/// The range of a group's largest element in which the unit and its inverse are normal numbers.
const RANGE: Range<f32> = 1e-24..1e36;

/// Prepares x. Returns `None` if x has an element that bytes cannot express: an infinity, a NaN, or
/// an element so large or small that the unit of its group would not be a normal number.
///
/// # Safety
/// The contract of [`super::super::quantized_matmul`]; [`takes`](super::takes) and
/// [`support`](super::support) hold.
pub unsafe fn prepare<T: Float, F: Format>(machine: Machine, call: &Call) -> Option<Prepared> {
    let groups = (call.axis / call.group).next_multiple_of(LANES);
    // Pad the rows to full tiles. If there are several rows, each row has an extra cache
    // line, so that the rows begin in different sets of the first-level cache.
    let tiles = call.rows.next_multiple_of(call.rows.min(TOKENS));
    let single = call.rows == 1;
    let row_bytes = match single {
        true => call.axis.next_multiple_of(pair::<F>()),
        false => call.axis.next_multiple_of(LINE) + LINE,
    };
    let prepared = Prepared::new(DIGITS * tiles, row_bytes, 2 * groups, 1);
    let misfits = AtomicBool::new(false);
    // RMS normalization needs a whole row. Without it, threads can split parts of sixteen groups
    // into bytes separately.
    let whole = if single { row_bytes } else { call.axis };
    let part = if call.norm.is_some() { whole } else { LANES * call.group };
    let parts = whole.div_ceil(part);
    machine.pool.for_each(call.rows * parts, 10 * call.axis / parts, &|items| {
        with_plain(part, &mut |plain| {
            for item in items.clone() {
                let first = item % parts * part;
                let split = Split::<T> {
                    call,
                    m: item / parts,
                    elements: first..whole.min(first + part),
                    single,
                    positions: 8 / F::BITS as usize,
                    plain,
                    row_bytes,
                    groups,
                    prepared: &prepared,
                    misfits: &misfits,
                    element: PhantomData,
                };
                // SAFETY: the caller's contract; every item writes a different part of the prepared
                // rows.
                unsafe { machine.level.run(split) };
            }
        });
    });
    (!misfits.into_inner()).then_some(prepared)
}

/// Splits a row of x, or a part of a row, into bytes. A part has sixteen groups, one for each lane
/// of a vector; the last part of a row may have fewer.
struct Split<'a, T> {
    call: &'a Call<'a>,
    m: usize,
    /// The elements of the part. The number of groups before it is a multiple of sixteen, and it
    /// ends at the next part or at the end of the row. If x has only one row, the row is padded to
    /// pairs of chunks.
    elements: Range<usize>,
    single: bool,
    /// The number of weights in a byte.
    positions: usize,
    /// Room for the elements.
    plain: *mut f32,
    /// The number of bytes from one digit of the row to the next.
    row_bytes: usize,
    /// The number of groups, rounded up to full vectors.
    groups: usize,
    prepared: &'a Prepared,
    misfits: &'a AtomicBool,
    element: PhantomData<T>,
}

impl<T: Float> Kernel for Split<'_, T> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Call { axis, group, .. } = *self.call;
        let norm = self.call.norm.map(|norm| (norm.weight.cast::<T>(), norm.eps));
        let x = self.call.x.cast::<T>().wrapping_add(self.m * axis);
        let digits = self.prepared.row::<u8>(DIGITS * self.m).cast_mut();
        let sums = self.prepared.sums(self.m).cast_mut();
        let units = sums.wrapping_add(self.groups);
        let (Range { start, end }, plain) = (self.elements, self.plain);
        // SAFETY: the caller's contract; the prepared row has room for three bytes of each element,
        // and a sum and a unit of each group. With a norm, `elements` is the whole row.
        unsafe {
            let stored = end.min(axis);
            normalize::<V, T>(x.add(start), norm, stored - start, plain);
            plain.add(stored - start).write_bytes(0, end - stored);
            for first in (start / group..stored / group).step_by(LANES) {
                let count = LANES.min(stored / group - first);
                let from = plain.add(first * group - start);
                let [sum, most] = sums_and_largest::<V>(from, group, count);
                sum.store(sums.add(first));
                let zero = V::splat(0.0);
                let least = V::select(most.to_bits(), zero - most, V::splat(-1.0));
                let within = !(least.any_above(-RANGE.start) || most.any_above(RANGE.end));
                // If a sum is infinite or NaN, the sum times zero is NaN.
                if !within || (sum * zero).reduce_add() != 0.0 {
                    return self.misfits.store(true, Relaxed);
                }
                // Without the factor 1.01, the largest numbers below a power of two would round to
                // 128 * 65536, and 128 is too large for a signed byte.
                let power = V::shift_right::<23>((most * V::splat(1.01)).to_bits());
                let unit = V::shift_left::<23>(V::add_int(power, V::splat_int(-22)));
                let unit = V::select(most.to_bits(), V::from_bits(unit), V::splat(1.0));
                unit.store(units.add(first));
            }
            let order = match self.single {
                true => by_position::<V>(self.positions),
                false => in_words::<V>(self.positions),
            };
            for at in (start..end).step_by(LANES) {
                let unit = *units.add(at.min(stored - 1) >> group.trailing_zeros());
                // The inverse of a power of two has the opposite exponent.
                let inverse = f32::from_bits((254 << 23) - unit.to_bits());
                let x = V::load(plain.add(at - start)).permute(order) * V::splat(inverse);
                for (digit, bytes) in split::<V>(x).into_iter().enumerate() {
                    let to = digits.add(digit * self.row_bytes);
                    match self.single {
                        true => {
                            let to = to.add(place(at, self.positions));
                            store_bytes::<V>(bytes, self.positions, to);
                        }
                        false => V::store_bytes(bytes, to.add(at)),
                    }
                }
            }
        }
    }
}

/// The order of sixteen elements in words: first the elements whose weights are at the first
/// position of four bytes, then the elements whose weights are at the second position, and so on.
#[inline(always)]
fn in_words<V: F32x16>(positions: usize) -> V::Int {
    numbers::<V>(|to| {
        let (within, word) = (to % WORD, to / WORD);
        (word / positions * WORD + within) * positions + word % positions
    })
}

/// The offset of the bytes of the sixteen elements from `at` on. The offsets have the order in
/// which the weights of pairs of chunks are decoded.
fn place(at: usize, positions: usize) -> usize {
    let shift = positions.trailing_zeros();
    let of_weights = at >> shift;
    let (word, within) = (of_weights / 8 % 8, of_weights % 8);
    let (pair, second) = (at & !(((2 * BYTES) << shift) - 1), of_weights / BYTES % 2);
    // One vector alternates between the even words (of eight bytes) of the two chunks, and another
    // vector between the odd words.
    pair + ((word % 2 * BYTES) << shift) + ((word & 6) + second) * 8 + within
}

/// Returns the sums and the largest magnitudes of `count` groups. The other lanes are zero.
///
/// # Safety
/// The number of elements in a group is a multiple of sixteen.
#[inline(always)]
unsafe fn sums_and_largest<V: F32x16>(x: *const f32, group: usize, count: usize) -> [V; 2] {
    let mut sums = [V::splat(0.0); LANES];
    let mut most = [V::splat(0.0); LANES];
    for index in 0..count {
        for at in (0..group).step_by(LANES) {
            // SAFETY: the caller's contract.
            let x = unsafe { V::load(x.add(index * group + at)) };
            sums[index] = sums[index] + x;
            most[index] = most[index].max(x.abs());
        }
    }
    [V::reduce_add_each(sums), V::reduce_max_each(most)]
}

/// Rounds sixteen numbers and splits each into bytes, the most significant byte first. A byte is in
/// the low bits of its lane. Each byte is rounded to the nearest integer, because the bytes below
/// it are signed.
#[inline(always)]
fn split<V: F32x16>(x: V) -> [V::Int; DIGITS] {
    let c = x.round().to_int();
    let b = V::add_int(c, V::splat_int(1 << 7));
    let a = V::add_int(b, V::splat_int(1 << 15));
    [V::shift_right::<16>(a), V::shift_right::<8>(b), c]
}

/// Stores the bytes of sixteen elements in the order of [`by_position`], in equal parts that are a
/// vector apart.
///
/// # Safety
/// Two chunks are writable from `to` on.
#[inline(always)]
unsafe fn store_bytes<V: F32x16>(bytes: V::Int, positions: usize, to: *mut u8) {
    let mut all = [0u8; LANES];
    // SAFETY: the caller's contract; the array holds sixteen bytes.
    unsafe {
        V::store_bytes(bytes, all.as_mut_ptr());
        match positions {
            1 | 2 => store_parts::<{ LANES / 2 }>(all.as_ptr(), 2, to, BYTES),
            _ => store_parts::<{ LANES / 4 }>(all.as_ptr(), 4, to, BYTES),
        }
    }
}
