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

        fn softmax(x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn builtin_softmax(x: &MlxArray, precise: bool) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `rows * axis` elements are readable at `x` and writable at `out`, which may be the
        /// same address.
        unsafe fn softmax_cpu(dtype: Dtype, x: *const u8, out: *mut u8, rows: usize, axis: usize);
    }
}

/// # Safety
/// As declared above.
unsafe fn softmax_cpu(dtype: bridge::Dtype, x: *const u8, out: *mut u8, rows: usize, axis: usize) {
    if let Some(element) = element(dtype) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::softmax(element, x, out, rows, axis) }
    }
}
