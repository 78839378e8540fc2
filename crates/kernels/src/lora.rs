//! Computes `x · Wᵀ + s · (x · Aᵀ) · Bᵀ`: products of the base weights with a low-rank correction.

use super::element::Element;
use super::quantized_matmul::{Call, Join, LowRank, Mode, Weights, quantized_matmul};
use super::row_order::RowOrder;

/// The arguments of one call. Buffers hold elements of the type `element` and are aligned to them.
#[repr(C)]
pub struct LoraCall {
    pub element: Element,
    pub mode: Mode,
    pub order: RowOrder,
    /// The type of the scales of affine weights. If it is not `element`, `element` is f32.
    pub of_scales: Element,
    /// The number of bits of a packed weight.
    pub bits: u32,
    pub group: usize,
    /// `[rows, axis]`
    pub x: *const u8,
    pub rows: usize,
    pub axis: usize,
    /// `[columns, axis]`, plain or packed
    pub weights: Weights,
    pub low: LowRank,
    /// `[rows, columns]`
    pub out: *mut u8,
}

/// Multiplies x with the base weights W and adds the low-rank correction. The products with W, A
/// and B, the scaling and the sum are each rounded to the element type, as separate ops would round
/// them.
///
/// # Safety
/// The buffers have the shapes of the fields, and `out` overlaps no other buffer.
pub unsafe fn lora(call: &LoraCall) {
    let call = Call {
        element: call.element,
        of_scales: call.of_scales,
        mode: call.mode,
        bits: call.bits,
        group: call.group,
        x: call.x,
        rows: call.rows,
        axis: call.axis,
        norm: None,
        weights: &[call.weights],
        join: Join::Concatenate,
        bias: std::ptr::null(),
        residual: std::ptr::null(),
        low_rank: Some(call.low),
        int8: false,
        centered: false,
        order: call.order,
        out: call.out,
    };
    // SAFETY: the caller's contract.
    unsafe { quantized_matmul(&call) }
}
