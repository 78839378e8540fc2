//! MLX's affine quantization: groups of a row become small integers, a scale and a bias.
//!
//! The packed words are a little-endian stream of codes, so 32 codes of `bits` bits are `bits`
//! words whatever `bits` is.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

#[derive(Clone, Copy, Debug)]
pub struct QuantizeShape {
    pub groups: usize,
    /// Elements of a group: a multiple of 32.
    pub group_size: usize,
    /// Of a code: 1 to 8.
    pub bits: usize,
}

impl QuantizeShape {
    fn words(&self) -> usize {
        self.group_size / UNIT * self.bits
    }
}

/// Codes that fill whole words.
const UNIT: usize = 32;

/// Bit for bit `mx.quantize` on MLX's CPU backend.
///
/// # Safety
/// `x` holds `groups * group_size` elements, `packed` the words of as many codes, `scales` and
/// `biases` one element a group, all aligned to what they hold. No two overlap.
pub unsafe fn quantize(
    element: Element,
    x: *const u8,
    packed: *mut u32,
    scales: *mut u8,
    biases: *mut u8,
    shape: &QuantizeShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        quantize_on::<T>(machine, x.cast(), packed, scales.cast(), biases.cast(), shape)
    })
}

/// Bit for bit `mx.dequantize` on MLX's CPU backend: the product is rounded to the type, then the
/// sum.
///
/// # Safety
/// As for [`quantize`], with `out` in place of `x`.
pub unsafe fn dequantize(
    element: Element,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    out: *mut u8,
    shape: &QuantizeShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        dequantize_on::<T>(machine, packed, scales.cast(), biases.cast(), out.cast(), shape)
    })
}

unsafe fn quantize_on<T: Float>(
    machine: Machine,
    x: *const T,
    packed: *mut u32,
    scales: *mut T,
    biases: *mut T,
    shape: &QuantizeShape,
) {
    let (x, packed) = (Shared(x.cast_mut()), Shared(packed));
    let (scales, biases) = (Shared(scales), Shared(biases));
    machine.pool.for_each(shape.groups, 3 * shape.group_size, &|groups| {
        let call = Groups {
            elements: x.get(),
            packed: packed.get(),
            scales: scales.get(),
            biases: biases.get(),
            groups,
            shape,
        };
        // SAFETY: the caller's contract; the ranges of groups are disjoint.
        unsafe {
            match shape.bits {
                4 => machine.level.run(Quantize::<T, 4>(call)),
                8 => machine.level.run(Quantize::<T, 8>(call)),
                _ => machine.level.run(Quantize::<T, 0>(call)),
            }
        }
    });
}

unsafe fn dequantize_on<T: Float>(
    machine: Machine,
    packed: *const u32,
    scales: *const T,
    biases: *const T,
    out: *mut T,
    shape: &QuantizeShape,
) {
    let (out, packed) = (Shared(out), Shared(packed.cast_mut()));
    let (scales, biases) = (Shared(scales.cast_mut()), Shared(biases.cast_mut()));
    machine.pool.for_each(shape.groups, 2 * shape.group_size, &|groups| {
        let call = Groups {
            elements: out.get(),
            packed: packed.get(),
            scales: scales.get(),
            biases: biases.get(),
            groups,
            shape,
        };
        // SAFETY: the caller's contract; the ranges of groups are disjoint.
        unsafe {
            match shape.bits {
                4 => machine.level.run(Dequantize::<T, 4>(call)),
                8 => machine.level.run(Dequantize::<T, 8>(call)),
                _ => machine.level.run(Dequantize::<T, 0>(call)),
            }
        }
    });
}

struct Groups<'a, T> {
    elements: *mut T,
    packed: *mut u32,
    scales: *mut T,
    biases: *mut T,
    groups: Range<usize>,
    shape: &'a QuantizeShape,
}

/// `BITS` are those of the shape, or 0 where they are not known to the compiler.
struct Quantize<'a, T, const BITS: usize>(Groups<'a, T>);
struct Dequantize<'a, T, const BITS: usize>(Groups<'a, T>);

