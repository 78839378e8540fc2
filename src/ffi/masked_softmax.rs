use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// Extents of the scores and what hides them; strides are in elements.
    struct MaskedSoftmaxCall {
        rows: usize,
        queries: usize,
        keys: usize,
        scale: f32,
        causal: bool,
        /// 0 for none.
        window: usize,
        /// Else of bools, if there is a mask.
        additive: bool,
        mask_dims: usize,
        mask_key_stride: i64,
        mask_strides: [i64; 8],
        mask_shape: [u32; 8],
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        unsafe fn masked_softmax(
            x: &MlxArray,
            scale: f32,
            mask: *const MlxArray,
            causal: bool,
            sliding: bool,
            window: i32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `x` and `out` hold the call's elements and may be the same address; `mask` is null or
        /// holds an element wherever the call's strides lead.
        unsafe fn masked_softmax_cpu(
            dtype: Dtype,
            x: *const u8,
            mask: *const u8,
            out: *mut u8,
            call: &MaskedSoftmaxCall,
        );
        /// As above, and so does `g`; the mask is null or of bools.
        unsafe fn masked_softmax_grad_cpu(
            dtype: Dtype,
            y: *const u8,
            g: *const u8,
            mask: *const u8,
            out: *mut u8,
            call: &MaskedSoftmaxCall,
        );
    }
}

use bridge::MaskedSoftmaxCall;

impl MaskedSoftmaxCall {
    fn shape(&self) -> cpu::MaskedSoftmaxShape {
        let Self { rows, queries, keys, causal, window, .. } = *self;
        cpu::MaskedSoftmaxShape { rows, queries, keys, causal, window }
    }

    fn mask(&self, data: *const u8) -> Option<cpu::Mask<'_>> {
        let dims = self.mask_dims.min(self.mask_shape.len());
        (!data.is_null()).then(|| cpu::Mask {
            data,
            additive: self.additive,
            shape: &self.mask_shape[..dims],
            strides: &self.mask_strides[..dims],
            key_stride: self.mask_key_stride as isize,
        })
    }
}

/// # Safety
/// As declared above.
unsafe fn masked_softmax_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    mask: *const u8,
    out: *mut u8,
    call: &MaskedSoftmaxCall,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::masked_softmax(element, x, call.mask(mask), out, &call.shape(), call.scale) }
}

/// # Safety
/// As declared above.
unsafe fn masked_softmax_grad_cpu(
    dtype: bridge::Dtype,
    y: *const u8,
    g: *const u8,
    mask: *const u8,
    out: *mut u8,
    call: &MaskedSoftmaxCall,
) {
    let Some(element) = element(dtype) else { return };
    let (mask, shape) = (call.mask(mask), call.shape());
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::masked_softmax_grad(element, [y, g], mask, out, &shape, call.scale) }
}
