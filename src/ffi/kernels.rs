//! Where C++ enters the CPU kernels.

mod elements;
mod products;
mod rows;

use elements::*;
use products::*;
use rows::*;

#[allow(clippy::too_many_arguments)] // C++ passes extents and buffers one by one
#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents of `x * scale + shift`; scale and shift have 1 column or all of them.
    struct AffineCall {
        rows: usize,
        columns: usize,
        scale_columns: usize,
        shift_columns: usize,
    }

    /// Address of the first element, and strides in elements; address 0 for none.
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

    /// Extents of the logits and what they are held against.
    struct CrossEntropyCall {
        rows: usize,
        classes: usize,
        smoothing: f32,
        /// Whether rows of the target `ignored` cost nothing.
        ignores: bool,
        ignored: i32,
    }

    struct LayerNormCall {
        rows: usize,
        axis: usize,
        eps: f32,
    }

    /// Extents of `[batch, m, k]` times `[n, k]`, or `[k, n]` if `columns`, and what follows.
    struct LinearCall {
        batch: usize,
        m: usize,
        n: usize,
        k: usize,
        columns: bool,
        /// Each batch entry has weights of its own.
        w_batched: bool,
        activation: ActivationKind,
    }

    /// One product for the CPU; a plain base has neither mode nor scales.
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

    /// Extents of the scores and what hides them; strides are in elements.
    struct MaskedSoftmaxCall {
        rows: usize,
        queries: usize,
        keys: usize,
        scale: f32,
        causal: bool,
        /// 0 for none.
        window: usize,
        /// Else of bools, if there is a mask.
        additive: bool,
        mask_dims: usize,
        mask_key_stride: i64,
        mask_strides: [i64; 8],
        mask_shape: [u32; 8],
    }

    /// One product for the CPU; pointers to what is not there are null.
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
        /// Layer normalisation, else RMS.
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

    /// Extents and parameters of one step.
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
        /// `size` elements are readable at `a` and `b` (which is `a` where the kind takes one
        /// input) and writable at `out`, which may be either.
        unsafe fn activation_cpu(
            dtype: Dtype,
            kind: ActivationKind,
            a: *const u8,
            b: *const u8,
            out: *mut u8,
            size: usize,
        );
        /// The buffers hold what the call says; `out` may be `x`.
        unsafe fn affine_cpu(
            dtype: Dtype,
            x: *const u8,
            scale: *const u8,
            shift: *const u8,
            out: *mut u8,
            call: &AffineCall,
        );
        /// The views hold the call's elements of `dtype` (words of u32 where packed, bytes where
        /// the mask is of bools); `sinks` is null or holds one for each head; `out` is
        /// row-contiguous, writable and overlaps none of them.
        unsafe fn attention_cpu(dtype: Dtype, call: &AttentionCall, sinks: *const u8, out: *mut u8);
        /// `x` holds the call's elements, `targets` and `loss` an entry a row and `kept` two.
        unsafe fn cross_entropy_cpu(
            dtype: Dtype,
            x: *const u8,
            targets: *const i32,
            loss: *mut u8,
            kept: *mut f32,
            call: &CrossEntropyCall,
        );
        /// `x` and `out` hold the call's elements and may be the same address, `targets` and `g`
        /// an entry a row and `kept` two.
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
        /// The buffers hold what the call says; `bias` (`[n]`) and `residual` (as `out`) may be
        /// null; `out` overlaps no other but `residual`, which it may be.
        unsafe fn linear_cpu(
            dtype: Dtype,
            x: *const u8,
            w: *const u8,
            bias: *const u8,
            residual: *const u8,
            out: *mut u8,
            call: &LinearCall,
        );
        /// `rows * axis` elements are readable at `x`. `out` holds `rows`, or with `subtract` as
        /// many as `x` and may then be the same address.
        unsafe fn logsumexp_cpu(
            dtype: Dtype,
            x: *const u8,
            out: *mut u8,
            rows: usize,
            axis: usize,
            subtract: bool,
        );
        /// The buffers hold what the extents say; `out` overlaps none.
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
        /// As above, and so does `g`; the mask is null or of bools.
        unsafe fn masked_softmax_grad_cpu(
            dtype: Dtype,
            y: *const u8,
            g: *const u8,
            mask: *const u8,
            out: *mut u8,
            call: &MaskedSoftmaxCall,
        );
        /// `x` holds `groups * group_size` elements, `packed` as many codes of `bits` bits,
        /// `scales` and `biases` one element a group; nothing overlaps.
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
        /// As for `quantize_cpu`, with `out` in place of `x`.
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
        /// or `dims / 2` long; `offsets` holds one entry or one a batch entry.
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
        /// `qkv` a step; `freqs` is null or `dims / 2` long; `offsets` and `slots` hold as many
        /// numbers as the call says, one or one a batch entry.
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
    }
}
