//! Products of a few rows of 16-bit x with weights of two, four or eight bits, in integers.
//!
//! Within a group of weights, x is `unit * (65536 a + 256 b + c)` with signed bytes a, b and c, and
//! a power of two that suits the group's largest element. bf16 elements down to 2^-14 of it are
//! exact, f16 elements down to 2^-11, and smaller ones are off by at most 2^-22 of it. Products of
//! bytes are added up as integers, which loses nothing, before a conversion to f32 rounds them.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::columns::{Dots, Operands};
use super::dot::lane_groups;
use super::format::Format;
use super::prepare::{Prepared, normalize};
use super::{Call, FEW_ROWS};
use crate::Machine;
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, prefetch_far};

/// The bytes of an element.
const DIGITS: usize = 3;
/// The bytes of a vector.
const BYTES: usize = 4 * LANES;
/// Rows of weights that share the loads of x and are read as parallel streams.
const TOGETHER: usize = 4;
/// The largest elements of groups for which the unit and its inverse are normal numbers.
const RANGE: Range<f32> = 1e-24..1e36;

/// Whether these products support a call on this machine.
pub(super) fn takes(machine: Machine, call: &Call) -> bool {
    machine.level.adds_digits() && call.rows <= FEW_ROWS
}

/// Whether these products support the types.
pub(super) const fn support<T: Float, F: Format>() -> bool {
    F::AFFINE && F::BITS.is_power_of_two() && size_of::<T>() == 2
}

/// Prepares x, unless it has an element that bytes cannot express: one that is not finite, or so
/// large or small that a group's unit would not be a normal number.
///
/// # Safety
/// The contract of [`super::quantized_matmul`]; [`takes`] and [`support`] hold.
pub(super) unsafe fn prepare<T: Float, F: Format>(
    machine: Machine,
    call: &Call,
) -> Option<Prepared> {
    let padded = call.axis.next_multiple_of(F::CHUNK);
    let groups = (call.axis / call.group).next_multiple_of(LANES);
    let prepared = Prepared::new(call.rows, (DIGITS + size_of::<f32>()) * padded, 2 * groups);
    let misfits = AtomicBool::new(false);
    machine.pool.for_each(call.rows, 10 * call.axis, &|rows| {
        for m in rows {
            let split = Split::<T> {
                call,
                m,
                positions: 8 / F::BITS as usize,
                padded,
                groups,
                prepared: &prepared,
                misfits: &misfits,
                element: PhantomData,
            };
            // SAFETY: the caller's contract; every row has its own part of what is prepared.
            unsafe { machine.level.run(split) };
        }
    });
    (!misfits.into_inner()).then_some(prepared)
}

/// Splits x into bytes.
struct Split<'a, T> {
    call: &'a Call<'a>,
    m: usize,
    /// Weights in a byte.
    positions: usize,
    /// Elements, as whole chunks.
    padded: usize,
    /// Groups, as whole vectors.
    groups: usize,
    prepared: &'a Prepared,
    misfits: &'a AtomicBool,
    element: PhantomData<T>,
}

