//! Products with the rows of a prompt: weights are decoded tile by tile for the GEMM of `linear`.

use std::marker::PhantomData;

use super::finish::{Finish, swiglu};
use super::format::{Affine, Floats, Format};
#[cfg(target_arch = "x86_64")]
use super::unpack;
use super::{Call, Join, Mode, with_format};
use crate::Machine;
use crate::element::{Bf16, Float};
use crate::linear::arithmetic::{Arithmetic, InBf16, InF32};
use crate::linear::dense::Dense;
use crate::linear::gemm::{Epilogue, Extents, Weights, multiply};
use crate::linear::gemv::gemv;
use crate::linear::interleaved::interleaved;
use crate::linear::workspace;
use crate::rms_norm::rms_norm_on;
use crate::simd::{F32x16, LANES, prefetch_far};

/// # Safety
/// The contract of [`super::quantized_matmul`].
pub(super) unsafe fn run<T: Float>(machine: Machine, call: &Call) {
    // SAFETY: the caller's contract; if the element is bf16, `Bf16` is T.
    unsafe {
        if T::IS_BF16 && machine.level.packs_bf16() {
            products::<InBf16, Bf16>(machine, call);
        } else {
            products::<InF32, T>(machine, call);
        }
    }
}

/// # Safety
/// The contract of [`run`].
unsafe fn products<A: Arithmetic, T: Float>(machine: Machine, call: &Call)
where
    for<'a> Packed<'a, T>: Weights<A>,
    Dense<T>: Weights<A>,
{
    // SAFETY: the caller's contract; the products are this call's.
    unsafe {
        normalized::<T>(machine, call, &|x| {
            interleaved::<A, T>(machine, [call.rows, call.axis], (x, false), &|x| {
                let finish = Finish::<T>::of_prompt(machine, call, x);
                each_product(call, &finish, |weights, epilogue| {
                    let n = weights.columns;
                    if call.mode == Mode::Plain {
                        let extents = Extents { m: call.rows, n, k: call.axis };
                        let w = Dense::<T> { w: weights.packed.cast(), extents, columns: false };
                        multiply(machine, x, n, &w, epilogue);
                    } else {
                        let w = Packed::<T> { call, weights, element: PhantomData };
                        multiply(machine, x, n, &w, epilogue);
                    }
                });
            });
        });
    }
}

/// Calls `body` with x, normalized if the call says so.
///
/// # Safety
/// The contract of [`run`].
pub(super) unsafe fn normalized<T: Float>(machine: Machine, call: &Call, body: &dyn Fn(*const T)) {
    let (x, rows, axis) = (call.x.cast::<T>(), call.rows, call.axis);
    let Some(norm) = call.norm else { return body(x) };
    workspace::with((rows * axis * size_of::<T>()).div_ceil(size_of::<f32>()), &|to| {
        let to = to.cast::<T>();
        // SAFETY: the caller's contract; the workspace has room for the elements.
        unsafe { rms_norm_on::<T>(machine, x, norm.weight.cast(), to, rows, axis, norm.eps) };
        body(to);
    });
}

/// Calls `multiply` with each matrix of the call and the epilogue of its product.
pub(super) fn each_product<T: Float>(
    call: &Call,
    finish: &Finish<T>,
    mut multiply: impl FnMut(&super::Weights, &Columns<T>),
) {
    let mut first = 0;
    for (index, weights) in call.weights.iter().enumerate() {
        let step = match (call.join, index) {
            (Join::Concatenate, _) => Step::Finish,
            (Join::Swiglu, 0) => Step::KeepGate,
            (Join::Swiglu, _) => Step::Swiglu,
        };
        multiply(weights, &Columns { finish, first, step });
        if call.join == Join::Concatenate {
            first += weights.columns;
        }
    }
}

/// Multiplies tokens with one plain matrix.
///
/// # Safety
/// The contract of [`run`]; the mode is plain.
pub(super) unsafe fn run_plain_tokens<T: Float>(machine: Machine, call: &Call) {
    let Some(weights) = call.weights.first() else { return };
    let extents = Extents { m: call.rows, n: weights.columns, k: call.axis };
    // SAFETY: the caller's contract.
    unsafe {
        let finish = Finish::<T>::new(machine, call);
        let epilogue = Columns { finish: &finish, first: 0, step: Step::Finish };
        gemv(machine, extents, call.x.cast::<T>(), weights.packed.cast(), &epilogue);
    }
}

/// The step after one product.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Finish,
    /// Stores the rounded product in place of the result, where [`Step::Swiglu`] reads it.
    KeepGate,
    Swiglu,
}

