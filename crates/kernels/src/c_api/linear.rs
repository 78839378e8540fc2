//! The arguments of a batch of products, in the layout that C++ passes.

use crate::{Activation, Element, RowOrder};

/// `batch` products of the same shape. `x`, `residual`, `out` and, with `w_batched`, `w` hold the
/// arrays of all products, one after another. All products share `bias`.
#[repr(C)]
pub struct LinearCall {
    pub element: Element,
    /// Whether each product has a separate `w`.
    pub w_batched: bool,
    pub columns: bool,
    pub turned: bool,
    /// 0 for no activation, or the number of an [`Activation`].
    pub activation: u8,
    pub order: RowOrder,
    pub of_w: Element,
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: *const u8,
    pub w: *const u8,
    pub bias: *const u8,
    pub residual: *const u8,
    pub out: *mut u8,
}

impl LinearCall {
    /// Returns the call for product `entry` of the batch.
    pub fn at(&self, entry: usize) -> crate::LinearCall {
        let Self { m, n, k, columns, turned, bias, residual, order, of_w, .. } = *self;
        let start = |elements: usize| entry * elements * self.element.bytes();
        let activation = match self.activation {
            1 => Some(Activation::Relu),
            2 => Some(Activation::Gelu),
            3 => Some(Activation::GeluTanh),
            4 => Some(Activation::Silu),
            _ => None,
        };
        let skipped = if residual.is_null() { 0 } else { start(m * n) };
        crate::LinearCall {
            m,
            n,
            k,
            x: self.x.wrapping_add(start(m * k)),
            w: self.w.wrapping_add(if self.w_batched { start(n * k) } else { 0 }),
            of_w,
            turned,
            columns,
            bias,
            activation,
            residual: residual.wrapping_add(skipped),
            order,
            out: self.out.wrapping_add(start(m * n)),
        }
    }
}