impl<T: Float> Kernel for Split<'_, T> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Call { axis, group, .. } = *self.call;
        let norm = self.call.norm.map(|norm| (norm.weight.cast::<T>(), norm.eps));
        let x = self.call.x.cast::<T>().wrapping_add(self.m * axis);
        let digits = self.prepared.row::<u8>(self.m).cast_mut();
        let plain = digits.wrapping_add(DIGITS * self.padded).cast::<f32>();
        let sums = self.prepared.sums(self.m).cast_mut();
        let units = sums.wrapping_add(self.groups);
        // SAFETY: the caller's contract; the prepared row has room for three bytes and a float of
        // each element, and a sum and a unit of each group.
        unsafe {
            normalize::<V, T>(x, norm, axis, plain);
            plain.add(axis).write_bytes(0, self.padded - axis);
            for first in (0..self.groups).step_by(LANES) {
                let count = LANES.min(axis / group - first);
                let [sum, most] = sums_and_largest::<V>(plain.add(first * group), group, count);
                sum.store(sums.add(first));
                let mut fits = [0.0; LANES];
                most.store(fits.as_mut_ptr());
                for (i, most) in fits.iter().enumerate() {
                    let fits = *most == 0.0 || RANGE.contains(most);
                    if !(fits && (*sums.add(first + i)).is_finite()) {
                        return self.misfits.store(true, Relaxed);
                    }
                }
                // The largest numbers below a power of two would round to 128 * 65536.
                let power = V::shift_right::<23>((most * V::splat(1.01)).to_bits());
                let unit = V::shift_left::<23>(V::add_int(power, V::splat_int(-22)));
                let unit = V::select(most.to_bits(), V::from_bits(unit), V::splat(1.0));
                unit.store(units.add(first));
            }
            let order = by_position::<V>(self.positions);
            let chunk = self.positions * BYTES;
            for at in (0..self.padded).step_by(LANES) {
                let unit: f32 = *units.add(at >> group.trailing_zeros());
                // The inverse of a power of two has the opposite exponent.
                let inverse = f32::from_bits((254 << 23) - unit.to_bits());
                let x = V::load(plain.add(at)).permute(order) * V::splat(inverse);
                let start = at & !(chunk - 1);
                let to = digits.add(start + ((at - start) >> self.positions.trailing_zeros()));
                for (digit, bytes) in split::<V>(x).into_iter().enumerate() {
                    store_by_position::<V>(bytes, self.positions, to.add(digit * self.padded));
                }
            }
        }
    }
}

/// The sums and the largest magnitudes of `count` groups, then zeros.
///
/// # Safety
/// The groups have a multiple of sixteen elements each.
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

/// Rounds sixteen numbers, and returns their bytes in the low ones of each lane: the most significant
/// ones first, each so that those below it may be negative.
#[inline(always)]
fn split<V: F32x16>(x: V) -> [V::Int; DIGITS] {
    let c = x.round().to_int();
    let b = V::add_int(c, V::splat_int(1 << 7));
    let a = V::add_int(b, V::splat_int(1 << 15));
    [V::shift_right::<16>(a), V::shift_right::<8>(b), c]
}

/// Sixteen elements in the order in which a chunk has them: first those at the first of the
/// positions in each of the weights' bytes, then those at the second one, and so on.
#[inline(always)]
fn by_position<V: F32x16>(positions: usize) -> V::Int {
    let bytes = LANES / positions;
    let mut order = [0u32; LANES];
    for (lane, from) in order.iter_mut().enumerate() {
        *from = (lane % bytes * positions + lane / bytes) as u32;
    }
    // SAFETY: sixteen words; `load` takes any bits as they are.
    unsafe { V::load(order.as_ptr().cast()).to_bits() }
}

/// Stores the bytes of sixteen elements in the order of [`by_position`], those of each position behind
/// those of the elements before.
///
/// # Safety
/// A chunk is writable from where its first such byte is.
#[inline(always)]
unsafe fn store_by_position<V: F32x16>(bytes: V::Int, positions: usize, to: *mut u8) {
    let mut all = [0u8; LANES];
    // SAFETY: the caller's contract; the array holds sixteen bytes.
    unsafe {
        V::store_bytes(bytes, all.as_mut_ptr());
        match positions {
            1 => store_parts::<LANES>(&all, to),
            2 => store_parts::<{ LANES / 2 }>(&all, to),
            _ => store_parts::<{ LANES / 4 }>(&all, to),
        }
    }
}

/// Copies parts of `N` bytes to each position, by one move each.
///
/// # Safety
/// The contract of [`store_by_position`].
#[inline(always)]
unsafe fn store_parts<const N: usize>(all: &[u8; LANES], to: *mut u8) {
    for at in (0..LANES).step_by(N) {
        // SAFETY: the caller's contract; `N` divides sixteen.
        unsafe { to.add(at / N * BYTES).copy_from_nonoverlapping(all.as_ptr().add(at), N) };
    }
}

