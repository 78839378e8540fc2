//! Products with the rows of a prompt: weights are decoded tile by tile for the GEMM of `linear`.

use std::marker::PhantomData;
use std::ops::Range;

use super::finish::{Finish, swiglu};
use super::format::{Affine, Floats, Format, Scales};
use super::k_quant::{Blocks, Part};
#[cfg(target_arch = "x86_64")]
use super::unpack;
use super::{Call, Join, Mode, with_format};
use crate::Machine;
use crate::element::{Bf16, Element, Float};
use crate::linear::arithmetic::{Arithmetic, InBf16, InF32};
use crate::linear::dense::Dense;
use crate::linear::gemm::{Epilogue, Extents, Weights, multiply};
use crate::linear::gemv::gemv;
use crate::linear::interleaved::interleaved;
use crate::linear::workspace;
use crate::rms_norm::rms_norm_on;
use crate::simd::{F32x16, LANES, prefetch_far};

/// # Safety
/// The contract of [`super::quantized_matmul`] holds.
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
/// The contract of [`run`] holds.
unsafe fn products<A: Arithmetic, T: Float>(machine: Machine, call: &Call)
where
    for<'a> Packed<'a>: Weights<A>,
    Dense<T>: Weights<A>,
{
    // SAFETY: the caller's contract; the products belong to this call.
    unsafe {
        normalized::<T>(machine, call, &|x| {
            interleaved::<A, T>(machine, [call.rows, call.axis], x, &|x| {
                let finish = Finish::of_prompt::<A, T>(machine, call, x);
                each_product::<T>(call, &finish, |weights, epilogue| {
                    let n = weights.columns;
                    if call.mode == Mode::Plain {
                        let extents = Extents { m: call.rows, n, k: call.axis };
                        let w = Dense::<T> { w: weights.packed.cast(), extents, columns: false };
                        multiply(machine, x, n, &w, epilogue);
                    } else {
                        multiply(machine, x, n, &Packed { call, weights }, epilogue);
                    }
                });
            });
        });
    }
}

/// Calls `body` with x, which is normalized first if the call has a norm.
///
/// # Safety
/// The contract of [`run`] holds.
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
    finish: &Finish,
    mut multiply: impl FnMut(&super::Weights, &Columns<T>),
) {
    let mut first = 0;
    for (index, weights) in call.weights.iter().enumerate() {
        let step = match (call.join, index) {
            (Join::Concatenate, _) => Step::Finish,
            (Join::Swiglu, 0) => Step::KeepGate,
            (Join::Swiglu, _) => Step::Swiglu,
        };
        multiply(weights, &Columns { finish, first, step, element: PhantomData });
        if call.join == Join::Concatenate {
            first += weights.columns;
        }
    }
}

/// Multiplies x with one matrix that is not packed, in the order `RowOrder::Tokens`.
///
/// # Safety
/// The contract of [`run`]; the mode is plain.
pub(super) unsafe fn run_plain_tokens<T: Float>(machine: Machine, call: &Call) {
    let Some(weights) = call.weights.first() else { return };
    let extents = Extents { m: call.rows, n: weights.columns, k: call.axis };
    // SAFETY: the caller's contract.
    unsafe {
        let finish = Finish::new::<T>(machine, call);
        let (finish, step) = (&finish, Step::Finish);
        let epilogue = Columns::<T> { finish, first: 0, step, element: PhantomData };
        gemv(machine, extents, call.x.cast::<T>(), weights.packed.cast::<T>(), &epilogue);
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
    finish: &'a Finish<'a>,
    /// The column of the result that receives the product's first column.
    first: usize,
    step: Step,
    element: PhantomData<T>,
}

// SAFETY: as for `Finish`.
unsafe impl<T> Sync for Columns<'_, T> {}

impl<T: Float> Epilogue for Columns<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize) {
        let at = self.first + column;
        let mut y = T::round(sums);
        let place = self.finish.place::<T>(row, at);
        // SAFETY: the outputs exist; one thread at a time accesses each output.
        unsafe {
            match self.step {
                Step::Finish => {}
                Step::KeepGate => return T::store_first(y, place, count),
                Step::Swiglu => y = swiglu::<V, T>(T::load_first(place, count), y),
            }
            self.finish.write::<V, T>(y, row, at, count);
        }
    }
}

/// One packed matrix of a call.
struct Packed<'a> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
}

// SAFETY: only read.
unsafe impl Sync for Packed<'_> {}

