//! Keys and values of the positions seen so far, for each layer.

mod edit;
mod kv_buffer;
mod plain;
mod quantized;
mod rotating;
mod saved;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{self, QuantizedRows, StateLayout};

use super::config::Config;
use super::rope_frequencies::RopeFrequencies;
use plain::Plain;
use quantized::Quantized;
use rotating::Rotating;
pub(super) use saved::Expected;

/// Positions by which a layer's buffers grow.
pub(super) const STEP: i32 = 256;

/// How a cache keeps what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// All positions, in the model's type.
    #[default]
    Plain,
    /// All positions, in codes of 2 to 8 bits ([`ops::quantize`]).
    Quantized {
        /// Elements that share a scale: 32, 64 or 128, a divisor of the head's features.
        group_size: i32,
        /// Bits of an element.
        bits: i32,
    },
    /// The first `keep` positions and the latest ones, as mlx-lm's `RotatingKVCache`: a step of
    /// one position replaces the oldest that is not kept.
    Rotating {
        /// Positions kept in all.
        max_size: i32,
        /// First positions that are never replaced, fewer than `max_size`.
        keep: i32,
    },
}

/// Heads of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
}

impl From<&Config> for Heads {
    fn from(config: &Config) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        Self { heads, kv_heads, head_dim: config.head_dim() }
    }
}

impl Heads {
    /// How a layer's buffer with room for `capacity` positions is divided.
    fn layout(&self, capacity: i32) -> StateLayout {
        let Self { heads, kv_heads, head_dim } = *self;
        StateLayout { heads, kv_heads, head_dim, capacity }
    }

    /// The vectors of heads `from` to `to` of a projection that has this head's features one
    /// after the other: `[batch, to - from, time, head_dim]`.
    fn split(&self, qkv: &Array, from: i32, to: i32) -> Result<Array> {
        let (batch, time, features) = (qkv.dim(0)?, qkv.dim(1)?, self.head_dim);
        qkv.slice_axis(2, from * features..to * features)?
            .reshape([batch, time, to - from, features])?
            .transpose([0, 2, 1, 3])
    }
}

/// Keys or values of a layer, `[batch, kv_heads, seen, head_dim]` with the last axis as stored.
#[derive(Clone, Debug)]
pub enum KvTensor {
    /// As they are.
    Plain(Array),
    /// What [`ops::quantize`] makes of them.
    Quantized {
        /// Codes.
        packed: Array,
        /// A scale for each group.
        scales: Array,
        /// A bias for each group.
        biases: Array,
        /// Elements of a group.
        group_size: i32,
        /// Bits of a code.
        bits: i32,
    },
}

impl KvTensor {
    /// Codes, bits and group size, where attention reads such codes as they are.
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
    /// Returns an error if packed parts do not fit together, which those of a [`LayerCache`] always
    /// do.
    pub fn dequantized(&self) -> Result<Array> {
        match self {
            Self::Plain(array) => Ok(array.clone()),
            Self::Quantized { packed, scales, biases, group_size, bits } => {
                ops::dequantize(packed, scales, biases, *group_size, *bits)
            }
        }
    }
}

/// Which keys the queries of a step may look at.
#[derive(Clone, Debug)]
pub enum AttentionMask {
    /// All of them, as a single query may.
    All,
    /// Those up to its own position, the last query being at the last key's.
    Causal,
    /// Where `[time, seen]` is true.
    Mask(Array),
}

/// Queries, keys and values of a step of attention: views of the cache where the kind allows.
#[derive(Clone, Debug)]
pub struct AttentionInputs {
    /// Rotated queries of the step, `[batch, heads, time, head_dim]`.
    pub queries: Array,
    /// Keys of all that is kept, those of the step included.
    pub keys: KvTensor,
    /// Values of the same positions.
    pub values: KvTensor,
}

/// The cache of one layer.
#[derive(Clone)]
pub struct LayerCache(Kind, Padding);

