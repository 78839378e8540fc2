use super::element;
use crate::cpu;

#[allow(clippy::too_many_arguments)] // C++ takes the parts of keys and values one by one
#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// How scores become weights; a window or a cap of 0 is none.
    struct AttentionRules {
        scale: f32,
        causal: bool,
        window: i32,
        soft_cap: f32,
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

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn attention(
            q: &MlxArray,
            k: &MlxArray,
            v: &MlxArray,
            rules: &AttentionRules,
            mask: *const MlxArray,
            sinks: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn attention_quantized(
            q: &MlxArray,
            k: &CxxVector<MlxArray>,
            v: &CxxVector<MlxArray>,
            bits: i32,
            group_size: i32,
            rules: &AttentionRules,
            mask: *const MlxArray,
            sinks: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// The views hold the call's elements of `dtype` (words of u32 where packed, bytes where
        /// the mask is of bools); `sinks` is null or holds one for each head; `out` is
        /// row-contiguous, writable and overlaps none of them.
        unsafe fn attention_cpu(dtype: Dtype, call: &AttentionCall, sinks: *const u8, out: *mut u8);
    }
}

fn view(of: &bridge::AttentionView) -> cpu::View {
    cpu::View {
        data: std::ptr::with_exposed_provenance(of.address),
        strides: of.strides.map(|stride| stride as isize),
    }
}

/// # Safety
/// As declared above.
unsafe fn attention_cpu(
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
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::attention(element, &attention, out) }
}
