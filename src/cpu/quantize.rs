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
        for group in groups {
            // SAFETY: the group lies within each buffer, in whole units of 32.
            unsafe {
                let x = elements.add(group * shape.group_size);
                let (low, high) = extremes::<V, T>(x, shape.group_size);
                let (scale, bias) = scale_and_bias(low, high, top);
                T::store_first(V::splat(scale), scales.add(group), 1);
                T::store_first(V::splat(bias), biases.add(group), 1);
                let coder = Coder {
                    bias: V::splat(bias),
                    opposite: V::splat(-scale),
                    inverse: V::splat(1.0 / scale),
                    top: V::splat(top),
                };
                let words = packed.add(group * shape.words());
                for unit in 0..shape.group_size / UNIT {
                    let from = x.add(unit * UNIT);
                    let mut codes = [0u16; UNIT];
                    coder.store(T::load(from), codes.as_mut_ptr());
                    coder.store(T::load(from.add(LANES)), codes.as_mut_ptr().add(LANES));
                    pack(&codes, bits, words.add(unit * bits));
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
                for unit in 0..shape.group_size / UNIT {
                    let codes = unpack(words.add(unit * bits), bits);
                    for half in [0, LANES] {
                        let code = V::widen(V::load_half(codes.as_ptr().add(half)));
                        let product: V = T::round(V::from_int(code) * scale);
                        T::store(product + bias, out.add(unit * UNIT + half));
                    }
                }
            }
        }
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

/// # Safety
/// `to` has room for `bits` words.
#[inline(always)]
unsafe fn pack(codes: &[u16; UNIT], bits: usize, to: *mut u32) {
    // SAFETY: each form writes `bits` words, and bytes fill words from the low end.
    unsafe {
        match bits {
            8 => to.cast::<[u8; 32]>().write(codes.map(|code| code as u8)),
            4 => {
                let mut bytes = [0u8; 16];
                for (byte, pair) in bytes.iter_mut().zip(codes.chunks_exact(2)) {
                    *byte = (pair[0] | pair[1] << 4) as u8;
                }
                to.cast::<[u8; 16]>().write(bytes);
            }
            _ => {
                let (mut word, mut filled, mut at) = (0u64, 0, 0);
                for code in codes {
                    word |= u64::from(*code) << filled;
                    filled += bits;
                    if filled >= 32 {
                        to.add(at).write((word as u32).to_le());
                        (word, filled, at) = (word >> 32, filled - 32, at + 1);
                    }
                }
            }
        }
    }
}

/// # Safety
/// `bits` words are readable at `from`.
#[inline(always)]
unsafe fn unpack(from: *const u32, bits: usize) -> [u16; UNIT] {
    let mut codes = [0u16; UNIT];
    // SAFETY: each form reads `bits` words.
    unsafe {
        match bits {
            8 => codes = from.cast::<[u8; 32]>().read().map(u16::from),
            4 => {
                let bytes = from.cast::<[u8; 16]>().read();
                for (pair, byte) in codes.chunks_exact_mut(2).zip(bytes) {
                    (pair[0], pair[1]) = (u16::from(byte & 15), u16::from(byte >> 4));
                }
            }
            _ => {
                let (mut word, mut filled, mut at) = (0u64, 0, 0);
                for code in &mut codes {
                    if filled < bits {
                        word |= u64::from(u32::from_le(from.add(at).read())) << filled;
                        (filled, at) = (filled + 32, at + 1);
                    }
                    *code = (word & ((1 << bits) - 1)) as u16;
                    (word, filled) = (word >> bits, filled - bits);
                }
            }
        }
    }
    codes
}

#[cfg(test)]
mod tests;
