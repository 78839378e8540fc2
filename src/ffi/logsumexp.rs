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

        fn logsumexp(x: &MlxArray, keepdims: bool) -> Result<UniquePtr<MlxArray>>;
        fn log_softmax(x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
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
    }
}

/// # Safety
/// As declared above.
unsafe fn logsumexp_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    subtract: bool,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller's promise is the kernel's.
    unsafe {
        if subtract {
            cpu::log_softmax(element, x, out, rows, axis);
        } else {
            cpu::logsumexp(element, x, out, rows, axis);
        }
    }
}
