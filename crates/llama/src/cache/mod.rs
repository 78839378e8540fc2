//! The keys and values of the positions so far, for each layer.

mod edit;
mod kv_buffer;
mod plain;
mod quantized;
mod rotating;
mod saved;

use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::ops::{self, KvLayout, QuantizedRows};
use mlx_primitives::tune::only_ours;
use mlx_primitives::{Error, Result};

use super::config::Config;
use super::rope_frequencies::RopeFrequencies;
use plain::Plain;
use quantized::Quantized;
use rotating::Rotating;
pub(super) use saved::Expected;

/// The number of positions by which a layer's buffers grow.
pub(super) const STEP: i32 = 256;

/// How a cache keeps keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// All positions, in the model's type.
    #[default]
    Plain,
    /// All positions, in codes of 2 to 8 bits ([`ops::quantize`]).
    Quantized {
        /// The number of elements that share a scale: 32, 64 or 128, a divisor of a head's
        /// features.
        group_size: i32,
        /// The bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: i32,
    },
    /// The first `keep` positions and the latest ones, as in mlx-lm's `RotatingKVCache`: a step of
    /// one position replaces the oldest of the latest ones.
    Rotating {
        /// The total number of positions that are kept.
        max_size: i32,
        /// The number of first positions that are never replaced, less than `max_size`.
        keep: i32,
    },
}

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The number of query heads.
    pub heads: i32,
    /// The number of key heads, which is that of value heads.
    pub kv_heads: i32,
    /// The number of features of a head.
    pub head_dim: i32,
}

impl From<&Config> for Heads {
    fn from(config: &Config) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        Self { heads, kv_heads, head_dim: config.head_dim() }
    }
}

impl Heads {
    /// The layout of a layer's buffer with room for `capacity` positions.
    fn layout(&self, capacity: i32) -> KvLayout {
        let Self { heads, kv_heads, head_dim } = *self;
        KvLayout { heads, kv_heads, head_dim, capacity }
    }

    /// The vectors of heads `from` to `to`, `[batch, to - from, time, head_dim]`, of a projection
    /// that has the features of all heads one after the other.
    fn split(&self, qkv: &Array, from: i32, to: i32) -> Result<Array> {
        let (batch, time, features) = (qkv.dim(0)?, qkv.dim(1)?, self.head_dim);
        qkv.slice_axis(2, from * features..to * features)?
            .reshape([batch, time, to - from, features])?
            .transpose([0, 2, 1, 3])
    }
}

/// The keys or values of a layer, `[batch, kv_heads, seen, head_dim]`, plain or packed along the
/// last axis.
#[derive(Clone, Debug)]
pub enum KvTensor {
    /// Numbers in the model's type.
    Plain(Array),
    /// The codes, scales and biases that [`ops::quantize`] returns.
    Quantized {
        /// The packed codes, uint32.
        packed: Array,
        /// The scale of each group.
        scales: Array,
        /// The bias of each group.
        biases: Array,
        /// The number of elements of a group.
        group_size: i32,
        /// The bits of a code.
        bits: i32,
    },
}

impl KvTensor {
    /// The packed rows, bits and group size, or `None` if attention cannot read the codes directly.
    pub(super) fn rows(&self) -> Option<(QuantizedRows<'_>, i32, i32)> {
        match self {
            Self::Quantized { packed, scales, biases, group_size, bits: bits @ (4 | 8) } => {
                Some((QuantizedRows { packed, scales, biases }, *bits, *group_size))
            }
            _ => None,
        }
    }

    /// The numbers, in the model's type.
    ///
    /// # Errors
    ///
    /// Returns an error if packed parts do not fit together. Those of a [`LayerCache`] always do.
    pub fn dequantized(&self) -> Result<Array> {
        match self {
            Self::Plain(array) => Ok(array.clone()),
            Self::Quantized { packed, scales, biases, group_size, bits } => {
                ops::dequantize(packed, scales, biases, *group_size, *bits)
            }
        }
    }
}

/// The keys that the queries of a step see.
#[derive(Clone, Debug)]
pub enum AttentionMask {
    /// All keys, as a single query does.
    All,
    /// The keys up to the position of the query. The last query is at the position of the last key.
    Causal,
    /// The keys for which these bools are true: `[time, seen]`, or `[batch, 1, time, seen]` for a
    /// batch with padding.
    Mask(Array),
}

/// The queries, keys and values of a step of attention: views of the cache if its kind allows them.
#[derive(Clone, Debug)]
pub struct AttentionInputs {
    /// The rotated queries of the step, `[batch, heads, time, head_dim]`.
    pub queries: Array,
    /// The keys of all positions that are kept, those of the step included.
    pub keys: KvTensor,
    /// The values of the same positions.
    pub values: KvTensor,
}

/// The cache of one layer, with the length of its text, if that is known and longer, else 0.
#[derive(Clone)]
pub struct LayerCache(Kind, Padding, i32);

/// The number of padding positions before each text of a batch; empty for a batch without padding.
type Padding = Vec<i32>;

#[derive(Clone)]
enum Kind {
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
    pub(super) fn attend(
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

/// The caches of all layers of a model.
///
/// Buffers grow in steps of 256 positions, and are written in place in between.
#[derive(Clone)]
pub struct Cache {
    pub(super) layers: Vec<LayerCache>,
}

impl Cache {
    /// An empty cache for a model of `layers` layers, all of one kind.
    ///
    /// # Errors
    ///
    /// Returns an error for bits or groups that MLX does not pack, and for a rotating cache whose
    /// `keep` is not within 0 to `max_size - 1`.
    ///
    /// ```
    /// use mlx_primitives_llama::{Cache, CacheKind};
    ///
    /// let cache = Cache::new(2, CacheKind::Quantized { group_size: 64, bits: 8 })?;
    /// assert!(cache.is_empty() && cache.nbytes() == 0);
    /// assert!(Cache::new(2, CacheKind::Rotating { max_size: 4, keep: 4 }).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn new(layers: usize, kind: CacheKind) -> Result<Self> {
        Ok(Self { layers: vec![LayerCache::new(kind)?; layers] })
    }

    /// The number of positions that were appended.
    pub fn len(&self) -> i32 {
        self.layers.first().map_or(0, LayerCache::len)
    }

    /// Whether no position was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.layers.iter().map(LayerCache::nbytes).sum()
    }

    /// The keys that the next `time` queries see in the first layer.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the mask.
    pub fn mask(&self, time: i32) -> Result<AttentionMask> {
        self.layers.first().map_or(Ok(AttentionMask::All), |layer| layer.mask(time))
    }

    /// Fills an empty cache of the plain kind with evaluated buffers, of which `len` positions of
    /// one text are used.
    pub(super) fn reserve(&mut self, len: i32, heads: Heads, dtype: Dtype) -> Result<()> {
        for layer in &mut self.layers {
            let Kind::Plain(plain) = &mut layer.0 else {
                return Err(Error::argument("cache", "one of the plain kind"));
            };
            plain.reserve(len, heads, dtype)?;
        }
        Ok(())
    }

    /// The arrays of the buffers, for evaluation.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }
}
