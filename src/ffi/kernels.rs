//! The entry points of the CPU kernels for C++.

mod elements;
mod lent;
mod products;
mod rows;

use elements::*;
pub(super) use lent::{lend_thread, lend_thread_until};
use products::*;
use rows::*;

#[allow(clippy::too_many_arguments)] // C++ passes extents and buffers one by one
#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents of `x * scale + shift`. `scale` and `shift` have 1 column or as many as `x`.
    struct AffineCall {
        rows: usize,
        columns: usize,
        scale_columns: usize,
        shift_columns: usize,
    }

    /// The address of the first element, or 0 for no array, and the strides in elements.
    #[derive(Clone, Copy)]
    struct AttentionView {
        address: usize,
        strides: [i64; 4],
    }

    struct AttentionCall {
        batch: usize,
        heads: usize,
        kv_heads: usize,
        queries: usize,
        keys: usize,
        dim: usize,
        value_dim: usize,
        scale: f32,
        soft_cap: f32,
        causal: bool,
        window: usize,
        /// 0 for plain keys and values.
        bits: usize,
        group_size: usize,
        bool_mask: bool,
        q: AttentionView,
        k: AttentionView,
        k_scales: AttentionView,
        k_biases: AttentionView,
        v: AttentionView,
        v_scales: AttentionView,
        v_biases: AttentionView,
        mask: AttentionView,
    }

    /// Extents of the logits, and how their targets count.
    struct CrossEntropyCall {
        rows: usize,
        classes: usize,
        smoothing: f32,
        /// Whether rows with the target `ignored` cost nothing.
        ignores: bool,
        ignored: i32,
    }

    struct LayerNormCall {
        rows: usize,
        axis: usize,
        eps: f32,
    }

    /// A product of `x`, `[batch, m, k]`, with weights `[n, k]`, or `[k, n]` if `columns`.
    struct LinearCall {
        batch: usize,
        m: usize,
        n: usize,
        k: usize,
        columns: bool,
        /// Whether each batch entry has separate weights.
        w_batched: bool,
        activation: ActivationKind,
    }

    /// One product with a low-rank update. A plain base has neither mode nor scales.
    struct LoraCall {
        dtype: Dtype,
        quantized: bool,
        mode: QuantizedMode,
        bits: u32,
        group: usize,
        x: *const u8,
        rows: usize,
        axis: usize,
        columns: usize,
        base: *const u8,
        scales: *const u8,
        biases: *const u8,
        a: *const u8,
        b: *const u8,
        rank: usize,
        scale: f32,
        out: *mut u8,
    }

    /// Extents of the scores and their masks. Strides are in elements.
    struct MaskedSoftmaxCall {
        rows: usize,
        queries: usize,
        keys: usize,
        scale: f32,
        causal: bool,
        /// The keys that a query sees, or 0 for no window.
        window: usize,
        /// Whether a mask is of floats rather than of bools.
        additive: bool,
        mask_dims: usize,
        mask_key_stride: i64,
        mask_strides: [i64; 8],
        mask_shape: [u32; 8],
    }

    /// One product with packed weights. Pointers of absent arrays are null.
    struct QuantizedCall {
        dtype: Dtype,
        mode: QuantizedMode,
        bits: u32,
        group: usize,
        x: *const u8,
        rows: usize,
        axis: usize,
        norm: *const u8,
        eps: f32,
        swiglu: bool,
        bias: *const u8,
        residual: *const u8,
        int8: bool,
        out: *mut u8,
    }

    /// One matrix of packed weights.
    struct QuantizedPart {
        packed: *const u8,
        scales: *const u8,
        biases: *const u8,
        columns: usize,
    }

    struct ResidualNormCall {
        dtype: Dtype,
        rows: usize,
        axis: usize,
        eps: f32,
        /// Whether it is a layer normalization rather than an RMS normalization.
        centered: bool,
    }

    /// Extents and parameters of one rotary embedding.
    struct RopeCall {
        batch: usize,
        heads: usize,
        seq: usize,
        head_dim: usize,
        dims: usize,
        traditional: bool,
        forward: bool,
        base: f32,
        scale: f32,
    }

    /// Extents and parameters of one step of decoding.
    struct RopeAppendCall {
        batch: usize,
        heads: usize,
        kv_heads: usize,
        time: usize,
        head_dim: usize,
        capacity: usize,
        dims: usize,
        traditional: bool,
        base: f32,
        scale: f32,
        multiplier: f32,
        offset_count: usize,
        slot_count: usize,
    }

    unsafe extern "C++" {
        include!("mlx-primitives/src/ffi/ops.rs.h");

        type Dtype = crate::ffi::bridge::Dtype;
        type ActivationKind = crate::ffi::ops::bridge::ActivationKind;
        #[namespace = "mlx_primitives"]
        type QuantizedMode = crate::ffi::ops::bridge::QuantizedMode;
        #[namespace = "mlx_primitives"]
        type ReductionKind = crate::ffi::ops::bridge::ReductionKind;
    }

    extern "Rust" {
        /// `size` elements are readable at `a` and `b` (which is `a` for a kind of one input) and
        /// writable at `out`, which may be the address of either.
        unsafe fn activation_cpu(
            dtype: Dtype,
            kind: ActivationKind,
            a: *const u8,
            b: *const u8,
            out: *mut u8,
            size: usize,
        );
        /// The buffers hold the call's elements; `out` may be `x`.
        unsafe fn affine_cpu(
            dtype: Dtype,
            x: *const u8,
            scale: *const u8,
            shift: *const u8,
            out: *mut u8,
            call: &AffineCall,
        );
        /// The views hold the call's elements of `dtype` (words of u32 if packed, bytes for a mask
        /// of bools); `sinks` is null or holds an element for each head; `out` is row-contiguous,
        /// writable and overlaps none of them.
        unsafe fn attention_cpu(dtype: Dtype, call: &AttentionCall, sinks: *const u8, out: *mut u8);
        /// `x` holds the call's elements, `targets` and `loss` one entry per row and `kept` two.
        unsafe fn cross_entropy_cpu(
            dtype: Dtype,
            x: *const u8,
            targets: *const i32,
            loss: *mut u8,
            kept: *mut f32,
            call: &CrossEntropyCall,
        );
        /// `x` and `out` hold the call's elements and may be the same address, `targets` and `g`
        /// one entry per row and `kept` two.
        unsafe fn cross_entropy_grad_cpu(
            dtype: Dtype,
            x: *const u8,
            targets: *const i32,
            g: *const u8,
            kept: *const f32,
            out: *mut u8,
            call: &CrossEntropyCall,
        );
        /// `rows * axis` elements are readable at `x` and writable at `out`, which may be the
        /// same address; `weight` and `bias` are null or `axis` elements long.
        unsafe fn layer_norm_cpu(
            dtype: Dtype,
            call: &LayerNormCall,
            x: *const u8,
            weight: *const u8,
            bias: *const u8,
            out: *mut u8,
        );
        /// The buffers hold the call's elements; `bias` (`[n]`) and `residual` (of the shape of
        /// `out`) may be null; `out` may be `residual` and overlaps no other buffer.
        unsafe fn linear_cpu(
            dtype: Dtype,
            x: *const u8,
            w: *const u8,
            bias: *const u8,
            residual: *const u8,
            out: *mut u8,
            call: &LinearCall,
        );
        /// `rows * axis` elements are readable at `x`. `out` holds `rows` elements; with `subtract`
        /// it holds `rows * axis` and may be the same address.
        unsafe fn logsumexp_cpu(
            dtype: Dtype,
            x: *const u8,
            out: *mut u8,
            rows: usize,
            axis: usize,
            subtract: bool,
        );
        /// The buffers hold the elements of the extents; `out` overlaps none of them.
        unsafe fn lora_cpu(call: &LoraCall);
        /// `x` and `out` hold the call's elements and may be the same address; `mask` is null or
        /// holds an element wherever the call's strides lead.
        unsafe fn masked_softmax_cpu(
            dtype: Dtype,
            x: *const u8,
            mask: *const u8,
            out: *mut u8,
            call: &MaskedSoftmaxCall,
        );
        /// `y`, `g` and `out` hold the call's elements and may be the same address; `mask` is null
        /// or holds a bool wherever the call's strides lead.
        unsafe fn masked_softmax_grad_cpu(
            dtype: Dtype,
            y: *const u8,
            g: *const u8,
            mask: *const u8,
            out: *mut u8,
            call: &MaskedSoftmaxCall,
        );
        /// `x` holds `groups * group_size` elements, `packed` as many codes of `bits` bits,
        /// `scales` and `biases` one element per group; nothing overlaps.
        #[allow(clippy::too_many_arguments)]
        unsafe fn quantize_cpu(
            dtype: Dtype,
            x: *const u8,
            packed: *mut u32,
            scales: *mut u8,
            biases: *mut u8,
            groups: usize,
            group_size: usize,
            bits: usize,
        );
        /// The buffers hold what `quantize_cpu` requires, with `out` in place of `x`.
        #[allow(clippy::too_many_arguments)]
        unsafe fn dequantize_cpu(
            dtype: Dtype,
            packed: *const u32,
            scales: *const u8,
            biases: *const u8,
            out: *mut u8,
            groups: usize,
            group_size: usize,
            bits: usize,
        );
        /// The buffers hold what `dequantize_cpu` requires: the inputs `rows` rows of `columns`
        /// groups, and `ids` a number for each `columns` of the `groups` groups of `out`.
        #[allow(clippy::too_many_arguments)]
        unsafe fn dequantize_rows_cpu(
            dtype: Dtype,
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
        );
        /// The buffers hold what `cpu::QuantizedCall` says; `out` may be `residual`.
        unsafe fn quantized_matmul_cpu(call: &QuantizedCall, parts: &[QuantizedPart]);
        /// `rows * axis` elements are readable at `x`, and `rows` are writable at `out`.
        unsafe fn reduce_cpu(
            dtype: Dtype,
            kind: ReductionKind,
            x: *const u8,
            out: *mut u8,
            rows: usize,
            axis: usize,
        );
        /// `rows * axis` elements are readable at `x` and `residual` and writable at `sum` and
        /// `norm`, which overlap nothing; `weight` and `bias` are null or `axis` elements long.
        unsafe fn residual_norm_cpu(
            call: &ResidualNormCall,
            x: *const u8,
            residual: *const u8,
            weight: *const u8,
            bias: *const u8,
            sum: *mut u8,
            norm: *mut u8,
        );
        /// `rows * axis` elements are readable at `x` and writable at `out`, which may be the
        /// same address; `weight` is null or `axis` elements long.
        unsafe fn rms_norm_cpu(
            dtype: Dtype,
            x: *const u8,
            weight: *const u8,
            out: *mut u8,
            rows: usize,
            axis: usize,
            eps: f32,
        );
        /// `x` and `out` hold the call's elements and may be the same address; `freqs` is null
        /// or `dims / 2` long; `offsets` holds one number, or one per batch entry.
        unsafe fn rope_cpu(
            dtype: Dtype,
            x: *const u8,
            out: *mut u8,
            call: &RopeCall,
            freqs: *const f32,
            offsets: *const i32,
            offset_count: usize,
        );
        /// `state` and `out` hold a state of the call's extents and may be the same address,
        /// `qkv` a step; `freqs` is null or `dims / 2` long; `offsets` and `slots` hold the numbers
        /// that the call counts, one or one per batch entry.
        #[allow(clippy::too_many_arguments)]
        unsafe fn rope_append_cpu(
            dtype: Dtype,
            state: *const u8,
            out: *mut u8,
            qkv: *const u8,
            call: &RopeAppendCall,
            freqs: *const f32,
            offsets: *const i32,
            slots: *const i32,
        );
        /// `rows * axis` elements are readable at `x` and writable at `out`, which may be the
        /// same address.
        unsafe fn softmax_cpu(dtype: Dtype, x: *const u8, out: *mut u8, rows: usize, axis: usize);
        /// `x` can be read wherever the shape and the strides, in elements, lead; `out` holds the
        /// shape's elements, which have 1, 2, 4 or 8 bytes.
        unsafe fn copy_cpu(x: *const u8, out: *mut u8, shape: &[i32], strides: &[i64], size: usize);
    }
}
