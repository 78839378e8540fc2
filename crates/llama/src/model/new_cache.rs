//! Makes key/value caches for a model.

use mlx_primitives::{Error, Result};

use super::llama::Llama;
use crate::base::Heads;
use crate::cache::{Cache, CacheKind, LayerCache};

impl Llama {
    /// Makes an empty plain cache for this model. Layers with sliding-window attention keep only
    /// the positions in their window.
    pub fn new_cache(&self) -> Cache {
        Cache { layers: self.layer_caches(&LayerCache::default(), usize::MAX) }
    }

    /// Makes the caches of the layers for a sequence of up to `positions` positions. A layer with a
    /// window shorter than `positions` gets a rotating cache of the window's length, unless `full`
    /// keeps at most as many positions. The other layers get copies of `full`.
    fn layer_caches(&self, full: &LayerCache, positions: usize) -> Vec<LayerCache> {
        let smaller = |window: i32| match full.kind() {
            CacheKind::Rotating { max_size, .. } => window < max_size,
            _ => true,
        };
        let of_layer = |window: Option<i32>| {
            let window = window.filter(|&window| smaller(window));
            let sliding = window.filter(|window| positions > window.unsigned_abs() as usize);
            let sliding = sliding.and_then(|max_size| {
                LayerCache::new(CacheKind::Rotating { max_size, keep: 0 }).ok()
            });
            sliding.unwrap_or_else(|| full.clone())
        };
        self.windows().map(of_layer).collect()
    }

    /// Makes an empty cache of the given kind for this model. Layers with sliding-window attention
    /// keep only the positions in their window, as in [`new_cache`](Self::new_cache), unless a
    /// rotating cache of the given kind keeps fewer positions.
    ///
    /// # Errors
    ///
    /// Returns an error for bits or groups that MLX does not pack, for groups that do not divide a
    /// head's features, and for a rotating cache whose `keep` is below 0 or above `max_size - 1`.
    pub fn new_cache_of(&self, kind: CacheKind) -> Result<Cache> {
        self.new_cache_for(kind, usize::MAX)
    }

    /// Makes an empty cache of the given kind for a sequence of up to `positions` positions. A
    /// layer with a sliding window of at least `positions` keeps all positions, so that the last
    /// positions can be removed from the cache.
    pub(crate) fn new_cache_for(&self, kind: CacheKind, positions: usize) -> Result<Cache> {
        let layer = LayerCache::new(kind)?;
        if let CacheKind::Quantized { group_size, .. } = kind
            && self.config.head_dim() % group_size != 0
        {
            return Err(Error::argument(
                "cache",
                format_args!(
                    "groups that divide {} features, got {group_size}",
                    self.config.head_dim()
                ),
            ));
        }
        Ok(Cache { layers: self.layer_caches(&layer, positions) })
    }

    /// Makes a plain cache with `len` positions of one sequence, all zeros, in evaluated buffers.
    /// It is used to count the work of a step after these positions.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the cache.
    #[doc(hidden)]
    pub fn zeroed_cache(&self, len: i32) -> Result<Cache> {
        let mut layer = LayerCache::default();
        let heads = self.exchange().heads(Heads::from(&self.config));
        let mut layers = Vec::new();
        for _ in &self.layers {
            layer.reserve(len, heads, self.dtype())?;
            layers.push(layer.clone());
        }
        Ok(Cache { layers })
    }
}
