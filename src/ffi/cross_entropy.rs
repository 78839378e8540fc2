use std::slice;

use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents of the logits and what they are held against.
    struct CrossEntropyCall {
        rows: usize,
        classes: usize,
        smoothing: f32,
        /// Whether rows of the target `ignored` cost nothing.
        ignores: bool,
        ignored: i32,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        fn cross_entropy(
            x: &MlxArray,
            targets: &MlxArray,
            smoothing: f32,
            ignores: bool,
            ignored: i32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `x` holds the call's elements, `targets` and `loss` an entry a row and `kept` two.
        unsafe fn cross_entropy_cpu(
            dtype: Dtype,
            x: *const u8,
            targets: *const i32,
            loss: *mut u8,
            kept: *mut f32,
            call: &CrossEntropyCall,
        );
        /// `x` and `out` hold the call's elements and may be the same address, `targets` and `g`
        /// an entry a row and `kept` two.
        unsafe fn cross_entropy_grad_cpu(
            dtype: Dtype,
            x: *const u8,
            targets: *const i32,
            g: *const u8,
            kept: *const f32,
            out: *mut u8,
            call: &CrossEntropyCall,
        );
    }
}

use bridge::CrossEntropyCall;

impl CrossEntropyCall {
    /// # Safety
    /// `classes` holds an entry for each row as long as the result is used.
    unsafe fn targets<'a>(&self, classes: *const i32) -> cpu::Targets<'a> {
        cpu::Targets {
            // SAFETY: the caller's promise; MLX aligns buffers and there is at least one row.
            classes: unsafe { slice::from_raw_parts(classes, self.rows) },
            smoothing: self.smoothing,
            ignored: self.ignores.then_some(self.ignored),
        }
    }
}

/// # Safety
/// As declared above.
unsafe fn cross_entropy_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    targets: *const i32,
    loss: *mut u8,
    kept: *mut f32,
    call: &CrossEntropyCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::cross_entropy(element, x, call.targets(targets), loss, kept, call.classes) }
}

/// # Safety
/// As declared above.
unsafe fn cross_entropy_grad_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    targets: *const i32,
    g: *const u8,
    kept: *const f32,
    out: *mut u8,
    call: &CrossEntropyCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller's promise is the kernel's.
    unsafe {
        let targets = call.targets(targets);
        cpu::cross_entropy_grad(element, [x, g], targets, kept, out, call.classes)
    }
}
