use std::slice;

use super::bridge;
use super::bridge::{CrossEntropyCall, MaskedSoftmaxCall};
use crate::cpu::{self, Reduction};
use crate::ffi::element;

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn softmax_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    if let Some(element) = element(dtype) {
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::softmax(element, x, out, rows, axis) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn logsumexp_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    subtract: bool,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller promises what the kernel requires.
    unsafe {
        if subtract {
            cpu::log_softmax(element, x, out, rows, axis);
        } else {
            cpu::logsumexp(element, x, out, rows, axis);
        }
    }
}

impl MaskedSoftmaxCall {
    fn shape(&self) -> cpu::MaskedSoftmaxShape {
        let Self { rows, queries, keys, causal, window, .. } = *self;
        cpu::MaskedSoftmaxShape { rows, queries, keys, causal, window }
    }

    fn mask(&self, data: *const u8) -> Option<cpu::Mask<'_>> {
        let dims = self.mask_dims.min(self.mask_shape.len());
        (!data.is_null()).then(|| cpu::Mask {
            data,
            additive: self.additive,
            shape: &self.mask_shape[..dims],
            strides: &self.mask_strides[..dims],
            key_stride: self.mask_key_stride as isize,
        })
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn masked_softmax_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    mask: *const u8,
    out: *mut u8,
    call: &MaskedSoftmaxCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::masked_softmax(element, x, call.mask(mask), out, &call.shape(), call.scale) }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn masked_softmax_grad_cpu(
    dtype: bridge::Dtype,
    y: *const u8,
    g: *const u8,
    mask: *const u8,
    out: *mut u8,
    call: &MaskedSoftmaxCall,
) {
    let Some(element) = element(dtype) else { return };
    let (mask, shape) = (call.mask(mask), call.shape());
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::masked_softmax_grad(element, [y, g], mask, out, &shape, call.scale) }
}

impl CrossEntropyCall {
    /// # Safety
    /// `classes` holds an entry for each row as long as the result is used.
    unsafe fn targets<'a>(&self, classes: *const i32) -> cpu::Targets<'a> {
        cpu::Targets {
            // SAFETY: the caller promises this; MLX aligns buffers and there is at least one row.
            classes: unsafe { slice::from_raw_parts(classes, self.rows) },
            smoothing: self.smoothing,
            ignored: self.ignores.then_some(self.ignored),
        }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn cross_entropy_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    targets: *const i32,
    loss: *mut u8,
    kept: *mut f32,
    call: &CrossEntropyCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::cross_entropy(element, x, call.targets(targets), loss, kept, call.classes) }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn cross_entropy_grad_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    targets: *const i32,
    g: *const u8,
    kept: *const f32,
    out: *mut u8,
    call: &CrossEntropyCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller promises what the kernel requires.
    unsafe {
        let targets = call.targets(targets);
        cpu::cross_entropy_grad(element, [x, g], targets, kept, out, call.classes)
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn rms_norm_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    weight: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    if let Some(element) = element(dtype) {
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::rms_norm(element, x, weight, out, rows, axis, eps) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn layer_norm_cpu(
    dtype: bridge::Dtype,
    call: &bridge::LayerNormCall,
    x: *const u8,
    weight: *const u8,
    bias: *const u8,
    out: *mut u8,
) {
    let bridge::LayerNormCall { rows, axis, eps } = *call;
    if let Some(element) = element(dtype) {
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::layer_norm(element, x, weight, bias, out, rows, axis, eps) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn residual_norm_cpu(
    call: &bridge::ResidualNormCall,
    x: *const u8,
    residual: *const u8,
    weight: *const u8,
    bias: *const u8,
    sum: *mut u8,
    norm: *mut u8,
) {
    let bridge::ResidualNormCall { dtype, rows, axis, eps, centered } = *call;
    let call =
        cpu::ResidualNorm { x, residual, weight, bias, sum, norm, rows, axis, eps, centered };
    if let Some(element) = element(dtype) {
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::residual_norm(element, call) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn reduce_cpu(
    dtype: bridge::Dtype,
    kind: bridge::ReductionKind,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    let kind = match kind {
        bridge::ReductionKind::Sum => Reduction::Sum,
        bridge::ReductionKind::Mean => Reduction::Mean,
        bridge::ReductionKind::Max => Reduction::Max,
        bridge::ReductionKind::SumOfSquares => Reduction::SumOfSquares,
        bridge::ReductionKind::Norm => Reduction::Norm,
        _ => return,
    };
    if let Some(element) = element(dtype) {
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::reduce(element, kind, x, out, rows, axis) }
    }
}