/// Adds up products of bytes.
pub(super) struct Digits<T, F>(PhantomData<(T, F)>);

impl<T: Float, F: Format> Dots for Digits<T, F> {
    const BITS: usize = F::BITS as usize;
    const SCALE_BYTES: usize = size_of::<T>();

    #[inline(always)]
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M] {
        row.prefetch_next_scales::<Self>(1);
        // SAFETY: the caller's contract.
        let [sums] = unsafe { Self::dots::<V, 1, M>(row, 1, rows, 1) };
        sums
    }

    #[inline(always)]
    unsafe fn block<V: F32x16>(first: Operands, m: usize, count: usize) -> [V; LANES] {
        let mut sums = [V::splat(0.0); LANES];
        // SAFETY: the caller's contract.
        unsafe {
            if count < LANES {
                for (column, sum) in sums.iter_mut().enumerate().take(count) {
                    [*sum] = Self::dot::<V, 1>(first.below::<Self>(column), [m]);
                }
                return sums;
            }
            first.prefetch_next_scales::<Self>(LANES);
            // Each stream has four rows, and goes on in the next block.
            const STREAM: usize = LANES / TOGETHER;
            for i in 0..STREAM {
                let next = if i + 1 < STREAM { 1 } else { LANES - STREAM + 1 };
                let row = first.below::<Self>(i);
                let dots = Self::dots::<V, TOGETHER, 1>(row, STREAM, [m], next);
                for (stream, [sum]) in dots.into_iter().enumerate() {
                    sums[stream * STREAM + i] = sum;
                }
            }
        }
        sums
    }
}

