use mlx_primitives::ops::KvLayout;
use mlx_primitives::tune::only_ours;
use mlx_primitives::{Array, Error, Result};

use super::attention_inputs::{AttentionInputs, AttentionMask};
use super::kind::CacheKind;
use super::plain::Plain;
use super::quantized::Quantized;
use super::rotating::Rotating;
use crate::base::{Heads, RopeFrequencies};

/// The cache of one layer, with the length of its text, if that is known and longer, else 0.
#[derive(Clone)]
pub struct LayerCache(pub(super) Kind, pub(super) Padding, pub(super) i32);

/// The number of padding positions before each text of a batch; empty for a batch without padding.
pub(super) type Padding = Vec<i32>;

#[derive(Clone)]
pub(super) enum Kind {
    Plain(Plain),
    Quantized(Quantized),
    Rotating(Rotating),
}

impl LayerCache {
    /// An empty cache.
    ///
    /// # Errors
    ///
    /// Returns an error for bits or groups that MLX does not pack, and for a rotating cache whose
    /// `keep` is not within 0 to `max_size - 1`.
    pub fn new(kind: CacheKind) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("cache", expected));
        let kind = match kind {
            CacheKind::Plain => Kind::Plain(Plain::default()),
            CacheKind::Quantized { group_size, bits } => {
                if ![2, 3, 4, 5, 6, 8].contains(&bits) {
                    return refuse(format_args!("2, 3, 4, 5, 6 or 8 bits, got {bits}"));
                }
                if ![32, 64, 128].contains(&group_size) {
                    return refuse(format_args!("groups of 32, 64 or 128, got {group_size}"));
                }
                Kind::Quantized(Quantized::new(group_size, bits))
            }
            CacheKind::Rotating { max_size, keep } => {
                if max_size < 1 || !(0..max_size).contains(&keep) {
                    return refuse(format_args!(
                        "a size above 0 and keep below it, got {max_size} and {keep}"
                    ));
                }
                Kind::Rotating(Rotating::new(max_size, keep))
            }
        };
        Ok(kind.into())
    }

    /// The number of positions that were appended.
    pub fn len(&self) -> i32 {
        match &self.0 {
            Kind::Plain(cache) => cache.len(),
            Kind::Quantized(cache) => cache.len(),
            Kind::Rotating(cache) => cache.len(),
        }
    }

    /// Whether no position was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the next positions. `qkv` is the fused projection of queries, keys and values,
    /// `[batch, time, (heads + 2 * kv_heads) * head_dim]`; this method rotates queries and keys.
    ///
    /// # Errors
    ///
    /// Returns an error if `qkv` has another shape, if the groups of a quantized cache do not
    /// divide a head's features, or if there would be more positions than an `i32` counts. The
    /// cache then stays as it was.
    pub fn append(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
    ) -> Result<AttentionInputs> {
        self.check(qkv, heads)?;
        let rope = &*rope.of_text(self.2);
        match &mut self.0 {
            Kind::Plain(cache) => cache.append(qkv, heads, rope),
            Kind::Quantized(cache) => cache.append(qkv, heads, rope),
            Kind::Rotating(cache) => cache.append(qkv, heads, rope),
        }
    }

    /// Appends the next positions as [`append`](Self::append) does, and returns the attention
    /// `[batch, time, heads * head_dim]` of their queries by one op. `None`, and nothing is
    /// appended, for quantized keys and values, for many positions, and where measurements choose
    /// between our attention and MLX's.
    pub(crate) fn attend(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
        mask: &AttentionMask,
    ) -> Result<Option<Array>> {
        self.check(qkv, heads)?;
        let time = qkv.dim(1)?;
        if time > KvLayout::QUERY_POSITIONS || !only_ours()? {
            return Ok(None);
        }
        let rope = &*rope.of_text(self.2);
        match &mut self.0 {
            Kind::Plain(cache) => cache.attend(qkv, heads, rope, mask.rules()).map(Some),
            Kind::Rotating(cache) => cache.attend(qkv, heads, rope, mask.rules()).map(Some),
            Kind::Quantized(_) => Ok(None),
        }
    }

    fn check(&self, qkv: &Array, heads: Heads) -> Result<()> {
        let width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
        let shape = qkv.shape();
        if shape.len() != 3 || shape[2] != width || self.len().checked_add(shape[1]).is_none() {
            return Err(Error::argument(
                "cache",
                format_args!("a projection [batch, time, {width}], got {shape:?}"),
            ));
        }
        Ok(())
    }

    /// The keys that the next `time` queries see.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the mask.
    pub fn mask(&self, time: i32) -> Result<AttentionMask> {
        if self.1.iter().any(|padding| *padding > 0) {
            return self.beside_padding(time);
        }
        if time == 1 {
            return Ok(AttentionMask::All);
        }
        let (start, window) = match &self.0 {
            Kind::Rotating(cache) => cache.before(),
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

    /// The bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// The arrays of the buffers.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (kv, buffers) = match &self.0 {
            Kind::Plain(cache) => (cache.array(), None),
            Kind::Quantized(cache) => (None, cache.buffers()),
            Kind::Rotating(cache) => (cache.array(), None),
        };
        kv.into_iter().chain(buffers.into_iter().flatten())
    }
}

impl Default for LayerCache {
    /// An empty cache of the plain kind.
    fn default() -> Self {
        Kind::Plain(Plain::default()).into()
    }
}

impl From<Kind> for LayerCache {
    fn from(kind: Kind) -> Self {
        Self(kind, Padding::new(), 0)
    }
}
