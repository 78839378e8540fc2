//! The arguments of attention and of its derivatives, in the layout that C++ passes. `c_api`
//! declares the functions that take them.

use super::backward_plan::Backward;
use super::{Attention, Mask, Source, View};
use crate::element::Element;
use crate::row_order::RowOrder;

#[repr(C)]
pub struct AttentionCall {
    pub element: Element,
    pub causal: bool,
    /// Whether the mask contains bools. If not, it contains elements to add to the scores.
    pub bool_mask: bool,
    pub order: RowOrder,
    pub scale: f32,
    pub soft_cap: f32,
    pub dropped: u32,
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub value_dim: usize,
    pub window: usize,
    /// The bits of a quantized number. 0 means that keys and values are not quantized; then there
    /// are neither scales nor biases.
    pub bits: usize,
    pub group: usize,
    pub q: View,
    pub k: View,
    pub k_scales: View,
    pub k_biases: View,
    pub v: View,
    pub v_scales: View,
    pub v_biases: View,
    /// The mask. Its data pointer is null if there is no mask.
    pub mask: View,
    /// One element for each head, or null.
    pub sinks: *const u8,
    pub out: *mut u8,
}

/// The derivatives of a call whose keys and values are not quantized. The field `out` of `forward`
/// is not used.
#[repr(C)]
pub struct AttentionGradCall {
    pub forward: AttentionCall,
    pub cotangent: View,
    pub dq: *mut u8,
    /// `dk` and `dv` are null if the caller does not need them.
    pub dk: *mut u8,
    pub dv: *mut u8,
    /// Null if the caller does not need the derivatives with respect to an additive mask.
    pub dmask: *mut u8,
    /// Null if there are no sinks.
    pub dsinks: *mut u8,
}

impl AttentionCall {
    fn source(&self, data: View, scales: View, biases: View) -> Source {
        match self.bits {
            0 => Source::Plain(data),
            bits => Source::Quantized { packed: data, scales, biases, bits, group: self.group },
        }
    }

    fn mask(&self) -> Mask {
        match (self.mask.data.is_null(), self.bool_mask) {
            (true, _) => Mask::None,
            (_, true) => Mask::Bool(self.mask),
            (_, false) => Mask::Additive(self.mask),
        }
    }

    pub fn attention(&self) -> Attention {
        let Self { batch, heads, kv_heads, queries, keys, dim, value_dim, .. } = *self;
        let Self { scale, soft_cap, causal, window, q, sinks, order, .. } = *self;
        let k = self.source(self.k, self.k_scales, self.k_biases);
        let v = self.source(self.v, self.v_scales, self.v_biases);
        let (mask, dropped) = (self.mask(), self.dropped as usize);
        Attention {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim,
            scale,
            soft_cap,
            causal,
            window,
            q,
            k,
            v,
            mask,
            sinks,
            order,
            dropped,
        }
    }
}

impl AttentionGradCall {
    pub fn backward(&self) -> Backward {
        let Self { ref forward, cotangent, dq, dk, dv, dmask, dsinks } = *self;
        Backward { forward: forward.attention(), cotangent, dq, dk, dv, dmask, dsinks }
    }
}
