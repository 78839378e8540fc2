//! MLX's affine quantization: each group of a row becomes small integers, a scale and a bias.
//!
//! The packed words are a little-endian stream of codes, so 32 codes of `bits` bits always take
//! `bits` words.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QuantizeShape {
    pub groups: usize,
    /// The number of elements in a group, a multiple of 32.
    pub group_size: usize,
    /// The number of bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
}

impl QuantizeShape {
    pub fn words(&self) -> usize {
        self.group_size / UNIT * self.bits
    }
}

/// This number of codes fills a whole number of 32-bit words, for any number of bits.
const UNIT: usize = 32;

/// Runs `$run` with the number of bits of a code as a constant. Does nothing for an unknown number.
macro_rules! with_bits {
    ($bits:expr, $name:ident => $run:expr) => {
        with_bits!(@ $bits, $name => $run, 2 3 4 5 6 8)
    };
    (@ $bits:expr, $name:ident => $run:expr, $($width:literal)*) => {
        match $bits {
            $($width => {
                const $name: usize = $width;
                $run
            })*
            _ => {}
        }
    };
}

/// Quantizes groups. The results equal `mx.quantize` on MLX's CPU backend bit for bit.
///
/// # Safety
/// `x` holds `groups * group_size` elements, `packed` holds the words of their codes, and `scales`
/// and `biases` hold one element for each group. All are aligned to their element type. No two
/// buffers overlap.
pub unsafe fn quantize(
    element: Element,
    x: *const u8,
    packed: *mut u32,
    scales: *mut u8,
    biases: *mut u8,
    shape: &QuantizeShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        quantize_on::<T>(machine, x.cast(), packed, scales.cast(), biases.cast(), shape)
    })
}

/// Dequantizes groups. The results equal `mx.dequantize` on MLX's CPU backend bit for bit: the
/// product is rounded to the type, then the sum.
///
/// # Safety
/// The contract of [`quantize`] holds, with `out` in place of `x`.
pub unsafe fn dequantize(
    element: Element,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    out: *mut u8,
    shape: &QuantizeShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        dequantize_on::<T>(machine, packed, scales.cast(), biases.cast(), None, out.cast(), shape)
    })
}

/// The rows of a matrix that [`dequantize_rows`] writes one after another.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TakenRows {
    /// For each row of the result, the number of a row of the matrix. Numbers beyond the matrix
    /// select its last row.
    pub ids: *const u32,
    /// The number of rows of the matrix, at least one.
    pub rows: usize,
    /// The number of groups in a row, at least one.
    pub columns: usize,
}

// SAFETY: the numbers are only read.
unsafe impl Sync for TakenRows {}

impl TakenRows {
    /// The group of the matrix that becomes group `at` of the result.
    ///
    /// # Safety
    /// `ids` has a number for the row of this group.
    #[inline(always)]
    unsafe fn group(&self, at: usize) -> usize {
        // SAFETY: the caller's contract.
        let id = unsafe { *self.ids.add(at / self.columns) } as usize;
        id.min(self.rows - 1) * self.columns + at % self.columns
    }
}

/// Dequantizes the rows that `taken` selects, with the same results as [`dequantize`].
///
/// # Safety
/// `packed`, `scales` and `biases` hold the rows of the matrix, as [`dequantize`] requires. `out`
/// has room for one row for each number in `taken`; the shape counts the groups of these rows.
pub unsafe fn dequantize_rows(
    element: Element,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    taken: TakenRows,
    out: *mut u8,
    shape: &QuantizeShape,
) {
    let (machine, taken) = (Machine::current(), Some(&taken));
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        dequantize_on::<T>(machine, packed, scales.cast(), biases.cast(), taken, out.cast(), shape)
    })
}

pub unsafe fn quantize_on<T: Float>(
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
        unsafe { with_bits!(shape.bits, BITS => machine.level.run(Quantize::<T, BITS>(call))) }
    });
}

pub unsafe fn dequantize_on<T: Float>(
    machine: Machine,
    packed: *const u32,
    scales: *const T,
    biases: *const T,
    taken: Option<&TakenRows>,
    out: *mut T,
    shape: &QuantizeShape,
) {
    let packed = Shared(packed.cast_mut());
    let to = Output::new(out, &[], shape.groups * shape.group_size, shape.group_size);
    let out = Shared(out);
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
            with_bits!(shape.bits, BITS => {
                machine.level.run(Dequantize::<T, BITS>(call, taken, to));
            })
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

struct Quantize<'a, T, const BITS: usize>(Groups<'a, T>);
struct Dequantize<'a, T, const BITS: usize>(Groups<'a, T>, Option<&'a TakenRows>, Output<T>);

