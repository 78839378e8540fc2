//! `x · W + residual` with W in MLX's packed layouts, as derivatives of `x · Wᵀ` need it: tiles of
//! W are decoded, with rows and columns exchanged, for the GEMM of `linear`.

use std::marker::PhantomData;

use super::call::{Mode, Weights};
use super::format::{Affine, Floats, Format, with_format};
use crate::Machine;
use crate::element::{Bf16, Element, Float, with_element};
use crate::linear::arithmetic::{Arithmetic, InBf16, InF32, paired};
use crate::linear::dense::Finish;
use crate::linear::gemm::{self, Extents, gemm};
use crate::simd::{F32x16, LANES};

/// One call. Buffers hold elements of `element` and are aligned to them.
#[repr(C)]
pub struct QuantizedTransposedCall {
    pub element: Element,
    pub mode: Mode,
    pub bits: u32,
    pub group: usize,
    /// `[rows, columns of the weights]`
    pub x: *const u8,
    pub rows: usize,
    /// Elements of a row of weights.
    pub axis: usize,
    pub weights: Weights,
    /// `[rows, axis]`, or null; may be `out`.
    pub residual: *const u8,
    /// `[rows, axis]`
    pub out: *mut u8,
}

/// Sums in f32, rounded to the element type, before the residual is added and after it.
///
/// # Safety
/// The buffers hold what the fields say, `out` overlaps nothing except `residual`, which it may be;
/// MLX supports the format.
pub unsafe fn quantized_transposed(call: &QuantizedTransposedCall) {
    // SAFETY: as the caller promises; the kernel runs on this machine.
    unsafe { quantized_transposed_on(Machine::current(), call) }
}

pub unsafe fn quantized_transposed_on(machine: Machine, call: &QuantizedTransposedCall) {
    if call.axis == 0 || call.rows == 0 {
        return;
    }
    with_element!(call.element, T => {
        // SAFETY: the caller's contract; if the element is bf16, `Bf16` is T.
        unsafe {
            if T::IS_BF16 && machine.level.packs_bf16() {
                run::<InBf16, Bf16>(machine, call);
            } else {
                run::<InF32, T>(machine, call);
            }
        }
    })
}

unsafe fn run<A: Arithmetic, T: Float>(machine: Machine, call: &QuantizedTransposedCall)
where
    for<'a> Turned<'a, T>: gemm::Weights<A>,
{
    let extents = Extents { m: call.rows, n: call.axis, k: call.weights.columns };
    let finish = Finish::<T> {
        out: call.out.cast(),
        columns: call.axis,
        bias: std::ptr::null(),
        activation: None,
        residual: call.residual.cast(),
    };
    let weights = Turned::<T> { call, element: PhantomData };
    // SAFETY: the caller's contract.
    unsafe { gemm::<A, T>(machine, extents, call.x.cast::<T>(), &weights, &finish) }
}

/// The weights as `[axis, columns]`.
struct Turned<'a, T> {
    call: &'a QuantizedTransposedCall,
    element: PhantomData<T>,
}

// SAFETY: only read.
unsafe impl<T> Sync for Turned<'_, T> {}

/// The room for the blocks of weights that sixteen elements from any place on belong to.
const BLOCKS: usize = 2 * LANES;

impl<T: Float> Turned<'_, T> {
    /// Decodes the blocks of sixteen weights that hold `rows` elements of a row of W from `at` on,
    /// to `to`; the first block begins at a multiple of sixteen.
    ///
    /// # Safety
    /// They exist.
    #[inline(always)]
    unsafe fn decode<V: F32x16, F: Format>(
        &self,
        column: usize,
        at: usize,
        rows: usize,
        to: *mut f32,
    ) {
        let &QuantizedTransposedCall { axis, group, ref weights, .. } = self.call;
        let first = V::splat_int(0);
        let start = at / LANES * LANES;
        for block in (start..at + rows).step_by(LANES) {
            // SAFETY: a block belongs to one group of one row.
            unsafe {
                let index = column * (axis / group) + block / group;
                let scale = F::scales::<V, T>(weights.scales, index, 1).permute(first);
                let packed = weights.packed.add((column * axis + block) * F::BITS as usize / 8);
                let numbers = F::in_order::<V>(packed);
                let numbers = if F::AFFINE {
                    let bias = T::load_first::<V>(weights.biases.cast::<T>().add(index), 1);
                    numbers.mul_add(scale, bias.permute(first))
                } else {
                    numbers * scale
                };
                numbers.store(to.add(block - start));
            }
        }
    }

    /// Sixteen elements of the exchanged weights from `row` on, `rows` of which exist, at `k`.
    ///
    /// # Safety
    /// They exist.
    #[inline(always)]
    unsafe fn column<V: F32x16, F: Format>(&self, row: usize, rows: usize, k: usize) -> V {
        let mut blocks = [0.0f32; BLOCKS];
        // SAFETY: the caller's contract; the blocks hold sixteen elements from `row` on.
        unsafe {
            self.decode::<V, F>(k, row, rows, blocks.as_mut_ptr());
            V::load(blocks.as_ptr().add(row % LANES))
        }
    }
}

impl<T: Float> gemm::Weights<InF32> for Turned<'_, T> {
    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut f32,
        stride: usize,
    ) {
        with_format!(self.call, F => for at in (0..len).step_by(LANES) {
            let count = LANES.min(len - at);
            let mut square = [V::splat(0.0); LANES];
            // SAFETY: the rows and elements exist and `out` has room for them, the caller says.
            unsafe {
                for (i, lanes) in square.iter_mut().enumerate().take(count) {
                    *lanes = self.column::<V, F>(row, rows, k + at + i);
                }
                let square = V::transpose(square);
                for (i, lanes) in square.into_iter().enumerate().take(rows) {
                    let to = out.add(i * stride + at);
                    match count {
                        LANES => lanes.store(to),
                        _ => lanes.store_first(to, count),
                    }
                }
            }
        })
    }
}

impl gemm::Weights<InBf16> for Turned<'_, Bf16> {
    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut u16,
        stride: usize,
    ) {
        with_format!(self.call, F => for at in (0..len).step_by(2 * LANES) {
            let count = (2 * LANES).min(len - at);
            let mut square = [V::splat(0.0); LANES];
            // SAFETY: the rows and elements exist and `out` has room for them, the caller says; a
            // tile has room for whole words.
            unsafe {
                for (i, words) in square.iter_mut().enumerate().take(count.div_ceil(2)) {
                    let at = k + at + 2 * i;
                    let low: V = self.column::<V, F>(row, rows, at);
                    let high = match 2 * i + 1 < count {
                        true => self.column::<V, F>(row, rows, at + 1),
                        false => V::splat(0.0),
                    };
                    *words = paired(low.to_bf16(), high.to_bf16());
                }
                let square = V::transpose(square);
                for (i, words) in square.into_iter().enumerate().take(rows) {
                    let to = out.add(i * stride + at).cast();
                    match count.div_ceil(2) {
                        LANES => words.store(to),
                        words_left => words.store_first(to, words_left),
                    }
                }
            }
        })
    }
}
