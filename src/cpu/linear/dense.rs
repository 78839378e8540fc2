//! Plain weights, and the steps that follow a product.

use super::super::activation::Activation;
use super::super::element::{Bf16, Float};
use super::super::simd::{F32x16, LANES};
use super::arithmetic::{Arithmetic, InBf16, InF32};
use super::gemm::{Epilogue, Extents, Weights};

/// Weights as they lie in memory: `[n, k]`, or `[k, n]` if `columns`.
pub struct Dense<T> {
    pub w: *const T,
    pub extents: Extents,
    pub columns: bool,
}

// SAFETY: only read.
unsafe impl<T> Sync for Dense<T> {}

impl<T: Float> Weights<InF32> for Dense<T> {
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
        let Extents { n, k: depth, .. } = self.extents;
        // SAFETY: the rows and elements exist and `out` has room for them, the caller says.
        unsafe {
            if self.columns {
                for at in 0..len {
                    let lanes: V = T::load_first(self.w.add((k + at) * n + row), rows);
                    let mut column = [0.0f32; LANES];
                    lanes.store(column.as_mut_ptr());
                    (0..rows).for_each(|i| *out.add(i * stride + at) = column[i]);
                }
                return;
            }
            for i in 0..rows {
                let (from, to) = (self.w.add((row + i) * depth + k), out.add(i * stride));
                let mut at = 0;
                while at + LANES <= len {
                    T::load::<V>(from.add(at)).store(to.add(at));
                    at += LANES;
                }
                if at < len {
                    T::load_first::<V>(from.add(at), len - at).store_first(to.add(at), len - at);
                }
            }
        }
    }
}

impl Weights<InBf16> for Dense<Bf16> {
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
        let Extents { n, k: depth, .. } = self.extents;
        let w = self.w.cast::<u16>();
        // SAFETY: the rows and elements exist and `out` has room for them, the caller says.
        unsafe {
            for i in 0..rows {
                let to = out.add(i * stride);
                if self.columns {
                    (0..len).for_each(|at| *to.add(at) = *w.add((k + at) * n + row + i));
                } else {
                    std::ptr::copy_nonoverlapping(w.add((row + i) * depth + k), to, len);
                }
            }
        }
    }
}

/// Rounds, adds the bias, applies the activation, adds the residual: each step rounded to `T`.
pub struct Finish<T> {
    pub out: *mut T,
    pub columns: usize,
    pub bias: *const T,
    pub activation: Option<Activation>,
    pub residual: *const T,
}

// SAFETY: inputs are only read; each output is written once, by one thread, after its residual
// was read.
unsafe impl<T> Sync for Finish<T> {}

impl<T: Float> Epilogue for Finish<T> {
    #[inline(always)]
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize) {
        let at = row * self.columns + column;
        let mut y: V = T::round(sums);
        // SAFETY: the outputs exist, and with them a bias and residuals.
        unsafe {
            if !self.bias.is_null() {
                y = T::round(y + InF32::words::<V, T>(self.bias.add(column), count));
            }
            if let Some(activation) = self.activation {
                y = activation.apply::<V, T>(y);
            }
            if !self.residual.is_null() {
                y = T::round(y + InF32::words::<V, T>(self.residual.add(at), count));
            }
            if count == LANES {
                T::store(y, self.out.add(at));
            } else {
                T::store_first(y, self.out.add(at), count);
            }
        }
    }
}
