//! The kernels as C functions, for the C++ code of the crate `mlx-primitives`, whose
//! `cpp/runtime/kernels.h` declares them. Both languages assert the sizes and offsets of the
//! structs.
//!
//! The caller passes only defined values of enumerations, and null only where the field or the Rust
//! function that is called allows it. The buffers satisfy the contract of the Rust function of the
//! same name. GCC does not extend enumerations of one byte to 32 bits, as rustc expects, so the
//! caller passes [`Element`] by reference and other enumerations as integers.

mod linear;

use std::mem::{offset_of, size_of};
use std::slice::from_raw_parts;

use linear::LinearCall;

use crate::attention::{AttentionCall, AttentionGradCall, View};
use crate::masked_softmax::Mask;
use crate::quantized_matmul::{
    Call, Join, Mode, Norm, QuantizedTransposedCall, Weights, quantized_transposed,
};
use crate::{
    Activation, AffineShape, AppendShape, Combination, CopyCall, Element, Frequencies, LoraCall,
    MaskedSoftmaxShape, NormGrad, QuantizeShape, Reduction, ResidualNorm, RopeShape, RowOrder,
    TakenRows, Targets,
};

/// Asserts the size of a struct and the offsets of fields, as `kernels_layout.h` does.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident $offset:literal)*) => {
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
    };
}

/// Defines C functions named `mlxp_cpu_…`. Each function evaluates the block that follows its
/// arguments.
macro_rules! entries {
    ($($name:literal $function:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(export_name = $name)]
            pub unsafe extern "C" fn $function($($argument: $type),*) {
                // SAFETY: the contract at the top of this file.
                unsafe { $body }
            }
        )*
    };
}

layout!(View, 40, strides 8);
layout!(AttentionCall, 432, scale 4, batch 16, q 96, mask 376, out 424);
layout!(AttentionGradCall, 512, cotangent 432, dq 472, dsinks 504);

#[repr(C)]
pub struct CrossEntropyCall {
    element: Element,
    /// Whether the loss of rows with the target `ignored` is 0.
    ignores: bool,
    ignored: i32,
    smoothing: f32,
    rows: usize,
    classes: usize,
    x: *const u8,
    targets: *const i32,
    /// Two floats for each row: its maximum and its sum of exponentials.
    stats: *mut f32,
    /// The gradient of each loss, which only the gradient function reads.
    g: *const u8,
    out: *mut u8,
}
layout!(CrossEntropyCall, 72, ignored 4, smoothing 8, rows 16, x 32, out 64);

impl CrossEntropyCall {
    /// # Safety
    /// `targets` holds a class for each row while the result is used.
    unsafe fn targets(&self) -> Targets<'_> {
        // SAFETY: the caller's contract.
        let classes = unsafe { from_raw_parts(self.targets, self.rows) };
        let ignored = self.ignores.then_some(self.ignored);
        Targets { classes, smoothing: self.smoothing, ignored }
    }
}

#[repr(C)]
pub struct MaskedSoftmaxCall {
    element: Element,
    /// Whether the mask holds elements that are added to the scores. Otherwise it holds bools.
    additive: bool,
    scale: f32,
    shape: MaskedSoftmaxShape,
    mask_dims: usize,
    mask_key_stride: isize,
    mask_strides: [i64; 8],
    mask_shape: [u32; 8],
    x: *const u8,
    /// The gradient of the result, which only the gradient function reads.
    g: *const u8,
    /// Null if there is no mask.
    mask: *const u8,
    out: *mut u8,
}
layout!(MaskedSoftmaxShape, 40, causal 24, window 32);
layout!(MaskedSoftmaxCall, 192, shape 8, mask_strides 64, mask_shape 128, out 184);

