//! Plain weights, and the steps that follow a product.

use super::super::activation::Activation;
use super::super::element::{Bf16, Float};
use super::super::simd::{F32x16, LANES, prefetch};
use super::arithmetic::{Arithmetic, InBf16, InF32, paired};
use super::gemm::{Epilogue, Extents, Weights};

/// Dense weights in memory: `[n, k]`, or `[k, n]` if `columns`.
pub struct Dense<T> {
    pub w: *const T,
    pub extents: Extents,
    pub columns: bool,
}

// SAFETY: only read.
unsafe impl<T> Sync for Dense<T> {}

/// Transposes `count` rows of `columns` elements each, `stride` apart.
///
/// # Safety
/// The rows exist; `columns` and `count` are at most sixteen.
#[inline(always)]
unsafe fn turned<V: F32x16, T: Float>(
    from: *const T,
    stride: usize,
    columns: usize,
    count: usize,
) -> [V; LANES] {
    let mut square = [V::splat(0.0); LANES];
    for (i, lanes) in square.iter_mut().enumerate().take(count) {
        let row = from.wrapping_add(i * stride);
        // No prefetcher follows such strides.
        prefetch(row.wrapping_add(2 * LANES * stride).cast(), columns * size_of::<T>());
        // SAFETY: the caller's contract.
        *lanes = unsafe {
            match columns {
                LANES => T::load(row),
                _ => T::load_first(row, columns),
            }
        };
    }
    V::transpose(square)
}

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
                // The row may continue beyond the tile; those elements are read and dropped.
                let wide = if row + LANES <= n { LANES } else { rows };
                for at in (0..len).step_by(LANES) {
                    let count = LANES.min(len - at);
                    let turned = turned::<V, T>(self.w.add((k + at) * n + row), n, wide, count);
                    for (i, lanes) in turned.into_iter().enumerate().take(rows) {
                        let to = out.add(i * stride + at);
                        match count {
                            LANES => lanes.store(to),
                            _ => lanes.store_first(to, count),
                        }
                    }
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
            if self.columns {
                // Two rows of w at a time make words, which are then exchanged with columns.
                let wide = if row + LANES <= n { LANES } else { rows };
                for at in (0..len).step_by(2 * LANES) {
                    let count = (2 * LANES).min(len - at);
                    let first = w.wrapping_add((k + at) * n + row);
                    let mut square = [V::splat(0.0); LANES];
                    for (i, words) in square.iter_mut().enumerate().take(count.div_ceil(2)) {
                        let from = first.wrapping_add(2 * i * n);
                        let last = 2 * i + 1 == count;
                        let next = if last { from } else { from.wrapping_add(n) };
                        // No prefetcher follows such strides.
                        prefetch(from.wrapping_add(2 * LANES * n).cast(), 2 * wide);
                        prefetch(next.wrapping_add(2 * LANES * n).cast(), 2 * wide);
                        let (low, high) = match wide {
                            LANES => (V::load_half(from), V::load_half(next)),
                            _ => (V::load_half_first(from, wide), V::load_half_first(next, wide)),
                        };
                        let high = if last { V::narrow(V::splat_int(0)) } else { high };
                        *words = paired(low, high);
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
                return;
            }
            for i in 0..rows {
                let to = out.add(i * stride);
                std::ptr::copy_nonoverlapping(w.add((row + i) * depth + k), to, len);
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