impl Packed<'_> {
    /// The addresses of the weights of a row from `k` on, where a group begins, and of their
    /// scales. The factors are bf16 (`HALF`) or f32. For K-quants, the second address is the
    /// address of a block.
    #[inline(always)]
    fn at<F: Format, const HALF: bool>(&self, row: usize, k: usize) -> (*const u8, Scales) {
        let Call { axis, group, .. } = *self.call;
        // `HALF` is set only if the call's element is bf16.
        let element = if HALF { Element::BF16 } else { self.call.of_scales };
        let at = match Blocks::of_call(self.call) {
            Some(_) => Blocks::bytes(row * axis + k),
            None => {
                (row * (axis / group) + k / group) * if F::AFFINE { element.bytes() } else { 1 }
            }
        };
        let super::Weights { packed, scales, biases, .. } = *self.weights;
        let (scales, biases) = (scales.wrapping_add(at), biases.wrapping_add(at));
        let packed = packed.wrapping_add((row * axis + k) * F::BITS as usize / 8);
        (packed, Scales { element, scales, biases })
    }

    /// Prefetches the elements `k..k + len` of rows, which need not exist. The code for all
    /// instruction sets shares this function.
    #[inline(never)]
    fn ask_for<const HALF: bool>(&self, rows: Range<usize>, k: usize, len: usize) {
        let len = len.min(self.call.axis.saturating_sub(k));
        with_format!(self.call, F => for row in rows {
            let (packed, Scales { scales, biases, .. }) = self.at::<F, HALF>(row, k);
            prefetch_far(packed, len * F::BITS as usize / 8);
            prefetch_far(scales, 1);
            prefetch_far(biases, 1);
        })
    }

    /// Returns the address of `groups` groups of weights of a row, from `k` on, and the addresses
    /// of their scales and biases, which are written out in `part`.
    ///
    /// # Safety
    /// The weights exist.
    #[inline(always)]
    unsafe fn part<V: F32x16, F: Format, const HALF: bool>(
        &self,
        row: usize,
        k: usize,
        groups: usize,
        part: &mut Part,
    ) -> (*const u8, [*const f32; 2]) {
        let (packed, scales) = self.at::<F, HALF>(row, k);
        // SAFETY: the caller's contract; `part` has room for the weights of a tile.
        let of_groups = unsafe {
            match Blocks::of_call(self.call) {
                Some(blocks) if F::IN_BLOCKS => {
                    part.of::<V>(blocks, scales.scales, groups * self.call.group)
                }
                _ => part.of_groups::<V, F>(&scales, groups),
            }
        };
        (packed, of_groups)
    }

    /// Writes the weights `k..k + len` of a row, as bf16 or as f32.
    ///
    /// # Safety
    /// The weights exist, and `out` has room for them.
    #[inline(always)]
    unsafe fn decode<V: F32x16, F: Format, const HALF: bool>(
        &self,
        row: usize,
        k: usize,
        len: usize,
        out: *mut u8,
    ) {
        let mut part = Part::new();
        let (group, groups) = (self.call.group, len / self.call.group);
        // SAFETY: the caller's contract. A group begins at `k`, and `len` covers complete groups.
        unsafe {
            let (packed, [scales, biases]) = self.part::<V, F, HALF>(row, k, groups, &mut part);
            for index in 0..groups {
                let (scale, bias) = (V::splat(*scales.add(index)), V::splat(*biases.add(index)));
                for at in (index * group..(index + 1) * group).step_by(LANES) {
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

impl Weights<InF32> for Packed<'_> {
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
            // SAFETY: the caller ensures that the rows and elements exist and that `out` has room.
            unsafe {
                self.decode::<V, F, false>(row + i, k, len, out.add(i * stride).cast());
            }
        });
        let next = row + rows;
        self.ask_for::<false>(next..next + rows, k, len);
    }
}

impl Weights<InBf16> for Packed<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, k: usize, len: usize) {
        self.ask_for::<true>(row..row + 1, k, len);
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
            if V::DOTS_BF16 && unpack::unpacks::<F>() && self.call.group >= 2 * LANES {
                let mut part = Part::new();
                let (group, groups) = (self.call.group, len / self.call.group);
                // SAFETY: the caller ensures that the rows and elements exist and that `out` has
                // room for them; this machine has AVX512_BF16.
                unsafe {
                    let (packed, scales) = self.part::<V, F, true>(row + i, k, groups, &mut part);
                    unpack::unpack::<V, F>(packed, scales, group, groups, out.add(i * stride));
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