impl MaskedSoftmaxCall {
    fn mask(&self) -> Option<Mask<'_>> {
        let dims = self.mask_dims.min(self.mask_shape.len());
        (!self.mask.is_null()).then(|| Mask {
            data: self.mask,
            additive: self.additive,
            shape: &self.mask_shape[..dims],
            strides: &self.mask_strides[..dims],
            key_stride: self.mask_key_stride,
        })
    }
}

#[repr(C)]
pub struct QuantizedMatmulCall {
    element: Element,
    mode: Mode,
    swiglu: bool,
    int8: bool,
    bits: u32,
    eps: f32,
    order: RowOrder,
    of_scales: Element,
    centered: bool,
    group: usize,
    rows: usize,
    axis: usize,
    x: *const u8,
    /// The weight of the RMS normalization of x, or null if x is not normalized.
    norm: *const u8,
    bias: *const u8,
    residual: *const u8,
    weights: *const Weights,
    weight_count: usize,
    out: *mut u8,
}
layout!(LinearCall, 80, activation 4, of_w 6, batch 8, x 40, out 72);
layout!(Weights, 32, columns 24);
layout!(QuantizedMatmulCall, 96, mode 1, bits 4, of_scales 13, centered 14, group 16, x 40, out 88);
layout!(QuantizedTransposedCall, 88, bits 4, weights 40, out 80);
layout!(LoraCall, 112, mode 1, of_scales 3, bits 4, x 16, weights 40, low 72, out 104);

#[repr(C)]
pub struct RopeCall {
    element: Element,
    base: f32,
    shape: RopeShape,
    /// Null, or the `dims / 2` periods that replace `base`.
    freqs: *const f32,
    offsets: *const i32,
    offset_count: usize,
    x: *const u8,
    out: *mut u8,
}
layout!(RopeShape, 48, traditional 40, scale 44);
layout!(RopeCall, 96, base 4, shape 8, freqs 56, out 88);

#[repr(C)]
pub struct RopeAppendCall {
    element: Element,
    base: f32,
    shape: AppendShape,
    freqs: *const f32,
    offsets: *const i32,
    offset_count: usize,
    slots: *const i32,
    slot_count: usize,
    state: *const u8,
    qkv: *mut u8,
    out: *mut u8,
    /// Separate buffers for queries, keys and values, which the kernel writes instead of the
    /// state. If they are null, it writes the state.
    heads: [*mut u8; 3],
}
layout!(AppendShape, 72, forward 57, multiplier 64);
layout!(RopeAppendCall, 168, shape 8, freqs 80, slots 104, out 136, heads 144);
layout!(ResidualNorm, 72, rows 48, eps 64, centered 68);
layout!(NormGrad, 80, rows 56, centered 76, affine 77);
layout!(AffineShape, 32);
layout!(QuantizeShape, 24);
layout!(TakenRows, 24);

/// # Safety
/// `freqs` is null or holds `dims / 2` numbers while the result is used.
unsafe fn frequencies<'a>(freqs: *const f32, base: f32, dims: usize) -> Frequencies<'a> {
    if freqs.is_null() {
        return Frequencies::Base(base);
    }
    // SAFETY: the caller's contract.
    Frequencies::Explicit(unsafe { from_raw_parts(freqs, dims / 2) })
}

