//! Operations on a cache other than appending positions.

use mlx_primitives::{Error, Result};

use super::kind::CacheKind;
use super::layer::{LayerCache, Storage};
use super::layers::Cache;

impl LayerCache {
    /// The kind of the cache.
    pub fn kind(&self) -> CacheKind {
        match &self.storage {
            Storage::Plain(_) => CacheKind::Plain,
            Storage::Quantized(cache) => cache.kind(),
            Storage::Rotating(cache) => cache.kind(),
        }
    }

    /// Returns an empty cache of the same kind.
    pub(crate) fn emptied(&self) -> Result<Self> {
        Self::new(self.kind())
    }

    fn can_trim(&self, count: i32) -> bool {
        let enough = (0..=self.len()).contains(&count);
        enough
            && (count == 0 || !matches!(&self.storage, Storage::Rotating(cache) if cache.is_full()))
    }

    fn trim(&mut self, count: i32) {
        match &mut self.storage {
            Storage::Plain(cache) => cache.trim(count),
            Storage::Quantized(cache) => cache.trim(count),
            Storage::Rotating(cache) => cache.trim(count),
        }
    }
}

impl Cache {
    /// Whether a layer drops old positions once it is full. From then on, [`trim`](Self::trim) can
    /// remove no positions.
    pub fn forgets(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.storage, Storage::Rotating(_)))
    }

    /// Returns an empty cache with layers of the same kinds.
    pub(crate) fn emptied(&self) -> Result<Self> {
        let layers = self.layers.iter().map(LayerCache::emptied);
        Ok(Self { layers: layers.collect::<Result<_>>()? })
    }

    /// Whether the layers of both caches have the same kinds.
    pub(crate) fn has_kinds_of(&self, other: &Self) -> bool {
        let kinds = |cache: &Self| cache.layers.iter().map(LayerCache::kind).collect::<Vec<_>>();
        kinds(self) == kinds(other)
    }

    /// Whether [`trim`](Self::trim) can remove the last `count` positions. It can if the cache has
    /// at least `count` positions and no rotating layer is full.
    pub fn can_trim(&self, count: i32) -> bool {
        self.layers.iter().all(|layer| layer.can_trim(count))
    }

    /// Removes the last `count` positions.
    ///
    /// # Errors
    ///
    /// Returns an error if [`can_trim`](Self::can_trim) is false.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let mut cache = llama.new_cache();
    /// llama.forward(&Array::from_slice(&[423u32, 424, 259], &[1, 3])?, &mut cache)?;
    /// cache.trim(2)?;
    /// assert_eq!(cache.len(), 1);
    /// assert!(cache.trim(2).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn trim(&mut self, count: i32) -> Result<()> {
        if !self.can_trim(count) {
            return Err(Error::argument(
                "cache",
                format_args!(
                    "at most its {} positions to take back, and none of a full rotating one, \
                     got {count}",
                    self.len()
                ),
            ));
        }
        if count > 0 {
            self.layers.iter_mut().for_each(|layer| layer.trim(count));
        }
        Ok(())
    }

    /// Sets the length of the sequence that the positions belong to. The rotation in some models
    /// depends on this length.
    pub(crate) fn set_text_len(&mut self, len: usize) {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        self.layers.iter_mut().for_each(|layer| layer.text_len = len);
    }

    /// The length of the sequence that the positions were rotated for.
    pub(crate) fn text_len(&self) -> i32 {
        self.layers.first().map_or(0, |layer| layer.text_len.max(layer.len()))
    }
}