impl<T: Float, F: Format> Digits<T, F> {
    /// Multiplies `R` rows of weights, `first` and those `apart` rows below each other, with `M`
    /// rows of x. It prefetches the weights that are `next` rows below each.
    ///
    /// # Safety
    /// The contract of [`Dots::dot`].
    #[inline(always)]
    unsafe fn dots<V: F32x16, const R: usize, const M: usize>(
        first: Operands,
        apart: usize,
        of_x: [usize; M],
        next: usize,
    ) -> [[V; M]; R] {
        let Operands { axis, group, prepared, .. } = first;
        let (groups, padded) = (axis / group, axis.next_multiple_of(F::CHUNK));
        let row_bytes = axis * Self::BITS / 8;
        // Offsets from one row's pointer need fewer registers than a pointer for each row.
        let (bytes_apart, scales_apart) = (apart * row_bytes, apart * groups * Self::SCALE_BYTES);
        let ahead = next * row_bytes;
        // A group has `2^shift` lanes. A group of two vectors begins in every second one.
        let shift = (group / F::PER_LANE).trailing_zeros();
        let first_lanes = lane_groups::<V>(shift);
        let step = LANES as i32 >> shift;
        let steps = [step, ((2 * LANES as i32) >> shift) - step];
        let mut x = [prepared.row::<u8>(of_x[0]); M];
        for (x, &m) in x.iter_mut().zip(&of_x) {
            *x = prepared.row(m);
        }
        let mut packed = first.packed;
        let mut sums = [[V::splat(0.0); M]; R];
        for at in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - at);
            let mut scales = [[V::splat(0.0); M]; R];
            // SAFETY: the groups from `at` on are those of each row, and so are their weights; the
            // prepared rows cover whole chunks, their sums and units whole vectors.
            unsafe {
                for (r, scales) in scales.iter_mut().enumerate() {
                    let offset = at * Self::SCALE_BYTES + r * scales_apart;
                    let scale = first.scales.wrapping_add(offset);
                    let bias = first.biases.wrapping_add(offset);
                    let scale = T::load_first::<V>(scale.cast(), count);
                    let bias = T::load_first::<V>(bias.cast(), count);
                    for m in 0..M {
                        let of_group = prepared.sums(of_x[m]).add(at);
                        let unit = of_group.add(groups.next_multiple_of(LANES));
                        scales[m] = scale * V::load(unit);
                        sums[r][m] = bias.mul_add(V::load(of_group), sums[r][m]);
                    }
                }
                let lanes = count << shift;
                let mut index = first_lanes;
                for (chunk, lane) in (0..lanes).step_by(LANES).enumerate() {
                    let count = LANES.min(lanes - lane);
                    for r in 0..R {
                        let row = packed.wrapping_add(r * bytes_apart);
                        prefetch_far(row.wrapping_add(ahead), BYTES);
                        // Loads of all rows without masks, before the first product, are faster
                        // from the caches and slower from memory.
                        let weights = V::load_first(row.cast(), count).to_bits();
                        let parts = Self::parts::<V>(weights);
                        for m in 0..M {
                            let sum = Self::chunk::<V>(parts, x[m], padded);
                            sums[r][m] = sum.mul_add(scales[r][m].permute(index), sums[r][m]);
                        }
                    }
                    packed = packed.wrapping_add(BYTES);
                    index = V::add_int(index, V::splat_int(steps[chunk % 2]));
                    for x in &mut x {
                        *x = x.add(F::CHUNK);
                    }
                }
            }
        }
        sums
    }

    /// The weights of a chunk in bytes: the first of each byte, then the second, and so on.
    #[inline(always)]
    fn parts<V: F32x16>(weights: V::Int) -> [V::Int; 4] {
        let mask = V::splat_int(if Self::BITS == 2 { 0x0303_0303 } else { 0x0f0f_0f0f });
        match Self::BITS {
            2 => [
                V::and_int(weights, mask),
                V::and_int(V::shift_right::<2>(weights), mask),
                V::and_int(V::shift_right::<4>(weights), mask),
                V::and_int(V::shift_right::<6>(weights), mask),
            ],
            4 => {
                let low = V::and_int(weights, mask);
                let high = V::and_int(V::shift_right::<4>(weights), mask);
                [low, high, low, high]
            }
            _ => [weights; 4],
        }
    }

    /// The sums of each lane's products with a chunk of x, whose digits are `padded` bytes apart.
    ///
    /// # Safety
    /// A chunk is readable at each of the digits.
    #[inline(always)]
    unsafe fn chunk<V: F32x16>(parts: [V::Int; 4], x: *const u8, padded: usize) -> V {
        let (b, c) = (x.wrapping_add(padded), x.wrapping_add(2 * padded));
        // SAFETY: the caller's contract.
        unsafe {
            let zero = V::splat_int(0);
            if Self::BITS == 8 {
                // Four products of 8 and 24 bits would overflow, but of 8 and 16 bits do not.
                let high = V::shift_left::<8>(Self::add::<V>(zero, parts, x));
                let high = V::from_int(Self::add::<V>(high, parts, b));
                let low = V::from_int(Self::add::<V>(zero, parts, c));
                return high.mul_add(V::splat(256.0), low);
            }
            let sum = V::shift_left::<8>(Self::add::<V>(zero, parts, x));
            let sum = V::shift_left::<8>(Self::add::<V>(sum, parts, b));
            V::from_int(Self::add::<V>(sum, parts, c))
        }
    }

    /// Adds the products of a chunk with one digit of each element.
    ///
    /// # Safety
    /// A chunk of x is readable.
    #[inline(always)]
    unsafe fn add<V: F32x16>(mut sum: V::Int, parts: [V::Int; 4], x: *const u8) -> V::Int {
        for (position, part) in parts.into_iter().enumerate().take(8 / Self::BITS) {
            // SAFETY: the caller's contract; `load` takes any bits as they are.
            let x = unsafe { V::load(x.add(position * BYTES).cast()) };
            sum = V::dot_bytes(sum, part, x.to_bits());
        }
        sum
    }
}