/// Positions before each text of a batch that are none of it; empty for a batch without.
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
    /// Returns an error for a kind that cannot be: other bits or groups than MLX packs, or a
    /// rotating cache that keeps as many positions as it holds.
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

    /// How many positions it was given.
    pub fn len(&self) -> i32 {
        match &self.0 {
            Kind::Plain(cache) => cache.len(),
            Kind::Quantized(cache) => cache.len(),
            Kind::Rotating(cache) => cache.len(),
        }
    }

    /// Whether it was given none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next positions: the fused projection `[batch, time, (heads + 2 * kv_heads) *
    /// head_dim]` of queries, keys and values, the first two of which it rotates.
    ///
    /// # Errors
    ///
    /// Returns an error if `qkv` has another shape, if the groups of a quantized cache do not
    /// divide a head's features, or if there would be more positions than an `i32` counts. The
    /// cache then is as before.
    pub fn append(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
    ) -> Result<AttentionInputs> {
        let width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
        let shape = qkv.shape();
        if shape.len() != 3 || shape[2] != width || self.len().checked_add(shape[1]).is_none() {
            return Err(Error::argument(
                "cache",
                format_args!("a projection [batch, time, {width}], got {shape:?}"),
            ));
        }
        match &mut self.0 {
            Kind::Plain(cache) => cache.append(qkv, heads, rope),
            Kind::Quantized(cache) => cache.append(qkv, heads, rope),
            Kind::Rotating(cache) => cache.append(qkv, heads, rope),
        }
    }

    /// Which of the keys seen the next `time` queries may look at.
    ///
    /// # Errors
    ///
    /// Returns an error if no memory holds the mask.
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

    /// Bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// The buffers.
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
    /// Of the plain kind.
    fn default() -> Self {
        Kind::Plain(Plain::default()).into()
    }
}

impl From<Kind> for LayerCache {
    fn from(kind: Kind) -> Self {
        Self(kind, Padding::new())
    }
}

/// The caches of a model's layers, all of one kind.
///
/// Buffers grow by steps of 256 positions and are written in place in between.
#[derive(Clone)]
pub struct Cache {
    pub(super) layers: Vec<LayerCache>,
}

impl Cache {
    /// An empty cache for a model of that many layers.
    ///
    /// # Errors
    ///
    /// Returns an error for a kind that cannot be, as [`LayerCache::new`] does.
    ///
    /// ```
    /// use mlx_primitives::llama::{Cache, CacheKind};
    ///
    /// let cache = Cache::new(2, CacheKind::Quantized { group_size: 64, bits: 8 })?;
    /// assert!(cache.is_empty() && cache.nbytes() == 0);
    /// assert!(Cache::new(2, CacheKind::Rotating { max_size: 4, keep: 4 }).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn new(layers: usize, kind: CacheKind) -> Result<Self> {
        Ok(Self { layers: vec![LayerCache::new(kind)?; layers] })
    }

    /// How many positions it was given.
    pub fn len(&self) -> i32 {
        self.layers.first().map_or(0, LayerCache::len)
    }

    /// Whether it was given none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.layers.iter().map(LayerCache::nbytes).sum()
    }

    /// As [`LayerCache::mask`]: the same for all layers.
    ///
    /// # Errors
    ///
    /// Returns an error if no memory holds the mask.
    pub fn mask(&self, time: i32) -> Result<AttentionMask> {
        self.layers.first().map_or(Ok(AttentionMask::All), |layer| layer.mask(time))
    }

    /// For a model of one text: empty positions up to `len`, evaluated; plain kind alone.
    pub(super) fn reserve(&mut self, len: i32, heads: Heads, dtype: Dtype) -> Result<()> {
        for layer in &mut self.layers {
            let Kind::Plain(plain) = &mut layer.0 else {
                return Err(Error::argument("cache", "one of the plain kind"));
            };
            plain.reserve(len, heads, dtype)?;
        }
        Ok(())
    }

    /// The buffers, to be evaluated.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }
}
