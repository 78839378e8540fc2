//! The arguments of a call of attention, and temporary memory for it.

use crate::element::Float;
use crate::row_order::RowOrder;
use crate::simd::LANES;

/// The rows of a key-value head that `decode` processes together.
pub(super) const DECODE_ROWS: usize = 16;
/// The largest head dimension, rounded up to whole blocks.
pub(super) const MAX_DIM: usize = 256;
/// The number of keys whose scores are in memory at the same time.
pub(super) const TILE: usize = 64;

/// An array of rank 4 in memory. The strides of [batch, head, row, feature] count elements.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct View {
    pub data: *const u8,
    pub strides: [isize; 4],
}

impl View {
    /// The address of the first feature of a row, whose elements have type `T`.
    #[inline(always)]
    pub fn at<T>(&self, batch: usize, head: usize, row: usize) -> *const T {
        let [b, h, r, _] = self.strides;
        let offset = batch as isize * b + head as isize * h + row as isize * r;
        self.data.cast::<T>().wrapping_offset(offset)
    }
}

/// Keys or values, plain or quantized.
#[derive(Clone, Copy)]
pub enum Source {
    /// Elements of the call's type.
    Plain(View),
    /// MLX's affine layout: words of 4-bit or 8-bit codes, with a scale and a bias for each
    /// group of features.
    Quantized { packed: View, scales: View, biases: View, bits: usize, group: usize },
}

#[derive(Clone, Copy)]
pub enum Mask {
    None,
    /// One byte for each key; a query attends to the keys whose byte is not zero.
    Bool(View),
    /// Elements of the call's type, added to the scores.
    Additive(View),
}

/// The arguments of one call. Extents are at least 1; `dim` and `value_dim` are at most 256.
#[derive(Clone, Copy)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Features of a query and a key.
    pub dim: usize,
    /// Features of a value and a result.
    pub value_dim: usize,
    pub scale: f32,
    /// Limits scores to `soft_cap * tanh(score / soft_cap)`, unless it is 0.
    pub soft_cap: f32,
    pub causal: bool,
    /// The number of latest positions that a query sees, its position included; 0 sets no limit.
    pub window: usize,
    pub q: View,
    pub k: Source,
    pub v: Source,
    pub mask: Mask,
    /// One logit for each head, of the call's type; null if there are no sinks.
    pub sinks: *const u8,
    pub order: RowOrder,
    /// The number of keys that the cache dropped before the first key. Tiles of prompts begin at
    /// multiples of their length in the whole text.
    pub dropped: usize,
}

// SAFETY: the pointers are addresses of buffers that are only read, as the entry's contract says.
unsafe impl Sync for Attention {}

/// The score of a key that a row must not see. It is finite, so that a row that sees no key weighs
/// all keys equally.
pub(super) const MASKED: f32 = f32::MIN;

impl Attention {
    /// Rows of a key-value head.
    pub(super) fn rows(&self) -> usize {
        self.group() * self.queries
    }

    /// Heads that share a key-value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The floats of a query, padded to whole vectors.
    pub(super) fn query_pitch(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }

    /// The floats of a result, padded to whole vectors.
    pub(super) fn value_pitch(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Where the result of a query begins among all results.
    pub(super) fn result(&self, batch: usize, head: usize, query: usize) -> usize {
        ((batch * self.queries + query) * self.heads + head) * self.value_dim
    }

    /// The head and position of a row.
    pub(super) fn place(&self, kv_head: usize, row: usize) -> (usize, usize) {
        (kv_head * self.group() + row % self.group(), row / self.group())
    }

    /// The keys that a query sees by the causal rule and the window. The range may be empty.
    pub(super) fn visible(&self, query: usize) -> (usize, usize) {
        // One past the query's own position among the keys.
        let end = (self.keys + query + 1).saturating_sub(self.queries);
        let first = if self.window > 0 { end.saturating_sub(self.window) } else { 0 };
        (first.min(self.keys), if self.causal { end.min(self.keys) } else { self.keys })
    }

    /// The range of keys that the rows of the queries `first..=last` have to process.
    pub(super) fn span(&self, first: usize, last: usize) -> (usize, usize) {
        let ((start, first_end), (_, end)) = (self.visible(first), self.visible(last));
        // A row that sees no key weighs all keys equally.
        if start >= first_end { (0, self.keys) } else { (start, end) }
    }

    /// The initial maximum and sum of a row, which include the sink of its head, if it has one.
    ///
    /// # Safety
    /// `sinks` is null or has an element of type `T` for each head.
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

/// Calls `body` with room for `floats` floats, aligned to a cache line. The thread keeps the memory
/// for its next call.
pub(super) fn with_scratch(floats: usize, body: impl FnOnce(*mut f32)) {
    const LINE: usize = 64;
    thread_local! {
        static KEPT: std::cell::Cell<Vec<f32>> = const { std::cell::Cell::new(Vec::new()) };
    }
    // A thread that is ending may have no kept memory.
    let mut kept = KEPT.try_with(std::cell::Cell::take).unwrap_or_default();
    if kept.len() < floats + LINE {
        kept = vec![0.0; floats + LINE];
    }
    let start = kept.as_mut_ptr();
    body(start.wrapping_add(start.align_offset(LINE)));
    let _ = KEPT.try_with(|place| place.set(kept));
}
