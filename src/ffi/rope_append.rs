use std::slice;

use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents and parameters of one step.
    struct RopeAppendCall {
        batch: usize,
        heads: usize,
        kv_heads: usize,
        time: usize,
        head_dim: usize,
        capacity: usize,
        dims: usize,
        traditional: bool,
        base: f32,
        scale: f32,
        multiplier: f32,
        offset_count: usize,
        slot_count: usize,
    }

    /// How a state is divided.
    struct AppendLayout {
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        capacity: i32,
    }

    /// What queries and keys are turned by.
    struct AppendRotation {
        dims: i32,
        traditional: bool,
        has_base: bool,
        base: f32,
        scale: f32,
        multiplier: f32,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn rope_append(
            state: &MlxArray,
            qkv: &MlxArray,
            layout: &AppendLayout,
            rotation: &AppendRotation,
            freqs: *const MlxArray,
            offset: &MlxArray,
            slots: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `state` and `out` hold a state of the call's extents and may be the same address,
        /// `qkv` a step; `freqs` is null or `dims / 2` long; `offsets` and `slots` hold as many
        /// numbers as the call says, one or one a batch entry.
        #[allow(clippy::too_many_arguments)]
        unsafe fn rope_append_cpu(
            dtype: Dtype,
            state: *const u8,
            out: *mut u8,
            qkv: *const u8,
            call: &RopeAppendCall,
            freqs: *const f32,
            offsets: *const i32,
            slots: *const i32,
        );
    }
}

/// # Safety
/// As declared above.
#[allow(clippy::too_many_arguments)]
unsafe fn rope_append_cpu(
    dtype: bridge::Dtype,
    state: *const u8,
    out: *mut u8,
    qkv: *const u8,
    call: &bridge::RopeAppendCall,
    freqs: *const f32,
    offsets: *const i32,
    slots: *const i32,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::AppendShape {
        batch: call.batch,
        heads: call.heads,
        kv_heads: call.kv_heads,
        time: call.time,
        head_dim: call.head_dim,
        capacity: call.capacity,
        dims: call.dims,
        traditional: call.traditional,
        scale: call.scale,
        multiplier: call.multiplier,
    };
    // SAFETY: freqs is null or dims / 2 long, the others as long as the call says, and MLX aligns
    // all of them to their elements.
    let (frequencies, offsets, slots) = unsafe {
        let frequencies = if freqs.is_null() {
            cpu::Frequencies::Base(call.base)
        } else {
            cpu::Frequencies::Explicit(slice::from_raw_parts(freqs, call.dims / 2))
        };
        let offsets = slice::from_raw_parts(offsets, call.offset_count);
        (frequencies, offsets, slice::from_raw_parts(slots, call.slot_count))
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::rope_append(element, state, out, qkv, &shape, frequencies, offsets, slots) }
}
