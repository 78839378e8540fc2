use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    struct LayerNormCall {
        rows: usize,
        axis: usize,
        eps: f32,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn layer_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_layer_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
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
    }
}

/// # Safety
/// As declared above.
unsafe fn layer_norm_cpu(
    dtype: bridge::Dtype,
    call: &bridge::LayerNormCall,
    x: *const u8,
    weight: *const u8,
    bias: *const u8,
    out: *mut u8,
) {
    let bridge::LayerNormCall { rows, axis, eps } = *call;
    if let Some(element) = element(dtype) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::layer_norm(element, x, weight, bias, out, rows, axis, eps) }
    }
}
