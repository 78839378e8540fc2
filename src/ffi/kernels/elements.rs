use std::slice;

use super::bridge;
use crate::cpu;
use crate::ffi::element;

/// The activation of one input that a kind names; `None` for a kind of two inputs.
pub(super) fn of_one(kind: bridge::ActivationKind) -> Option<cpu::Activation> {
    match kind {
        bridge::ActivationKind::Relu => Some(cpu::Activation::Relu),
        bridge::ActivationKind::Gelu => Some(cpu::Activation::Gelu),
        bridge::ActivationKind::GeluTanh => Some(cpu::Activation::GeluTanh),
        bridge::ActivationKind::Silu => Some(cpu::Activation::Silu),
        _ => None,
    }
}

fn of_two(kind: bridge::ActivationKind) -> Option<cpu::Combination> {
    match kind {
        bridge::ActivationKind::Swiglu => Some(cpu::Combination::Swiglu),
        bridge::ActivationKind::Geglu => Some(cpu::Combination::Geglu),
        bridge::ActivationKind::GegluTanh => Some(cpu::Combination::GegluTanh),
        bridge::ActivationKind::AddRelu => Some(cpu::Combination::AddRelu),
        bridge::ActivationKind::MulRelu => Some(cpu::Combination::MulRelu),
        _ => None,
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn activation_cpu(
    dtype: bridge::Dtype,
    kind: bridge::ActivationKind,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    size: usize,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller promises what the kernels require.
    unsafe {
        match (of_one(kind), of_two(kind)) {
            (Some(kind), _) => cpu::activation(element, kind, a, out, size),
            (_, Some(kind)) => cpu::combination(element, kind, a, b, out, size),
            _ => {}
        }
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn affine_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    scale: *const u8,
    shift: *const u8,
    out: *mut u8,
    call: &bridge::AffineCall,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::AffineShape {
        rows: call.rows,
        columns: call.columns,
        scale_columns: call.scale_columns,
        shift_columns: call.shift_columns,
    };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::affine(element, x, scale, shift, out, &shape) }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn rope_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    out: *mut u8,
    call: &bridge::RopeCall,
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
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::rope(element, x, out, &shape, frequencies, offsets) }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn rope_append_cpu(
    dtype: bridge::Dtype,
    state: *const u8,
    out: *mut u8,
    qkv: *const u8,
    call: &bridge::RopeAppendCall,
    freqs: *const f32,
    offsets: *const i32,
    slots: *const i32,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::AppendShape {
        batch: call.batch,
        heads: call.heads,
        kv_heads: call.kv_heads,
        time: call.time,
        head_dim: call.head_dim,
        capacity: call.capacity,
        dims: call.dims,
        traditional: call.traditional,
        scale: call.scale,
        multiplier: call.multiplier,
    };
    // SAFETY: freqs is null or dims / 2 long, the others as long as the call says, and MLX aligns
    // all of them to their elements.
    let (frequencies, offsets, slots) = unsafe {
        let frequencies = if freqs.is_null() {
            cpu::Frequencies::Base(call.base)
        } else {
            cpu::Frequencies::Explicit(slice::from_raw_parts(freqs, call.dims / 2))
        };
        let offsets = slice::from_raw_parts(offsets, call.offset_count);
        (frequencies, offsets, slice::from_raw_parts(slots, call.slot_count))
    };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::rope_append(element, state, out, qkv, &shape, frequencies, offsets, slots) }
}

fn view(of: &bridge::AttentionView) -> cpu::View {
    cpu::View {
        data: std::ptr::with_exposed_provenance(of.address),
        strides: of.strides.map(|stride| stride as isize),
    }
}

/// # Safety
/// The declaration in `ffi/kernels.rs` states the requirements.
pub(super) unsafe fn attention_cpu(
    dtype: bridge::Dtype,
    call: &bridge::AttentionCall,
    sinks: *const u8,
    out: *mut u8,
) {
    let Some(element) = element(dtype) else { return };
    let source = |data, scales, biases| match call.bits {
        0 => cpu::Source::Plain(view(data)),
        bits => cpu::Source::Quantized {
            packed: view(data),
            scales: view(scales),
            biases: view(biases),
            bits,
            group: call.group_size,
        },
    };
    let mask = match (call.mask.address, call.bool_mask) {
        (0, _) => cpu::AttentionMask::None,
        (_, true) => cpu::AttentionMask::Bool(view(&call.mask)),
        (_, false) => cpu::AttentionMask::Additive(view(&call.mask)),
    };
    let attention = cpu::Attention {
        batch: call.batch,
        heads: call.heads,
        kv_heads: call.kv_heads,
        queries: call.queries,
        keys: call.keys,
        dim: call.dim,
        value_dim: call.value_dim,
        scale: call.scale,
        soft_cap: call.soft_cap,
        causal: call.causal,
        window: call.window,
        q: view(&call.q),
        k: source(&call.k, &call.k_scales, &call.k_biases),
        v: source(&call.v, &call.v_scales, &call.v_biases),
        mask,
        sinks,
    };
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::attention(element, &attention, out) }
}

/// # Safety
/// The declaration says what the addresses must hold.
pub(super) unsafe fn copy_cpu(
    x: *const u8,
    out: *mut u8,
    shape: &[i32],
    strides: &[i64],
    bytes: usize,
) {
    // SAFETY: the caller promises what the kernel requires.
    unsafe { cpu::copy(x, out, &cpu::CopyCall { shape, strides, bytes }) }
}
