//! The arguments of an attention call, and temporary memory for the call.

use crate::element::Float;
use crate::row_order::RowOrder;
use crate::simd::LANES;

/// The maximum number of rows that `decode` processes together. A row is one query of one of the
/// heads that share a key/value head.
pub(super) const DECODE_ROWS: usize = 16;
/// The largest number of features of a query, key or value. It is a multiple of the vector
/// length.
pub(super) const MAX_DIM: usize = 256;
/// The number of keys in a tile. The scores of one tile are in memory at a time.
pub(super) const TILE: usize = 64;

/// An array with four axes, [batch, head, row, feature]. The strides count elements.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct View {
    pub data: *const u8,
    pub strides: [isize; 4],
}

impl View {
    /// Returns the address of the first feature of a row. The elements have type `T`.
    #[inline(always)]
    pub fn at<T>(&self, batch: usize, head: usize, row: usize) -> *const T {
        let [b, h, r, _] = self.strides;
        let offset = batch as isize * b + head as isize * h + row as isize * r;
        self.data.cast::<T>().wrapping_offset(offset)
    }
}

/// Keys or values, which may be quantized.
#[derive(Clone, Copy)]
pub enum Source {
    /// Elements of the call's type.
    Plain(View),
    /// MLX's affine layout: words that contain 4-bit or 8-bit codes, and a scale and a bias for
    /// each group of features.
    Quantized { packed: View, scales: View, biases: View, bits: usize, group: usize },
}

#[derive(Clone, Copy)]
pub enum Mask {
    None,
    /// One byte for each query and key. A query attends to the keys whose byte is not zero.
    Bool(View),
    /// Elements of the call's type, which are added to the scores.
    Additive(View),
}

/// The arguments of one call. All extents must be at least 1. `dim` and `value_dim` must be at most
/// 256.
#[derive(Clone, Copy)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Features of a query and a key.
    pub dim: usize,
    /// The number of features of a value and of a result.
    pub value_dim: usize,
    pub scale: f32,
    /// If this is not 0, each score is limited to `soft_cap * tanh(score / soft_cap)`.
    pub soft_cap: f32,
    pub causal: bool,
    /// The number of latest positions that a query sees, including its own position. 0 means no
    /// limit.
    pub window: usize,
    pub q: View,
    pub k: Source,
    pub v: Source,
    pub mask: Mask,
    /// One logit of the call's type for each head, or null if there are no sinks.
    pub sinks: *const u8,
    pub order: RowOrder,
    /// The number of earlier keys that the cache has dropped. Positions count these keys too, and
    /// the tiles of a prompt begin at positions that are multiples of the tile length.
    pub dropped: usize,
}

// SAFETY: `attention` only reads the buffers behind these pointers, as its contract says.
unsafe impl Sync for Attention {}

/// The score of a masked key. It is finite, so that a row that sees no key weighs all keys equally.
pub(super) const MASKED: f32 = f32::MIN;

impl Attention {
    /// Returns the number of rows of a key/value head.
    pub(super) fn rows(&self) -> usize {
        self.group() * self.queries
    }

    /// Returns the number of query heads that share a key/value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the number of floats of a query, padded to a multiple of the vector length.
    pub(super) fn query_pitch(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }

    /// Returns the number of floats of a result, padded to a multiple of the vector length.
    pub(super) fn value_pitch(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Returns the offset of a query's result in the array of all results.
    pub(super) fn result(&self, batch: usize, head: usize, query: usize) -> usize {
        ((batch * self.queries + query) * self.heads + head) * self.value_dim
    }

    /// Returns the head and query position of a row.
    pub(super) fn place(&self, kv_head: usize, row: usize) -> (usize, usize) {
        (kv_head * self.group() + row % self.group(), row / self.group())
    }

    /// Returns the range of keys that a query sees under the causal rule and the window. The range
    /// may be empty.
    pub(super) fn visible(&self, query: usize) -> (usize, usize) {
        // The query's own position among the keys, plus one.
        let end = (self.keys + query + 1).saturating_sub(self.queries);
        let first = if self.window > 0 { end.saturating_sub(self.window) } else { 0 };
        (first.min(self.keys), if self.causal { end.min(self.keys) } else { self.keys })
    }

    /// Returns the range of keys that the queries `first..=last` have to process.
    pub(super) fn span(&self, first: usize, last: usize) -> (usize, usize) {
        let ((start, first_end), (_, end)) = (self.visible(first), self.visible(last));
        // A row that sees no key weighs all keys equally, so it needs all keys.
        if start >= first_end { (0, self.keys) } else { (start, end) }
    }

    /// Returns the initial maximum and sum of a row. They include the sink of the row's head, if
    /// there is one.
    ///
    /// # Safety
    /// `sinks` must be null or have an element of type `T` for each head.
    pub(super) unsafe fn start<T: Float>(&self, head: usize) -> (f32, f32) {
        if self.sinks.is_null() {
            return (MASKED, 0.0);
        }
        // SAFETY: the caller's contract.
        let sink = unsafe { T::to_float(*self.sinks.cast::<T>().add(head)) };
        let max = sink.max(MASKED);
        (max, (sink - max).exp())
    }
}

/// Calls `body` with memory for `floats` floats, aligned to a cache line. The thread keeps this
/// memory for its next call.
pub(super) fn with_scratch(floats: usize, body: impl FnOnce(*mut f32)) {
    const LINE: usize = 64;
    thread_local! {
        static KEPT: std::cell::Cell<Vec<f32>> = const { std::cell::Cell::new(Vec::new()) };
    }
    // In a thread that is ending, the kept memory may already be destroyed.
    let mut kept = KEPT.try_with(std::cell::Cell::take).unwrap_or_default();
    if kept.len() < floats + LINE {
        kept = vec![0.0; floats + LINE];
    }
    let start = kept.as_mut_ptr();
    body(start.wrapping_add(start.align_offset(LINE)));
    let _ = KEPT.try_with(|place| place.set(kept));
}
