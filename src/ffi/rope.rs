use std::slice;

use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents and parameters of one rotary embedding.
    struct RopeCall {
        batch: usize,
        heads: usize,
        seq: usize,
        head_dim: usize,
        dims: usize,
        traditional: bool,
        forward: bool,
        base: f32,
        scale: f32,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn rope(
            x: &MlxArray,
            dims: i32,
            traditional: bool,
            base: *const f32,
            scale: f32,
            offset: &MlxArray,
            freqs: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_rope(
            x: &MlxArray,
            dims: i32,
            traditional: bool,
            base: *const f32,
            scale: f32,
            offset: &MlxArray,
            freqs: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `x` and `out` hold the call's elements and may be the same address; `freqs` is null
        /// or `dims / 2` long; `offsets` holds one entry or one a batch entry.
        unsafe fn rope_cpu(
            dtype: Dtype,
            x: *const u8,
            out: *mut u8,
            call: &RopeCall,
            freqs: *const f32,
            offsets: *const i32,
            offset_count: usize,
        );
    }
}

/// # Safety
/// As declared above.
unsafe fn rope_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    out: *mut u8,
    call: &bridge::RopeCall,
    freqs: *const f32,
    offsets: *const i32,
    offset_count: usize,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::RopeShape {
        batch: call.batch,
        heads: call.heads,
        seq: call.seq,
        head_dim: call.head_dim,
        dims: call.dims,
        traditional: call.traditional,
        forward: call.forward,
        scale: call.scale,
    };
    // SAFETY: freqs is null or dims / 2 long, offsets offset_count long, and MLX aligns both to
    // their elements.
    let (frequencies, offsets) = unsafe {
        let frequencies = if freqs.is_null() {
            cpu::Frequencies::Base(call.base)
        } else {
            cpu::Frequencies::Explicit(slice::from_raw_parts(freqs, call.dims / 2))
        };
        (frequencies, slice::from_raw_parts(offsets, offset_count))
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::rope(element, x, out, &shape, frequencies, offsets) }
}
