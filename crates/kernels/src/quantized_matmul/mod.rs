//! `x · Wᵀ` with W in MLX's packed layouts. Weights are read in place, and decoded a few at a time
//! in registers or into a small buffer. Groups of weights in a row share a scale and a bias. With
//! few rows of x, the scale multiplies the group's part of the sum, and the bias multiplies the sum
//! of the group's inputs.

#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod bands;
mod call;
mod columns;
mod digits;
mod dot;
mod few;
mod finish;
mod format;
pub mod int8;
pub mod k_quant;
mod lanes;
mod operands;
mod order;
mod pieces;
mod prefill;
mod prepare;
mod transposed;
#[cfg(target_arch = "x86_64")]
mod unpack;

use std::marker::PhantomData;

use super::Machine;
use super::element::{Element, Float, with_element};
use super::linear::together::BAND;
use super::simd::{F32x16, Kernel, LANES, Level};
use call::Order;
pub use call::{Call, Join, LowRank, Mode, Norm, Weights};
use columns::Columns;
use finish::Finish;
use format::{Affine, Floats, Format, with_format};
use order::each_range;
pub use transposed::{QuantizedTransposedCall, quantized_transposed, quantized_transposed_on};

/// Multiplies x with packed weights. Products accumulate in f32. Results are rounded to the element
/// type where MLX's separate ops round: the normalized x, the product, and each step after it.
///
/// # Safety
/// The buffers have the contents that the fields describe; `out` may be `residual`, and overlaps no
/// other buffer; MLX supports `bits` and `group`.
pub unsafe fn quantized_matmul(call: &Call) {
    // SAFETY: the caller's contract; this CPU has the instruction set of the current machine.
    unsafe { quantized_matmul_on(Machine::current(), call) }
}

pub unsafe fn quantized_matmul_on(machine: Machine, call: &Call) {
    if call.axis == 0 || call.rows == 0 {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        if call.int8 && with_element!(call.element, T => int8::takes::<T>(machine, call)) {
            with_element!(call.element, T => int8::run::<T>(machine, call))
        } else if !call.of_tokens() {
            if pieces::takes(machine, call) {
                return pieces::run(machine, call);
            }
            with_element!(call.element, T => match few::takes::<T>(machine, call) {
                true => few::run::<T>(machine, call),
                false => prefill::run::<T>(machine, call),
            })
        } else if call.mode == Mode::Plain {
            with_element!(call.element, T => prefill::run_plain_tokens::<T>(machine, call))
        } else {
            with_format!(call, F => run::<F>(machine, call))
        }
    }
}

unsafe fn run<F: Format>(machine: Machine, call: &Call) {
    // SAFETY: the caller's contract.
    let finish = &with_element!(call.element, T => unsafe { Finish::new::<T>(machine, call) });
    // Products in integers (`digits`) read 16-bit scales. A scale of K-quants, a float of 16 bits
    // times an integer, would lose bits in 16 bits.
    let blocks = call.mode == Mode::KQuant;
    if !blocks && digits::takes(machine, call) {
        // SAFETY: the caller's contract.
        let done = with_element!(call.element, T => unsafe {
            if const { digits::support::<T, F>() } {
                in_digits::<T, F>(machine, call, finish)
            } else {
                None
            }
        });
        match done {
            Some(true) => return,
            // Multiply each row alone, so that the order of its sums does not depend on other rows.
            Some(false) if call.rows > 1 => {
                for row in 0..call.rows {
                    // SAFETY: the caller's contract.
                    unsafe { quantized_matmul_on(machine, &call.token(row)) };
                }
                return;
            }
            _ => {}
        }
    }
    let half = call.element == Element::BF16 && machine.level.dots_bf16() && !blocks;
    // A band is a group of rows of x whose cache lines alternate in memory. Portable code
    // (`Level::Scalar`) multiplies one row at a time, so it uses no bands. Products of bf16 pairs
    // (`half`) use no bands if there are at most four rows, which share each row of weights while
    // it is decoded in registers, or if four rows fit in the first-level cache. With AVX2, sixteen
    // rows of weights are multiplied with one row of x after the other if there are two: on a Zen
    // 3, this takes 0.7 to 0.85 of the time with weights of four and eight bits.
    let small = matches!(machine.level, Level::Scalar | Level::ScalarTiles);
    let near = call.rows <= 4 || call.axis <= 2048;
    let two = machine.level.is_avx2() && call.rows <= 2;
    let band = if small || two || half && near { 1 } else { BAND };
    let order = if half {
        // With lanes of sixteen bits, there are twice as many lanes, each with half the weights.
        Order { lanes: 2 * LANES, per_lane: F::PER_LANE / 2, half, bits: 0, band }
    } else {
        let bits = if F::AFFINE { F::BITS } else { 0 };
        Order { lanes: LANES, per_lane: F::PER_LANE, half, bits, band }
    };
    // SAFETY: the caller's contract.
    let prepared = &with_element!(call.element, T => unsafe {
        prepare::prepare::<T>(machine, call, order)
    });
    each_range(machine, call, F::BITS as usize, &|range| {
        let columns = Columns { call, prepared, finish, range };
        // SAFETY: the caller's contract; the ranges of columns are disjoint.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if half {
                return avx512bf16::run::<F>(columns);
            }
            machine.level.run(Decoded::<F> { columns, format: PhantomData });
        }
    });
}

/// Multiplies in integers and returns `Some(true)`. Returns `Some(false)` without a result if
/// integers cannot express an element of x.
///
/// # Safety
/// The contract of [`quantized_matmul`]; [`digits::takes`] and [`digits::support`] hold.
unsafe fn in_digits<T: Float, F: Format>(
    machine: Machine,
    call: &Call,
    finish: &Finish,
) -> Option<bool> {
    // SAFETY: the caller's contract.
    let prepared = unsafe { digits::prepare::<T, F>(machine, call) };
    let Some(prepared) = &prepared else { return Some(false) };
    each_range(machine, call, F::BITS as usize, &|range| {
        let columns = Columns { call, prepared, finish, range };
        let kernel = InDigits::<T, F> { columns, format: PhantomData };
        // SAFETY: the caller's contract; the ranges of columns are disjoint.
        unsafe { machine.level.run(kernel) };
    });
    Some(true)
}

/// Decodes the weights to f32 and computes the columns. The code works on every instruction set.
struct Decoded<'a, F> {
    columns: Columns<'a>,
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Decoded<'_, F> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe { self.columns.run::<V, dot::Decode<F>>() }
    }
}

/// Computes the columns in integers.
struct InDigits<'a, T, F> {
    columns: Columns<'a>,
    format: PhantomData<(T, F)>,
}

impl<T: Float, F: Format> Kernel for InDigits<'_, T, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract; the CPU supports products of digits.
        unsafe {
            let several = self.columns.call.rows > 1;
            if several {
                V::begin_tiles(digits::tile(self.columns.call));
            }
            self.columns.run_by::<V>(digits::kind::<V, T, F>());
            if several {
                V::end_tiles();
            }
        }
    }
}
