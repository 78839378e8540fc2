use mlx_primitives::{Array, Result};

use super::attention_inputs::AttentionMask;
use super::kind::CacheKind;
use super::layer::LayerCache;

/// The caches of all layers of a model.
///
/// Buffers grow to the next multiple of 256 positions. Until a buffer is full, new positions are
/// written in place. Only a rotating cache makes a new buffer for each step of several positions.
#[derive(Clone)]
pub struct Cache {
    pub(crate) layers: Vec<LayerCache>,
}

impl Cache {
    /// Creates an empty cache for a model of `layers` layers, all of one kind.
    ///
    /// # Errors
    ///
    /// Returns an error for bits or group sizes that MLX does not support, and for a rotating cache
    /// whose `keep` is not within 0 to `max_size - 1`.
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

    /// The number of positions that were appended so far.
    pub fn len(&self) -> i32 {
        self.layers.first().map_or(0, LayerCache::len)
    }

    /// Whether no position was appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the buffers in bytes.
    pub fn nbytes(&self) -> usize {
        self.layers.iter().map(LayerCache::nbytes).sum()
    }

    /// Returns the mask of the first layer for the next `time` queries.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the mask.
    pub fn mask(&self, time: i32) -> Result<AttentionMask> {
        self.layers.first().map_or(Ok(AttentionMask::All), |layer| layer.mask(time))
    }

    /// The arrays of the buffers, which callers evaluate.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }
}
