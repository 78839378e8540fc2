use super::bridge;
use super::elements::of_one;
use crate::cpu::{self, QuantizeShape};
use crate::ffi::element;

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn linear_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    w: *const u8,
    bias: *const u8,
    residual: *const u8,
    out: *mut u8,
    call: &bridge::LinearCall,
) {
    let Some(element) = element(dtype) else { return };
    let bridge::LinearCall { batch, m, n, k, columns, w_batched, .. } = *call;
    let activation = of_one(call.activation);
    let bytes = element.bytes();
    for entry in 0..batch {
        let w = w.wrapping_add(if w_batched { entry * n * k * bytes } else { 0 });
        let residual = if residual.is_null() {
            residual
        } else {
            residual.wrapping_add(entry * m * n * bytes)
        };
        let x = x.wrapping_add(entry * m * k * bytes);
        let out = out.wrapping_add(entry * m * n * bytes);
        let call = cpu::LinearCall { m, n, k, x, w, columns, bias, activation, residual, out };
        // SAFETY: the caller promises what the kernel requires for each entry.
        unsafe { cpu::linear(element, &call) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn quantize_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    packed: *mut u32,
    scales: *mut u8,
    biases: *mut u8,
    groups: usize,
    group_size: usize,
    bits: usize,
) {
    if let Some(element) = element(dtype) {
        let shape = QuantizeShape { groups, group_size, bits };
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::quantize(element, x, packed, scales, biases, &shape) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn dequantize_cpu(
    dtype: bridge::Dtype,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    out: *mut u8,
    groups: usize,
    group_size: usize,
    bits: usize,
) {
    if let Some(element) = element(dtype) {
        let shape = QuantizeShape { groups, group_size, bits };
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::dequantize(element, packed, scales, biases, out, &shape) }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn dequantize_rows_cpu(
    dtype: bridge::Dtype,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    ids: *const u32,
    rows: usize,
    columns: usize,
    out: *mut u8,
    groups: usize,
    group_size: usize,
    bits: usize,
) {
    if let Some(element) = element(dtype) {
        let shape = QuantizeShape { groups, group_size, bits };
        let taken = cpu::TakenRows { ids, rows, columns };
        // SAFETY: the caller promises what the kernel requires.
        unsafe { cpu::dequantize_rows(element, packed, scales, biases, taken, out, &shape) }
    }
}

fn mode_of(mode: bridge::QuantizedMode) -> cpu::Mode {
    match mode {
        bridge::QuantizedMode::Mxfp4 => cpu::Mode::Mxfp4,
        bridge::QuantizedMode::Mxfp8 => cpu::Mode::Mxfp8,
        bridge::QuantizedMode::Nvfp4 => cpu::Mode::Nvfp4,
        _ => cpu::Mode::Affine,
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn quantized_matmul_cpu(
    call: &bridge::QuantizedCall,
    parts: &[bridge::QuantizedPart],
) {
    let Some(element) = element(call.dtype) else { return };
    let weights: Vec<_> = parts
        .iter()
        .map(|part| cpu::Weights {
            packed: part.packed,
            scales: part.scales,
            biases: part.biases,
            columns: part.columns,
        })
        .collect();
    let norm = cpu::Norm { weight: call.norm, eps: call.eps };
    let call = cpu::QuantizedCall {
        element,
        mode: mode_of(call.mode),
        bits: call.bits,
        group: call.group,
        x: call.x,
        rows: call.rows,
        axis: call.axis,
        norm: (!norm.weight.is_null()).then_some(norm),
        weights: &weights,
        join: if call.swiglu { cpu::Join::Swiglu } else { cpu::Join::Concatenate },
        bias: call.bias,
        residual: call.residual,
        low_rank: None,
        int8: call.int8,
        out: call.out,
    };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::quantized_matmul(&call) }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn lora_cpu(call: &bridge::LoraCall) {
    let Some(element) = element(call.dtype) else { return };
    let mode = if call.quantized { mode_of(call.mode) } else { cpu::Mode::Plain };
    let weights = cpu::Weights {
        packed: call.base,
        scales: call.scales,
        biases: call.biases,
        columns: call.columns,
    };
    let low = cpu::LowRank { a: call.a, b: call.b, rank: call.rank, scale: call.scale };
    let call = cpu::LoraCall {
        element,
        mode,
        bits: call.bits,
        group: call.group,
        x: call.x,
        rows: call.rows,
        axis: call.axis,
        weights,
        low,
        out: call.out,
    };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::lora(&call) }
}
