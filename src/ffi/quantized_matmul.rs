use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// How weights are packed.
    #[derive(Clone, Copy)]
    struct QuantizedLayout {
        group_size: i32,
        bits: i32,
        mxfp4: bool,
    }

    /// What surrounds the products, besides arrays.
    struct QuantizedSteps {
        eps: f32,
        swiglu: bool,
    }

    /// One product for the CPU; pointers to what is not there are null.
    struct QuantizedCall {
        dtype: Dtype,
        mxfp4: bool,
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

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        fn check_quantized(weight: &CxxVector<MlxArray>, layout: &QuantizedLayout) -> Result<()>;
        unsafe fn quantized_matmul(
            x: &MlxArray,
            weights: &CxxVector<MlxArray>,
            layout: &QuantizedLayout,
            steps: &QuantizedSteps,
            norm: *const MlxArray,
            bias: *const MlxArray,
            residual: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn pack_matrix(
            w: &MlxArray,
            layout: &QuantizedLayout,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn unpack_matrix(
            weight: &CxxVector<MlxArray>,
            layout: &QuantizedLayout,
            dtype: Dtype,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// The buffers hold what `cpu::QuantizedCall` says; `out` may be `residual`.
        unsafe fn quantized_matmul_cpu(call: &QuantizedCall, parts: &[QuantizedPart]);
    }
}

/// # Safety
/// As declared above.
unsafe fn quantized_matmul_cpu(call: &bridge::QuantizedCall, parts: &[bridge::QuantizedPart]) {
    let Some(element) = element(call.dtype) else { return };
    let weights: Vec<_> = parts
        .iter()
        .map(|part| cpu::Weights {
            packed: part.packed,
            scales: part.scales,
            biases: part.biases,
            columns: part.columns,
        })
        .collect();
    let norm = cpu::Norm { weight: call.norm, eps: call.eps };
    let call = cpu::QuantizedCall {
        element,
        mode: if call.mxfp4 { cpu::Mode::Mxfp4 } else { cpu::Mode::Affine },
        bits: call.bits,
        group: call.group,
        x: call.x,
        rows: call.rows,
        axis: call.axis,
        norm: (!norm.weight.is_null()).then_some(norm),
        weights: &weights,
        join: if call.swiglu { cpu::Join::Swiglu } else { cpu::Join::Concatenate },
        bias: call.bias,
        residual: call.residual,
        low_rank: None,
        out: call.out,
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::quantized_matmul(&call) }
}
