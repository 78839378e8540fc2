use super::element;
use crate::cpu;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// In the order of metal/activation.h (asserted in cpp/bridge/activation.cpp).
    #[repr(u8)]
    enum ActivationKind {
        None,
        Relu,
        Gelu,
        GeluTanh,
        Silu,
        Swiglu,
        Geglu,
        GegluTanh,
        AddRelu,
        MulRelu,
    }

    /// Extents of `x * scale + shift`; scale and shift have 1 column or all of them.
    struct AffineCall {
        rows: usize,
        columns: usize,
        scale_columns: usize,
        shift_columns: usize,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        fn activation(kind: ActivationKind, x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn activation_of_two(
            kind: ActivationKind,
            a: &MlxArray,
            b: &MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn affine(x: &MlxArray, scale: &MlxArray, shift: &MlxArray) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// `size` elements are readable at `a` and `b` (which is `a` where the kind takes one
        /// input) and writable at `out`, which may be either.
        unsafe fn activation_cpu(
            dtype: Dtype,
            kind: ActivationKind,
            a: *const u8,
            b: *const u8,
            out: *mut u8,
            size: usize,
        );
        /// The buffers hold what the call says; `out` may be `x`.
        unsafe fn affine_cpu(
            dtype: Dtype,
            x: *const u8,
            scale: *const u8,
            shift: *const u8,
            out: *mut u8,
            call: &AffineCall,
        );
    }
}

/// The activation of one input that a kind names; none for the kinds of two.
pub(super) fn of_one(kind: bridge::ActivationKind) -> Option<cpu::Activation> {
    match kind {
        bridge::ActivationKind::Relu => Some(cpu::Activation::Relu),
        bridge::ActivationKind::Gelu => Some(cpu::Activation::Gelu),
        bridge::ActivationKind::GeluTanh => Some(cpu::Activation::GeluTanh),
        bridge::ActivationKind::Silu => Some(cpu::Activation::Silu),
        _ => None,
    }
}

fn of_two(kind: bridge::ActivationKind) -> Option<cpu::Combination> {
    match kind {
        bridge::ActivationKind::Swiglu => Some(cpu::Combination::Swiglu),
        bridge::ActivationKind::Geglu => Some(cpu::Combination::Geglu),
        bridge::ActivationKind::GegluTanh => Some(cpu::Combination::GegluTanh),
        bridge::ActivationKind::AddRelu => Some(cpu::Combination::AddRelu),
        bridge::ActivationKind::MulRelu => Some(cpu::Combination::MulRelu),
        _ => None,
    }
}

/// # Safety
/// As declared above.
unsafe fn activation_cpu(
    dtype: bridge::Dtype,
    kind: bridge::ActivationKind,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    size: usize,
) {
    let Some(element) = element(dtype) else { return };
    // SAFETY: the caller's promise is the kernels'.
    unsafe {
        match (of_one(kind), of_two(kind)) {
            (Some(kind), _) => cpu::activation(element, kind, a, out, size),
            (_, Some(kind)) => cpu::combination(element, kind, a, b, out, size),
            _ => {}
        }
    }
}

/// # Safety
/// As declared above.
unsafe fn affine_cpu(
    dtype: bridge::Dtype,
    x: *const u8,
    scale: *const u8,
    shift: *const u8,
    out: *mut u8,
    call: &bridge::AffineCall,
) {
    let Some(element) = element(dtype) else { return };
    let shape = cpu::AffineShape {
        rows: call.rows,
        columns: call.columns,
        scale_columns: call.scale_columns,
        shift_columns: call.shift_columns,
    };
    // SAFETY: the caller's promise is the kernel's.
    unsafe { cpu::affine(element, x, scale, shift, out, &shape) }
}
