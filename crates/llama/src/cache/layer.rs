use mlx_primitives::ops::{self, KvLayout, RopeAppend};
use mlx_primitives::tune::only_ours;
use mlx_primitives::{Array, Dtype, Error, Result};

use super::attention_inputs::{AttentionInputs, AttentionMask, join_heads};
use super::kind::{CacheKind, rounded_up};
use super::kv_buffer::KvBuffer;
use super::quantized::Quantized;
use super::rotating::{Rotating, takes_order};
use crate::base::{Heads, RopeFrequencies};

/// The cache of one layer.
#[derive(Clone)]
pub struct LayerCache {
    pub(super) storage: Storage,
    /// The length of the sequence that the positions belong to, or 0 if it is unknown. If there are
    /// more positions than this, their number is the length.
    pub(super) text_len: i32,
}

#[derive(Clone)]
pub(super) enum Storage {
    Plain(Plain),
    Quantized(Quantized),
    Rotating(Rotating),
}

impl LayerCache {
    /// Creates an empty cache.
    ///
    /// # Errors
    ///
    /// Returns an error for bits or group sizes that MLX does not support, and for a rotating cache
    /// whose `keep` is not within 0 to `max_size - 1`.
    pub fn new(kind: CacheKind) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("cache", expected));
        let kind = match kind {
            CacheKind::Plain => Storage::Plain(Plain::default()),
            CacheKind::Quantized { group_size, bits } => {
                if ![2, 3, 4, 5, 6, 8].contains(&bits) {
                    return refuse(format_args!("2, 3, 4, 5, 6 or 8 bits, got {bits}"));
                }
                if ![32, 64, 128].contains(&group_size) {
                    return refuse(format_args!("groups of 32, 64 or 128, got {group_size}"));
                }
                Storage::Quantized(Quantized::new(group_size, bits))
            }
            CacheKind::Rotating { max_size, keep } => {
                if max_size < 1 || !(0..max_size).contains(&keep) {
                    return refuse(format_args!(
                        "a size above 0 and keep below it, got {max_size} and {keep}"
                    ));
                }
                Storage::Rotating(Rotating::new(max_size, keep))
            }
        };
        Ok(kind.into())
    }

    /// The number of positions that were appended so far.
    pub fn len(&self) -> i32 {
        match &self.storage {
            Storage::Plain(cache) => cache.len(),
            Storage::Quantized(cache) => cache.len(),
            Storage::Rotating(cache) => cache.len(),
        }
    }

    /// Whether no position was appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the next positions. `qkv` is the fused projection of queries, keys and values,
    /// `[batch, time, (heads + 2 * kv_heads) * head_dim]`. This method rotates queries and keys.
    ///
    /// # Errors
    ///
    /// Returns an error if `qkv` has another shape, if the groups of a quantized cache do not
    /// divide a head's features, or if the number of positions would not fit in an `i32`. After an
    /// error the cache is unchanged.
    pub fn append(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
    ) -> Result<AttentionInputs> {
        let (start, text) = (self.len(), self.text_len);
        if let Storage::Quantized(cache) = &mut self.storage {
            check(start, qkv, heads)?;
            return cache.append(qkv, heads, rope, text);
        }
        self.step(qkv, heads, rope, |buffer, rotation, len| {
            buffer.append(qkv, rope, [start, text, len], rotation)
        })
    }

    /// Appends the next positions as [`append`](Self::append) does, and returns the attention of
    /// their queries, `[batch, time, heads * head_dim]`. A single op appends and attends. Separate
    /// ops are used for quantized keys and values, for many positions, and if ops may choose MLX's
    /// kernels instead of those of mlx-primitives.
    pub(crate) fn attend(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
        mask: &AttentionMask,
    ) -> Result<Array> {
        let dropped = self.dropped(qkv.dim(1)?);
        let few = qkv.shape().get(1).is_some_and(|&time| time <= KvLayout::QUERY_POSITIONS);
        if matches!(self.storage, Storage::Quantized(_)) || !few || !only_ours()? {
            return join_heads(&self.append(qkv, heads, rope)?.attend(mask, dropped)?);
        }
        self.step(qkv, heads, rope, |buffer, rotation, len| {
            let (layout, rules) = (buffer.layout, ops::Attention { dropped, ..mask.rules() });
            let attended;
            (buffer.array, attended) =
                ops::rope_append_attention(&buffer.array, qkv, layout, rotation, len, rules)?;
            Ok(attended)
        })
    }

    /// The number of earlier positions that a step of `time` positions does not see. It is 0 if the
    /// step sees the slots of a rotating cache in the order of memory.
    pub(crate) fn dropped(&self, time: i32) -> i32 {
        match &self.storage {
            Storage::Rotating(cache) if takes_order(time) => cache.len() - cache.before().0,
            _ => 0,
        }
    }

    /// Runs an op and stores the buffer that it returns. The op receives the buffer with room for
    /// the positions of `qkv`, the rotation of these positions, and the number of valid positions
    /// in the buffer afterwards.
    fn step<R>(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
        run: impl FnOnce(&mut KvBuffer, RopeAppend, i32) -> Result<R>,
    ) -> Result<R> {
        let start = self.len();
        check(start, qkv, heads)?;
        let (mut buffer, slot) = match &self.storage {
            Storage::Plain(cache) => (cache.with_room(qkv, heads)?, start),
            Storage::Rotating(cache) => cache.with_room(qkv, heads)?,
            Storage::Quantized(_) => {
                return Err(Error::argument("cache", "keys that are not packed"));
            }
        };
        let time = qkv.dim(1)?;
        let end = start + time;
        let slots = (slot != start).then(|| slot.into());
        let rotation = RopeAppend { slots, ..rope.rotation(start, end.max(self.text_len)) };
        let len = end.min(buffer.layout.capacity);
        let result = run(&mut buffer, rotation, len)?;
        // Drops the previous array. MLX can reuse its memory for the new array if nothing else
        // references it.
        match &mut self.storage {
            Storage::Plain(cache) => (cache.buffer, cache.len) = (Some(buffer), end),
            Storage::Rotating(cache) => cache.step_to(buffer, end, slot + time),
            Storage::Quantized(_) => {}
        }
        Ok(result)
    }

    /// Returns the mask for the next `time` queries.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the mask.
    pub fn mask(&self, time: i32) -> Result<AttentionMask> {
        if time == 1 {
            return Ok(AttentionMask::All);
        }
        let (start, window) = match &self.storage {
            Storage::Rotating(cache) => cache.before(),
            _ => return Ok(AttentionMask::Causal),
        };
        let end = start.saturating_add(time);
        let queries = Array::arange::<i32>(f64::from(start), f64::from(end), 1.0)?;
        let keys = Array::arange::<i32>(0.0, f64::from(end), 1.0)?.expand_dims([0])?;
        let back = queries.expand_dims([1])?.subtract(keys)?;
        let causal = back.greater_equal(0)?;
        if end <= window {
            return Ok(AttentionMask::Causal);
        }
        Ok(AttentionMask::Mask(causal.logical_and(back.less(window)?)?))
    }

    /// Replaces the cache by a plain cache of `len` positions with a batch of 1. Evaluates its
    /// buffer, which is filled with zeros.
    pub(crate) fn reserve(&mut self, len: i32, heads: Heads, dtype: Dtype) -> Result<()> {
        let layout = heads.layout(rounded_up(len + 1));
        let array = layout.zeros(1, dtype)?;
        array.eval()?;
        *self = Storage::Plain(Plain { buffer: Some(KvBuffer { array, layout }), len }).into();
        Ok(())
    }

    /// The size of the buffers in bytes.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// The arrays of the buffers.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (kv, buffers) = match &self.storage {
            Storage::Plain(cache) => (cache.array(), None),
            Storage::Quantized(cache) => (None, cache.buffers()),
            Storage::Rotating(cache) => (cache.array(), None),
        };
        kv.into_iter().chain(buffers.into_iter().flatten())
    }
}