impl<T: Float, const BITS: usize> Kernel for Quantize<'_, T, BITS> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Groups { elements, packed, scales, biases, groups, shape } = self.0;
        let bits = if BITS == 0 { shape.bits } else { BITS };
        let top = ((1 << bits) - 1) as f32;
        // Sixteen groups at a time, whose scales are worked out together.
        for first in groups.clone().step_by(LANES) {
            let count = LANES.min(groups.end - first);
            let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
            let (mut scale, mut bias, mut inverse) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            // SAFETY: the groups lie within each buffer, in whole units of 32.
            unsafe {
                for i in 0..count {
                    let x = elements.add((first + i) * shape.group_size);
                    (low[i], high[i]) = extremes::<V, T>(x, shape.group_size);
                }
                for i in 0..LANES {
                    (scale[i], bias[i]) = scale_and_bias(low[i], high[i], top);
                    inverse[i] = 1.0 / scale[i];
                }
                T::store_first(V::load(scale.as_ptr()), scales.add(first), count);
                T::store_first(V::load(bias.as_ptr()), biases.add(first), count);
                for i in 0..count {
                    let coder = Coder {
                        bias: V::splat(bias[i]),
                        opposite: V::splat(-scale[i]),
                        inverse: V::splat(inverse[i]),
                        top: V::splat(top),
                    };
                    let x = elements.add((first + i) * shape.group_size);
                    let words = packed.add((first + i) * shape.words());
                    coder.group::<T, BITS>(x, shape, words);
                }
            }
        }
    }
}

impl<T: Float, const BITS: usize> Kernel for Dequantize<'_, T, BITS> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Groups { elements, packed, scales, biases, groups, shape } = self.0;
        let bits = if BITS == 0 { shape.bits } else { BITS };
        for group in groups {
            // SAFETY: as in Quantize.
            unsafe {
                let out = elements.add(group * shape.group_size);
                let words = packed.add(group * shape.words());
                let scale = V::splat(first::<V, T>(scales.add(group)));
                let bias = V::splat(first::<V, T>(biases.add(group)));
                if BITS == 0 {
                    for unit in 0..shape.group_size / UNIT {
                        let codes = unpack(words.add(unit * bits), bits);
                        let out = out.add(unit * UNIT);
                        decode::<V, T>(codes.as_ptr(), scale, bias, out);
                        decode::<V, T>(codes.as_ptr().add(LANES), scale, bias, out.add(LANES));
                    }
                } else {
                    for block in 0..shape.group_size / LANES {
                        let codes = unpack_block::<BITS>(words.cast::<u16>().add(block * BITS));
                        decode::<V, T>(codes.as_ptr(), scale, bias, out.add(block * LANES));
                    }
                }
            }
        }
    }
}

/// What sixteen codes stand for.
#[inline(always)]
unsafe fn decode<V: F32x16, T: Float>(codes: *const u16, scale: V, bias: V, to: *mut T) {
    // SAFETY: sixteen codes are readable, and there is room for as many elements.
    unsafe {
        let code = V::from_int(V::widen(V::load_half(codes)));
        let product: V = T::round(code * scale);
        T::store(product + bias, to);
    }
}

#[inline(always)]
unsafe fn first<V: F32x16, T: Float>(from: *const T) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: one element is readable, and the lanes are sixteen.
    unsafe { T::load_first::<V>(from, 1).store(lanes.as_mut_ptr()) };
    lanes[0]
}

/// The least and the largest element that are no NaN.
#[inline(always)]
unsafe fn extremes<V: F32x16, T: Float>(x: *const T, count: usize) -> (f32, f32) {
    let none = V::splat(f32::NEG_INFINITY);
    let (mut least, mut most) = (none, none); // the former of the opposite numbers
    for at in (0..count).step_by(LANES) {
        // SAFETY: a group is whole blocks.
        let v: V = unsafe { T::load(x.add(at)) };
        let nan = v.is_nan();
        most = V::select(nan, none, v).max(most);
        least = V::select(nan, none, v.xor_bits(V::splat_int(i32::MIN))).max(least);
    }
    (-least.reduce_max(), most.reduce_max())
}