pub(super) struct Columns<'a, T> {
    finish: &'a Finish<'a, T>,
    /// The column of the result for the product's first column.
    first: usize,
    step: Step,
}

impl<T: Float> Epilogue for Columns<'_, T> {
    #[inline(always)]
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize) {
        let at = self.first + column;
        let mut y = T::round(sums);
        let place = self.finish.place(row, at);
        // SAFETY: the outputs exist; each has one thread at a time.
        unsafe {
            match self.step {
                Step::Finish => {}
                Step::KeepGate => return T::store_first(y, place, count),
                Step::Swiglu => y = swiglu::<V, T>(T::load_first(place, count), y),
            }
            self.finish.write(y, row, at, count);
        }
    }
}

/// One matrix of a call.
struct Packed<'a, T> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
    element: PhantomData<T>,
}

// SAFETY: only read.
unsafe impl<T> Sync for Packed<'_, T> {}

impl<T: Float> Packed<'_, T> {
    /// The addresses of the weights, scale and bias of a row at `k`, which begins a group.
    #[inline(always)]
    fn at<F: Format>(&self, row: usize, k: usize) -> (*const u8, *const u8, *const T) {
        let Call { axis, group, .. } = *self.call;
        let scale_bytes = if F::AFFINE { size_of::<T>() } else { 1 };
        let index = row * (axis / group) + k / group;
        (
            self.weights.packed.wrapping_add((row * axis + k) * F::BITS as usize / 8),
            self.weights.scales.wrapping_add(index * scale_bytes),
            self.weights.biases.cast::<T>().wrapping_add(index),
        )
    }

    /// Writes the weights `k..k + len` of a row, as bf16 or as f32.
    ///
    /// # Safety
    /// They exist and `out` has room for them.
    #[inline(always)]
    unsafe fn decode<V: F32x16, F: Format, const HALF: bool>(
        &self,
        row: usize,
        k: usize,
        len: usize,
        out: *mut u8,
    ) {
        let (packed, scales, biases) = self.at::<F>(row, k);
        let group = self.call.group;
        let first = V::splat_int(0);
        for start in (0..len).step_by(group) {
            let index = start / group;
            // SAFETY: the group and its weights belong to this row. A group begins at `k`, and
            // `len` covers whole groups.
            unsafe {
                let scale = F::scales::<V, T>(scales, index, 1).permute(first);
                let bias = if F::AFFINE {
                    T::load_first::<V>(biases.add(index), 1).permute(first)
                } else {
                    V::splat(0.0)
                };
                for at in (start..start + group).step_by(LANES) {
                    let weights = F::in_order::<V>(packed.add(at * F::BITS as usize / 8));
                    let weights = weights.mul_add(scale, bias);
                    if HALF {
                        V::store_half(weights.to_bf16(), out.cast::<u16>().add(at));
                    } else {
                        weights.store(out.cast::<f32>().add(at));
                    }
                }
            }
        }
    }
}

impl<T: Float> Weights<InF32> for Packed<'_, T> {
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
        with_format!(self.call, F => for i in 0..rows {
            // SAFETY: the rows and elements exist and `out` has room for them, the caller says.
            unsafe {
                self.decode::<V, F, false>(row + i, k, len, out.add(i * stride).cast());
            }
        })
    }
}

impl Weights<InBf16> for Packed<'_, Bf16> {
    #[inline(always)]
    fn prefetch(&self, row: usize, k: usize, len: usize) {
        with_format!(self.call, F => {
            let (packed, scales, biases) = self.at::<F>(row, k);
            let len = len.min(self.call.axis.saturating_sub(k));
            prefetch_far(packed, len * F::BITS as usize / 8);
            prefetch_far(scales, 1);
            prefetch_far(biases.cast(), 1);
        })
    }

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
        with_format!(self.call, F => for i in 0..rows {
            #[cfg(target_arch = "x86_64")]
            if V::DOTS_BF16 && unpack::unpacks::<F>() {
                let (packed, scales, biases) = self.at::<F>(row + i, k);
                let (group, groups) = (self.call.group, len / self.call.group);
                // SAFETY: the caller ensures that the rows and elements exist and that `out` has
                // room for them; this machine has AVX512_BF16.
                unsafe {
                    let out = out.add(i * stride);
                    unpack::unpack::<V, F>(packed, scales, biases, group, groups, out);
                }
                continue;
            }
            // SAFETY: as above.
            unsafe {
                self.decode::<V, F, true>(row + i, k, len, out.add(i * stride).cast());
            }
        })
    }
}
