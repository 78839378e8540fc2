//! Where the C++ `eval_cpu` of each primitive enters Rust: raw arguments to typed kernel calls.

use std::slice;

use cxx::CxxVector;

use crate::cpu::{self, Element};
use crate::ffi::bridge::{self as ffi, Dtype, MlxArray, RopeCall};

pub(crate) fn lend_thread(arrays: &CxxVector<MlxArray>) {
    cpu::lend_thread(&|| arrays.iter().all(ffi::finished));
}

/// The kernel's element type; the op functions let no other dtype through.
fn element(dtype: Dtype) -> Option<Element> {
    match dtype {
        Dtype::Float32 => Some(Element::F32),
        Dtype::Float16 => Some(Element::F16),
        Dtype::Bfloat16 => Some(Element::BF16),
        _ => None,
    }
}

/// # Safety
/// As declared in `ffi.rs`.
pub(crate) unsafe fn rms_norm_cpu(
    dtype: Dtype,
    x: *const u8,
    weight: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    if let Some(element) = element(dtype) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::rms_norm(element, x, weight, out, rows, axis, eps) }
    }
}

/// # Safety
/// As declared in `ffi.rs`.
pub(crate) unsafe fn softmax_cpu(
    dtype: Dtype,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    if let Some(element) = element(dtype) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::softmax(element, x, out, rows, axis) }
    }
}

/// # Safety
/// As declared in `ffi.rs`.
pub(crate) unsafe fn rope_cpu(
    dtype: Dtype,
    x: *const u8,
    out: *mut u8,
    call: &RopeCall,
    freqs: *const f32,
    offsets: *const i32,
    offset_count: usize,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::RopeShape {
        batch: call.batch,
        heads: call.heads,
        seq: call.seq,
        head_dim: call.head_dim,
        dims: call.dims,
        traditional: call.traditional,
        forward: call.forward,
        scale: call.scale,
    };
    // SAFETY: freqs is null or dims / 2 long, offsets offset_count long, and MLX aligns both to
    // their elements.
    let (frequencies, offsets) = unsafe {
        let frequencies = if freqs.is_null() {
            cpu::Frequencies::Base(call.base)
        } else {
            cpu::Frequencies::Explicit(slice::from_raw_parts(freqs, call.dims / 2))
        };
        (frequencies, slice::from_raw_parts(offsets, offset_count))
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::rope(element, x, out, &shape, frequencies, offsets) }
}