impl Default for LayerCache {
    /// Creates an empty plain cache.
    fn default() -> Self {
        Storage::Plain(Plain::default()).into()
    }
}

impl From<Storage> for LayerCache {
    fn from(storage: Storage) -> Self {
        Self { storage, text_len: 0 }
    }
}

/// Returns an error if the projection has another shape, or if the number of positions would not
/// fit in an `i32`.
fn check(len: i32, qkv: &Array, heads: Heads) -> Result<()> {
    let width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
    let shape = qkv.shape();
    if shape.len() != 3 || shape[2] != width || len.checked_add(shape[1]).is_none() {
        let expected = format_args!("a projection [batch, time, {width}], got {shape:?}");
        return Err(Error::argument("cache", expected));
    }
    Ok(())
}

/// A cache that stores all positions in the model's type.
#[derive(Clone, Default)]
pub(super) struct Plain {
    buffer: Option<KvBuffer>,
    len: i32,
}

impl Plain {
    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn array(&self) -> Option<&Array> {
        self.buffer.as_ref().map(|buffer| &buffer.array)
    }

    pub fn trim(&mut self, count: i32) {
        self.len -= count;
    }

    /// The keys and values of all positions, `[batch, kv_heads, len, head_dim]`.
    pub fn keys_and_values(&self) -> Result<Option<[Array; 2]>> {
        self.buffer.as_ref().map(|buffer| buffer.keys_and_values(self.len)).transpose()
    }

    /// Creates a cache with these keys and values.
    pub fn holding(keys_values: [Array; 2], heads: Heads) -> Result<Self> {
        let len = keys_values[0].dim(2)?;
        let like = keys_values[0].clone();
        let buffer = KvBuffer::holding(Some(keys_values), &like, heads, rounded_up(len))?;
        Ok(Self { buffer: Some(buffer), len })
    }

    /// Returns the buffer, enlarged if it has no room for the positions of `qkv`.
    fn with_room(&self, qkv: &Array, heads: Heads) -> Result<KvBuffer> {
        let end = self.len + qkv.dim(1)?;
        match &self.buffer {
            Some(buffer) if end <= buffer.layout.capacity => Ok(buffer.clone()),
            _ => KvBuffer::holding(self.keys_and_values()?, qkv, heads, rounded_up(end)),
        }
    }
}
