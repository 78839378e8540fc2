//! Operations on a cache other than appending: removing positions, selecting texts, hiding padding.

use mlx_primitives::{Array, Error, Result};

use super::attention_inputs::AttentionMask;
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

    /// An empty cache of the same kind.
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

    fn select_rows(&mut self, rows: &[i32]) -> Result<()> {
        let index = Array::from_slice(rows, [i32::try_from(rows.len()).unwrap_or(i32::MAX)])?;
        if !self.padding.is_empty() {
            let padding = |row: &i32| self.padding.get(row.unsigned_abs() as usize).copied();
            self.padding = rows.iter().filter_map(padding).collect();
        }
        match &mut self.storage {
            Storage::Plain(cache) => cache.select_rows(&index),
            Storage::Quantized(cache) => cache.select_rows(&index),
            Storage::Rotating(cache) => cache.select_rows(&index),
        }
    }

    /// The causal mask of the next `time` queries without the padding of each text.
    pub(super) fn beside_padding(&self, time: i32) -> Result<AttentionMask> {
        if matches!(self.storage, Storage::Rotating(_)) {
            return Err(Error::argument("cache", "padding in a cache that shows all positions"));
        }
        let start = self.len();
        let end = start.saturating_add(time);
        let batch = i32::try_from(self.padding.len()).unwrap_or(i32::MAX);
        let queries = Array::arange::<i32>(f64::from(start), f64::from(end), 1.0)?;
        let queries = queries.reshape([1, 1, time, 1])?;
        let keys = Array::arange::<i32>(0.0, f64::from(end), 1.0)?.reshape([1, 1, 1, end])?;
        let first = Array::from_slice(&self.padding, [batch, 1, 1, 1])?;
        // Padding sees itself, so that its results, which nothing uses, are not NaN.
        let first = first.minimum(&queries)?;
        let seen = keys.less_equal(&queries)?.logical_and(keys.greater_equal(&first)?)?;
        Ok(AttentionMask::Mask(seen))
    }
}

impl Cache {
    /// Whether a layer drops positions, so that not all positions can be removed by
    /// [`trim`](Self::trim).
    pub fn forgets(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.storage, Storage::Rotating(_)))
    }

    /// An empty cache of the same kinds.
    pub(crate) fn emptied(&self) -> Result<Self> {
        let layers = self.layers.iter().map(LayerCache::emptied);
        Ok(Self { layers: layers.collect::<Result<_>>()? })
    }

    /// Whether [`trim`](Self::trim) can remove the last `count` positions: the cache has that
    /// number of positions, and no rotating layer is full.
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

    /// Declares that the positions belong to a text of `len` positions, on which the rotation of
    /// some models depends.
    pub(crate) fn set_text_len(&mut self, len: usize) {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        self.layers.iter_mut().for_each(|layer| layer.text_len = len);
    }

    /// The length of the text that the positions were rotated for.
    pub(crate) fn text_len(&self) -> i32 {
        self.layers.first().map_or(0, |layer| layer.text_len.max(layer.len()))
    }

    /// Declares the first `padding[i]` positions of text `i` as padding, which no later position
    /// sees. Call this before the first step of a batch whose texts end together.
    pub(crate) fn set_padding(&mut self, padding: &[i32]) {
        self.layers.iter_mut().for_each(|layer| layer.padding = padding.to_vec());
    }

    /// Keeps the texts of a batch at the indices `rows`, in that order.
    pub(crate) fn select_rows(&mut self, rows: &[i32]) -> Result<()> {
        self.layers.iter_mut().try_for_each(|layer| layer.select_rows(rows))
    }
}
