use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    struct ResidualNormCall {
        dtype: Dtype,
        rows: usize,
        axis: usize,
        eps: f32,
        /// Layer normalisation, else RMS.
        centered: bool,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn rms_norm_residual(
            x: &MlxArray,
            residual: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        unsafe fn layer_norm_residual(
            x: &MlxArray,
            residual: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
    }

    extern "Rust" {
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
    }
}

/// # Safety
/// As declared above.
unsafe fn residual_norm_cpu(
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
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::residual_norm(element, call) }
    }
}