impl<T: Float, const BITS: usize> Kernel for Quantize<'_, T, BITS> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Groups { elements, packed, ref groups, shape, .. } = self.0;
        let top = ((1 << BITS) - 1) as f32;
        // Process sixteen groups at a time and compute their scales together.
        for first in groups.clone().step_by(LANES) {
            let count = LANES.min(groups.end - first);
            let mut found = Found::default();
            // SAFETY: the groups lie within each buffer, and consist of units of 32 elements.
            unsafe {
                V::part(Scales { call: &self.0, first, count, top, found: &mut found });
                for i in 0..count {
                    let coder = Coder {
                        bias: V::splat(found.bias[i]),
                        opposite: V::splat(-found.scale[i]),
                        inverse: V::splat(1.0 / found.scale[i]),
                        top: V::splat(top),
                    };
                    let x = elements.add((first + i) * shape.group_size);
                    let words = packed.add((first + i) * shape.words()).cast::<u8>();
                    for block in 0..shape.group_size / LANES {
                        let from = x.add(block * LANES);
                        prefetch_block(from.wrapping_add(LANES * shape.group_size)); // read next
                        let codes = coder.codes(T::load(from));
                        V::store_stream::<BITS>(codes, words.add(block * 2 * BITS));
                    }
                }
            }
        }
    }
}

/// The scales and biases of sixteen groups.
#[derive(Default)]
struct Found {
    scale: [f32; LANES],
    bias: [f32; LANES],
}

/// Finds and writes the scales and biases of `count` groups from `first` on.
struct Scales<'a, T> {
    call: &'a Groups<'a, T>,
    first: usize,
    count: usize,
    /// The largest code.
    top: f32,
    found: &'a mut Found,
}

impl<T: Float> Kernel for Scales<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { call, first, count, top, found: Found { scale, bias } } = self;
        let none = V::splat(f32::NEG_INFINITY);
        let (mut least, mut most) = ([none; LANES], [none; LANES]);
        let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: the groups lie within each buffer.
        unsafe {
            for i in 0..count {
                let x = call.elements.add((first + i) * call.shape.group_size);
                (least[i], most[i]) = extremes::<V, T>(x, call.shape.group_size);
            }
            V::reduce_max_each(least).store(low.as_mut_ptr());
            V::reduce_max_each(most).store(high.as_mut_ptr());
            for i in 0..LANES {
                (scale[i], bias[i]) = scale_and_bias(-low[i], high[i], top);
            }
            T::store_first(V::load(scale.as_ptr()), call.scales.add(first), count);
            T::store_first(V::load(bias.as_ptr()), call.biases.add(first), count);
        }
    }
}

impl<T: Float, const BITS: usize> Kernel for Dequantize<'_, T, BITS> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Groups { packed, scales, biases, groups, shape, .. } = self.0;
        for group in groups {
            // SAFETY: as in `Quantize`, and `taken` has a number for each row.
            unsafe {
                let out = self.2.add(group * shape.group_size);
                let group = self.1.map_or(group, |taken| taken.group(group));
                let bytes = packed.add(group * shape.words()).cast::<u8>();
                let scale = V::splat((*scales.add(group)).to_float());
                let bias = V::splat((*biases.add(group)).to_float());
                for block in 0..shape.group_size / LANES {
                    let from = bytes.add(block * 2 * BITS);
                    let code: V = match BITS {
                        4 => V::from_nibbles(from),
                        8 => V::from_bytes(from),
                        _ => {
                            let mask = V::splat_int((1 << BITS) - 1);
                            V::from_int(V::and_int(V::load_stream::<BITS>(from), mask))
                        }
                    };
                    out.put(T::round(code * scale) + bias, block * LANES);
                }
            }
        }
    }
}

/// Finds the extremes of a group, ignoring NaN, as two blocks. The maximum of the first block is
/// the negated smallest element, and the maximum of the second block is the largest element.
#[inline(always)]
unsafe fn extremes<V: F32x16, T: Float>(x: *const T, count: usize) -> (V, V) {
    let none = V::splat(f32::NEG_INFINITY);
    let (mut least, mut most) = (none, none);
    for at in (0..count).step_by(LANES) {
        // SAFETY: a group consists of full blocks.
        let v: V = unsafe { T::load(x.add(at)) };
        most = v.max_or(most);
        least = v.xor_bits(V::splat_int(i32::MIN)).max_or(least);
    }
    (least, most)
}

/// Computes the scale and the bias of a group. The bias is the extreme with the larger magnitude,
/// or 0 if the magnitude of this extreme is at most half of `LEAST`. The scale is chosen so that
/// zero has a code.
#[inline(always)]
pub fn scale_and_bias(low: f32, high: f32, top: f32) -> (f32, f32) {
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
    /// The codes of sixteen elements. NaN has the code 0.
    #[inline(always)]
    fn codes(&self, x: V) -> V::Int {
        let x = x - self.bias;
        // One correction of the product with the rounded inverse gives the correctly rounded
        // quotient (Markstein 1990).
        let near = x * self.inverse;
        let quotient = near.mul_add(self.opposite, x).mul_add(self.inverse, near);
        quotient.max_or(V::splat(0.0)).round().min(self.top).to_int()
    }
}