/// The bias is the extreme of larger magnitude, the scale such that zero has a code.
#[inline(always)]
fn scale_and_bias(low: f32, high: f32, top: f32) -> (f32, f32) {
    const LEAST: f32 = 1e-7;
    let below = low.abs() > high.abs();
    let range = (high - low) / top;
    let size = if range < LEAST { LEAST } else { range };
    let (scale, edge) = if below { (size, low) } else { (-size, high) };
    let steps = (edge / scale).round_ties_even();
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

struct Coder<V> {
    bias: V,
    opposite: V,
    inverse: V,
    top: V,
}

impl<V: F32x16> Coder<V> {
    /// The codes of a group.
    #[inline(always)]
    unsafe fn group<T: Float, const BITS: usize>(
        &self,
        x: *const T,
        shape: &QuantizeShape,
        words: *mut u32,
    ) {
        // SAFETY: the group is whole units of 32, whose codes are `bits` words each.
        unsafe {
            if BITS == 0 {
                for unit in 0..shape.group_size / UNIT {
                    let from = x.add(unit * UNIT);
                    let mut codes = [0u16; UNIT];
                    self.store(T::load(from), codes.as_mut_ptr());
                    self.store(T::load(from.add(LANES)), codes.as_mut_ptr().add(LANES));
                    pack(&codes, shape.bits, words.add(unit * shape.bits));
                }
            } else {
                // A vector at a time, which stays in registers.
                for block in 0..shape.group_size / LANES {
                    let mut codes = [0u16; LANES];
                    self.store(T::load(x.add(block * LANES)), codes.as_mut_ptr());
                    pack_block::<BITS>(&codes, words.cast::<u16>().add(block * BITS));
                }
            }
        }
    }

    /// The codes of sixteen elements; those of NaN are 0.
    #[inline(always)]
    unsafe fn store(&self, x: V, to: *mut u16) {
        let zero = V::splat(0.0);
        let x = x - self.bias;
        // One step from the product with the rounded inverse gives the rounded quotient
        // (Markstein 1990).
        let near = x * self.inverse;
        let quotient = near.mul_add(self.opposite, x).mul_add(self.inverse, near);
        let code = V::select(quotient.is_nan(), zero, quotient).round().max(zero);
        let code = self.top - (self.top - code).max(zero);
        // SAFETY: room for sixteen is the caller's promise.
        unsafe { V::store_half(V::narrow(code.to_int()), to) };
    }
}

/// Sixteen codes of 4 or 8 bits; bytes fill words from the low end.
///
/// # Safety
/// `to` has room for `BITS` times sixteen bits.
#[inline(always)]
unsafe fn pack_block<const BITS: usize>(codes: &[u16; LANES], to: *mut u16) {
    for (at, four) in codes.chunks_exact(4).enumerate() {
        let spread = u64::from(four[0])
            | u64::from(four[1]) << 16
            | u64::from(four[2]) << 32
            | u64::from(four[3]) << 48;
        // SAFETY: the fourth quarter ends where the room does.
        unsafe {
            if BITS == 4 {
                let pairs = (spread | spread >> 12) & 0x0000_00ff_0000_00ff;
                to.add(at).write_unaligned(((pairs | pairs >> 24) as u16).to_le());
            } else {
                let pairs = (spread | spread >> 8) & 0x0000_ffff_0000_ffff;
                let four = (pairs | pairs >> 16) as u32;
                to.cast::<u32>().add(at).write_unaligned(four.to_le());
            }
        }
    }
}

/// # Safety
/// As for [`pack_block`], readable.
#[inline(always)]
unsafe fn unpack_block<const BITS: usize>(from: *const u16) -> [u16; LANES] {
    let mut codes = [0u16; LANES];
    // SAFETY: as in `pack_block`.
    unsafe {
        if BITS == 4 {
            let bytes = from.cast::<[u8; LANES / 2]>().read();
            for (pair, byte) in codes.chunks_exact_mut(2).zip(bytes) {
                (pair[0], pair[1]) = (u16::from(byte & 15), u16::from(byte >> 4));
            }
        } else {
            let bytes = from.cast::<[u8; LANES]>().read();
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = u16::from(byte);
            }
        }
    }
    codes
}

/// Bytes of 32 codes, and room to touch eight at a time.
type Window = [u8; 4 * 8 + 8];

/// # Safety
/// `to` has room for `bits` words, at most 8.
#[inline(always)]
unsafe fn pack(codes: &[u16; UNIT], bits: usize, to: *mut u32) {
    let mut window: Window = [0; 40];
    for (at, eight) in codes.chunks_exact(8).enumerate() {
        let word = eight.iter().rev().fold(0, |word, code| word << bits | u64::from(*code));
        // SAFETY: eight codes are `bits` bytes, so the fourth write ends within the window.
        unsafe { window.as_mut_ptr().add(at * bits).cast::<u64>().write_unaligned(word.to_le()) };
    }
    // SAFETY: 32 codes fill `bits` words.
    unsafe { std::ptr::copy_nonoverlapping(window.as_ptr(), to.cast(), 4 * bits) };
}

/// # Safety
/// `bits` words, at most 8, are readable at `from`.
#[inline(always)]
unsafe fn unpack(from: *const u32, bits: usize) -> [u16; UNIT] {
    let mut window: Window = [0; 40];
    // SAFETY: 32 codes take `bits` words.
    unsafe { std::ptr::copy_nonoverlapping(from.cast(), window.as_mut_ptr(), 4 * bits) };
    let mut codes = [0u16; UNIT];
    for (at, eight) in codes.chunks_exact_mut(8).enumerate() {
        // SAFETY: as in `pack`.
        let word = unsafe { window.as_ptr().add(at * bits).cast::<u64>().read_unaligned() };
        let word = u64::from_le(word);
        for (i, code) in eight.iter_mut().enumerate() {
            *code = (word >> (i * bits) & ((1 << bits) - 1)) as u16;
        }
    }
    codes
}

#[cfg(test)]
mod tests;
