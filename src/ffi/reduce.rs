use super::element;
use crate::cpu::{self, Reduction};

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Asserted by cxx to be the enumeration of `cpp/ops/reduce.h`.
    #[namespace = "mlx_primitives"]
    #[repr(u8)]
    enum ReductionKind {
        Sum,
        Mean,
        Max,
        SumOfSquares,
        Norm,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;
        #[namespace = "mlx_primitives"]
        type ReductionKind;

        fn reduction(
            x: &MlxArray,
            kind: ReductionKind,
            all: bool,
            keepdims: bool,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `rows * axis` elements are readable at `x`, and `rows` are writable at `out`.
        unsafe fn reduce_cpu(
            dtype: Dtype,
            kind: ReductionKind,
            x: *const u8,
            out: *mut u8,
            rows: usize,
            axis: usize,
        );
    }
}

/// # Safety
/// As declared above.
unsafe fn reduce_cpu(
    dtype: bridge::Dtype,
    kind: bridge::ReductionKind,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    let kind = match kind {
        bridge::ReductionKind::Sum => Reduction::Sum,
        bridge::ReductionKind::Mean => Reduction::Mean,
        bridge::ReductionKind::Max => Reduction::Max,
        bridge::ReductionKind::SumOfSquares => Reduction::SumOfSquares,
        bridge::ReductionKind::Norm => Reduction::Norm,
        _ => return,
    };
    if let Some(element) = element(dtype) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::reduce(element, kind, x, out, rows, axis) }
    }
}
