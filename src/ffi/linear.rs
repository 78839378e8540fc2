use super::activation::of_one;
use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
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

    unsafe extern "C++" {
        include!("bridge/ops.h");
        include!("mlx-primitives/src/ffi/activation.rs.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;
        type ActivationKind = crate::ffi::activation::bridge::ActivationKind;

        /// `bias` and `residual` are null or arrays.
        unsafe fn linear(
            x: &MlxArray,
            w: &MlxArray,
            bias: *const MlxArray,
            activation: ActivationKind,
            residual: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn matmul(a: &MlxArray, b: &MlxArray, transposed: bool) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
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
    }
}

/// # Safety
/// As declared above.
unsafe fn linear_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    w: *const u8,
    bias: *const u8,
    residual: *const u8,
    out: *mut u8,
    call: &bridge::LinearCall,
) {
    let Some(element) = element(dtype) else { return };
    let bridge::LinearCall { batch, m, n, k, columns, w_batched, .. } = *call;
    let activation = of_one(call.activation);
    let bytes = element.bytes();
    for entry in 0..batch {
        let w = w.wrapping_add(if w_batched { entry * n * k * bytes } else { 0 });
        let residual = if residual.is_null() {
            residual
        } else {
            residual.wrapping_add(entry * m * n * bytes)
        };
        let x = x.wrapping_add(entry * m * k * bytes);
        let out = out.wrapping_add(entry * m * n * bytes);
        let call = cpu::LinearCall { m, n, k, x, w, columns, bias, activation, residual, out };
        // SAFETY: the caller's promise is the kernel's, entry by entry.
        unsafe { cpu::linear(element, &call) }
    }
}