entries! {
    "mlxp_cpu_activation" activation(
        element: &Element, kind: Activation, x: *const u8, out: *mut u8, size: usize,
    ) { crate::activation(*element, kind, x, out, size) }
    "mlxp_cpu_combination" combination(
        element: &Element, kind: Combination, a: *const u8, b: *const u8, out: *mut u8, size: usize,
    ) { crate::combination(*element, kind, a, b, out, size) }
    "mlxp_cpu_combination_grad" combination_grad(
        element: &Element, kind: Combination, a: *const u8, b: *const u8, g: *const u8,
        of_a: *mut u8, of_b: *mut u8, size: usize,
    ) { crate::combination_grad(*element, kind, [a, b, g], [of_a, of_b], size) }
    "mlxp_cpu_affine" affine(
        element: &Element, x: *const u8, scale: *const u8, shift: *const u8, out: *mut u8,
        shape: &AffineShape,
    ) { crate::affine(*element, x, scale, shift, out, shape) }
    "mlxp_cpu_attention" attention(call: &AttentionCall) {
        crate::attention(call.element, &call.attention(), call.out)
    }
    "mlxp_cpu_attention_grad" attention_grad(call: &AttentionGradCall) {
        crate::attention_grad(call.forward.element, &call.backward())
    }
    "mlxp_cpu_copy" copy(
        x: *const u8, out: *mut u8, shape: *const i32, strides: *const i64, dims: usize,
        bytes: usize,
    ) {
        let (shape, strides) = match dims {
            0 => (&[][..], &[][..]),
            _ => (from_raw_parts(shape, dims), from_raw_parts(strides, dims)),
        };
        crate::copy(x, out, &CopyCall { shape, strides, bytes })
    }
    "mlxp_cpu_cross_entropy" cross_entropy(call: &CrossEntropyCall) {
        let CrossEntropyCall { element, x, stats, classes, out, .. } = *call;
        crate::cross_entropy(element, x, call.targets(), out, stats, classes)
    }
    "mlxp_cpu_cross_entropy_grad" cross_entropy_grad(call: &CrossEntropyCall) {
        let CrossEntropyCall { element, x, g, stats, classes, out, .. } = *call;
        crate::cross_entropy_grad(element, [x, g], call.targets(), stats, out, classes)
    }
    "mlxp_cpu_layer_norm" layer_norm(
        element: &Element, x: *const u8, weight: *const u8, bias: *const u8, out: *mut u8,
        rows: usize, axis: usize, eps: f32,
    ) { crate::layer_norm(*element, x, weight, bias, out, rows, axis, eps) }
    "mlxp_cpu_linear" linear(call: &LinearCall) {
        for entry in 0..call.batch {
            crate::linear(call.element, &call.at(entry));
        }
    }
    "mlxp_cpu_logsumexp" logsumexp(
        element: &Element, x: *const u8, out: *mut u8, rows: usize, axis: usize,
    ) { crate::logsumexp(*element, x, out, rows, axis) }
    "mlxp_cpu_log_softmax" log_softmax(
        element: &Element, x: *const u8, out: *mut u8, rows: usize, axis: usize,
    ) { crate::log_softmax(*element, x, out, rows, axis) }
    "mlxp_cpu_logsumexp_grad" logsumexp_grad(
        element: &Element, x: *const u8, g: *const u8, out: *mut u8, rows: usize, axis: usize,
        subtracted: bool,
    ) { crate::logsumexp_grad(*element, [x, g], out, [rows, axis], subtracted) }
    "mlxp_cpu_lora" lora(call: &LoraCall) { crate::lora(call) }
    "mlxp_cpu_masked_softmax" masked_softmax(call: &MaskedSoftmaxCall) {
        let MaskedSoftmaxCall { element, x, out, ref shape, scale, .. } = *call;
        crate::masked_softmax(element, x, call.mask(), out, shape, scale)
    }
    "mlxp_cpu_masked_softmax_grad" masked_softmax_grad(call: &MaskedSoftmaxCall) {
        let MaskedSoftmaxCall { element, x, g, out, ref shape, scale, .. } = *call;
        crate::masked_softmax_grad(element, [x, g], call.mask(), out, shape, scale)
    }
    "mlxp_cpu_norm_grad" norm_grad(of: &Element, call: &NormGrad) { crate::norm_grad(*of, *call) }
    "mlxp_cpu_quantize" quantize(
        element: &Element, x: *const u8, packed: *mut u32, scales: *mut u8, biases: *mut u8,
        shape: &QuantizeShape,
    ) { crate::quantize(*element, x, packed, scales, biases, shape) }
    "mlxp_cpu_dequantize" dequantize(
        element: &Element, packed: *const u32, scales: *const u8, biases: *const u8, out: *mut u8,
        shape: &QuantizeShape,
    ) { crate::dequantize(*element, packed, scales, biases, out, shape) }
    "mlxp_cpu_dequantize_rows" dequantize_rows(
        element: &Element, packed: *const u32, scales: *const u8, biases: *const u8,
        taken: &TakenRows, out: *mut u8, shape: &QuantizeShape,
    ) { crate::dequantize_rows(*element, packed, scales, biases, *taken, out, shape) }
    "mlxp_cpu_quantized_matmul" quantized_matmul(call: &QuantizedMatmulCall) {
        let QuantizedMatmulCall { element, mode, bits, group, x, rows, axis, .. } = *call;
        let QuantizedMatmulCall { norm, eps, bias, residual, order, of_scales, out, .. } = *call;
        let norm = (!norm.is_null()).then_some(Norm { weight: norm, eps });
        let join = if call.swiglu { Join::Swiglu } else { Join::Concatenate };
        let weights = from_raw_parts(call.weights, call.weight_count);
        crate::quantized_matmul(&Call {
            element, of_scales, mode, bits, group, x, rows, axis, norm, weights, join, bias,
            residual, low_rank: None, int8: call.int8, centered: call.centered, order, out,
        })
    }
    "mlxp_cpu_quantized_transposed" transposed(call: &QuantizedTransposedCall) {
        quantized_transposed(call)
    }
    "mlxp_cpu_reduce" reduce(
        element: &Element, kind: Reduction, x: *const u8, out: *mut u8, rows: usize, axis: usize,
    ) { crate::reduce(*element, kind, x, out, rows, axis) }
    "mlxp_cpu_reduce_grad" reduce_grad(
        of: &Element, kind: Reduction, x: *const u8, y: *const u8, g: *const u8, out: *mut u8,
        rows: usize, axis: usize,
    ) { crate::reduce_grad(*of, kind, [x, y, g], out, [rows, axis]) }
    "mlxp_cpu_residual_norm" residual_norm(of: &Element, call: &ResidualNorm) {
        crate::residual_norm(*of, *call)
    }
    "mlxp_cpu_rms_norm" rms_norm(
        element: &Element, x: *const u8, weight: *const u8, out: *mut u8, rows: usize, axis: usize,
        eps: f32,
    ) { crate::rms_norm(*element, x, weight, out, rows, axis, eps) }
    "mlxp_cpu_rope" rope(call: &RopeCall) {
        let RopeCall { element, base, ref shape, freqs, x, out, .. } = *call;
        let offsets = from_raw_parts(call.offsets, call.offset_count);
        crate::rope(element, x, out, shape, frequencies(freqs, base, shape.dims), offsets)
    }
    "mlxp_cpu_rope_append" rope_append(call: &RopeAppendCall) {
        let RopeAppendCall { element, base, ref shape, freqs, state, qkv, out, .. } = *call;
        let offsets = from_raw_parts(call.offsets, call.offset_count);
        let freqs = frequencies(freqs, base, shape.dims);
        if !call.heads[0].is_null() {
            return crate::rope_heads(element, call.heads, qkv, shape, freqs, offsets);
        }
        let slots = from_raw_parts(call.slots, call.slot_count);
        crate::rope_append(element, state, out, qkv, shape, freqs, offsets, slots)
    }
    "mlxp_cpu_softmax" softmax(
        element: &Element, x: *const u8, out: *mut u8, rows: usize, axis: usize,
    ) { crate::softmax(*element, x, out, rows, axis) }
    "mlxp_cpu_take_grad" take_grad(
        of: &Element, g: *const u8, ids: *const u32, count: usize, out: *mut u8, rows: usize,
        axis: usize,
    ) { crate::take_grad(*of, g, from_raw_parts(ids, count), out, [rows, axis]) }
}
