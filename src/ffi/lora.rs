use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// One product for the CPU; a plain base has no scales, an mxfp4 one no biases.
    struct LoraCall {
        dtype: Dtype,
        quantized: bool,
        mxfp4: bool,
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

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;
        type QuantizedLayout = crate::ffi::quantized_matmul::bridge::QuantizedLayout;

        unsafe fn lora_linear(
            x: &MlxArray,
            base: &CxxVector<MlxArray>,
            layout: *const QuantizedLayout,
            a: &MlxArray,
            b: &MlxArray,
            scale: f32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// The buffers hold what the extents say; `out` overlaps none.
        unsafe fn lora_cpu(call: &LoraCall);
    }
}

/// # Safety
/// As declared above.
unsafe fn lora_cpu(call: &bridge::LoraCall) {
    let Some(element) = element(call.dtype) else { return };
    let mode = match (call.quantized, call.mxfp4) {
        (false, _) => cpu::Mode::Plain,
        (true, false) => cpu::Mode::Affine,
        (true, true) => cpu::Mode::Mxfp4,
    };
    let weights = cpu::Weights {
        packed: call.base,
        scales: call.scales,
        biases: call.biases,
        columns: call.columns,
    };
    let low = cpu::LowRank { a: call.a, b: call.b, rank: call.rank, scale: call.scale };
    let call = cpu::LoraCall {
        element,
        mode,
        bits: call.bits,
        group: call.group,
        x: call.x,
        rows: call.rows,
        axis: call.axis,
        weights,
        low,
        out: call.out,
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::lora(&call) }
}
