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
use super::prepare::{Prepared, group_sums, normalize};
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
    let prepared = Prepared::new(call.rows, DIGITS * padded, 2 * groups);
    let misfits = AtomicBool::new(false);
    machine.pool.for_each(call.rows, 10 * call.axis, &|rows| {
        for m in rows {
            let split = Split::<T, F> {
                call,
                m,
                padded,
                groups,
                prepared: &prepared,
                misfits: &misfits,
                types: PhantomData,
            };
            // SAFETY: the caller's contract; every row has its own part of what is prepared.
            unsafe { machine.level.run(split) };
        }
    });
    (!misfits.into_inner()).then_some(prepared)
}

/// Splits x into bytes.
struct Split<'a, T, F> {
    call: &'a Call<'a>,
    m: usize,
    /// Elements, as whole chunks.
    padded: usize,
    /// Groups, as whole vectors.
    groups: usize,
    prepared: &'a Prepared,
    misfits: &'a AtomicBool,
    types: PhantomData<(T, F)>,
}

impl<T: Float, F: Format> Kernel for Split<'_, T, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Call { axis, group, .. } = *self.call;
        let norm = self.call.norm.map(|norm| (norm.weight.cast::<T>(), norm.eps));
        let mut plain = vec![0.0f32; self.padded];
        let x = self.call.x.cast::<T>().wrapping_add(self.m * axis);
        let sums = self.prepared.sums(self.m).cast_mut();
        // SAFETY: the caller's contract; the prepared row has room for three bytes of each element,
        // and a sum and a unit of each group.
        unsafe {
            normalize::<V, T>(x, norm, axis, plain.as_mut_ptr());
            group_sums::<V>(plain.as_ptr(), axis, group, sums, self.groups);
            let units = sums.add(self.groups);
            for index in 0..self.groups {
                let mut unit = 1.0;
                if index < axis / group {
                    let most = largest::<V>(plain.as_ptr().add(index * group), group);
                    if most > 0.0 {
                        // The largest numbers below a power of two would round to 128 * 65536.
                        let power = (most * 1.01).to_bits() >> 23;
                        unit = f32::from_bits(power.wrapping_sub(22) << 23);
                    }
                    if !(most == 0.0 || RANGE.contains(&most)) || !(*sums.add(index)).is_finite() {
                        return self.misfits.store(true, Relaxed);
                    }
                }
                *units.add(index) = unit;
            }
            let digits = self.prepared.row::<u8>(self.m).cast_mut();
            let mut in_order = [[0u8; 4 * BYTES]; DIGITS];
            for chunk in (0..self.padded).step_by(F::CHUNK) {
                for at in (0..F::CHUNK).step_by(LANES) {
                    let unit: f32 = *units.add((chunk + at) >> group.trailing_zeros());
                    // The inverse of a power of two has the opposite exponent.
                    let inverse = f32::from_bits((254 << 23) - unit.to_bits());
                    let x = V::load(plain.as_ptr().add(chunk + at)) * V::splat(inverse);
                    split::<V>(x, &mut in_order, at);
                }
                for (digit, in_order) in in_order.iter().enumerate() {
                    by_position::<F>(in_order, digits.add(digit * self.padded + chunk));
                }
            }
        }
    }
}

/// Writes a digit of a chunk's elements, first those at the first position of each of the weights'
/// bytes, then those at the second one, and so on.
///
/// # Safety
/// A chunk is writable at `to`.
#[inline(always)]
unsafe fn by_position<F: Format>(in_order: &[u8; 4 * BYTES], to: *mut u8) {
    // SAFETY: the caller's contract; the elements of the chunk are the first ones in order.
    unsafe {
        for i in 0..BYTES {
            // One load and shifts, which compilers make vectors of, other than loads of bytes.
            match F::CHUNK / BYTES {
                1 => *to.add(i) = in_order[i],
                2 => {
                    let pair = u16::from_le_bytes([in_order[2 * i], in_order[2 * i + 1]]);
                    *to.add(i) = pair as u8;
                    *to.add(BYTES + i) = (pair >> 8) as u8;
                }
                _ => {
                    let four = &in_order[4 * i..4 * i + 4];
                    let four = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                    for position in 0..4 {
                        *to.add(position * BYTES + i) = (four >> (8 * position)) as u8;
                    }
                }
            }
        }
    }
}

/// The largest magnitude of a group.
#[inline(always)]
unsafe fn largest<V: F32x16>(x: *const f32, group: usize) -> f32 {
    let mut most = V::splat(0.0);
    for at in (0..group).step_by(LANES) {
        // SAFETY: the caller's group has a multiple of sixteen elements.
        most = most.max(unsafe { V::load(x.add(at)) }.abs());
    }
    most.reduce_max()
}

/// Rounds sixteen numbers and stores their bytes, the most significant ones first, each so that
/// those below it may be negative.
#[inline(always)]
unsafe fn split<V: F32x16>(x: V, to: &mut [[u8; 4 * BYTES]; DIGITS], at: usize) {
    let c = x.round().to_int();
    let b = V::add_int(c, V::splat_int(1 << 7));
    let a = V::add_int(b, V::splat_int(1 << 15));
    let [of_a, of_b, of_c] = to;
    // SAFETY: `at` is a multiple of sixteen below the length of the arrays.
    unsafe {
        V::store_bytes(V::shift_right::<16>(a), of_a.as_mut_ptr().add(at));
        V::store_bytes(V::shift_right::<8>(b), of_b.as_mut_ptr().add(at));
        V::store_bytes(c, of_c.as_mut_ptr().add(at));
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
                        // The mask of a whole vector costs nothing.
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
