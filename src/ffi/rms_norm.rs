use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn rms_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_rms_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
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
    }
}

/// # Safety
/// As declared above.
unsafe fn rms_norm_cpu(
    dtype: bridge::Dtype,
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
