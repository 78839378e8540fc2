use super::element;
use crate::cpu::{self, QuantizeShape};

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        fn quantize(
            x: &MlxArray,
            group_size: i32,
            bits: i32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn dequantize(
            packed: &MlxArray,
            scales: &MlxArray,
            biases: &MlxArray,
            group_size: i32,
            bits: i32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `x` holds `groups * group_size` elements, `packed` as many codes of `bits` bits,
        /// `scales` and `biases` one element a group; nothing overlaps.
        #[allow(clippy::too_many_arguments)]
        unsafe fn quantize_cpu(
            dtype: Dtype,
            x: *const u8,
            packed: *mut u32,
            scales: *mut u8,
            biases: *mut u8,
            groups: usize,
            group_size: usize,
            bits: usize,
        );
        /// As for `quantize_cpu`, with `out` in place of `x`.
        #[allow(clippy::too_many_arguments)]
        unsafe fn dequantize_cpu(
            dtype: Dtype,
            packed: *const u32,
            scales: *const u8,
            biases: *const u8,
            out: *mut u8,
            groups: usize,
            group_size: usize,
            bits: usize,
        );
    }
}

/// # Safety
/// As declared above.
#[allow(clippy::too_many_arguments)]
unsafe fn quantize_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    packed: *mut u32,
    scales: *mut u8,
    biases: *mut u8,
    groups: usize,
    group_size: usize,
    bits: usize,
) {
    if let Some(element) = element(dtype) {
        let shape = QuantizeShape { groups, group_size, bits };
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::quantize(element, x, packed, scales, biases, &shape) }
    }
}

/// # Safety
/// As declared above.
#[allow(clippy::too_many_arguments)]
unsafe fn dequantize_cpu(
    dtype: bridge::Dtype,
    packed: *const u32,
    scales: *const u8,
    biases: *const u8,
    out: *mut u8,
    groups: usize,
    group_size: usize,
    bits: usize,
) {
    if let Some(element) = element(dtype) {
        let shape = QuantizeShape { groups, group_size, bits };
        // SAFETY: the caller's promise is the kernel's.
        unsafe { cpu::dequantize(element, packed, scales, biases, out, &shape) }
    }
}
