//! The sequences of a forward pass, each with its own cache. The code calls a sequence of tokens a
//! text.

use mlx_primitives::{Array, Result, concatenate};

use super::layer::DecoderLayer;
use crate::cache::{AttentionMask, Cache};

/// The sequences of a forward pass. Their rows lie one after the other in the hidden states.
pub(super) struct Texts<'a>(Vec<Text<'a>>);

struct Text<'a> {
    rows: i32,
    cache: &'a mut Cache,
    /// A mask for all layers with full attention, and a mask for all layers with sliding-window
    /// attention.
    masks: [Option<AttentionMask>; 2],
}

impl<'a> From<&'a mut Cache> for Texts<'a> {
    /// Uses one cache for all rows. The cache may belong to a batch of sequences.
    fn from(cache: &'a mut Cache) -> Self {
        Self(vec![Text { rows: 0, cache, masks: [None, None] }])
    }
}

impl<'a> Texts<'a> {
    /// Makes one sequence from each pair of a number of rows and a cache.
    pub fn apart(texts: impl Iterator<Item = (usize, &'a mut Cache)>) -> Self {
        let text = |(rows, cache)| Text { rows: number(rows), cache, masks: [None, None] };
        Self(texts.map(text).collect())
    }

    /// Whether each cache has this number of layers.
    pub fn have_layers(&self, layers: usize) -> bool {
        self.0.iter().all(|text| text.cache.layers.len() == layers)
    }

    pub fn arrays(&self) -> Vec<&Array> {
        self.0.iter().flat_map(|text| text.cache.arrays()).collect()
    }

    /// Computes the attention of each sequence in a layer. `qkv` is `[batch, rows, features]`.
    pub fn attend(&mut self, layer: &DecoderLayer, index: usize, qkv: &Array) -> Result<Array> {
        if let [text] = self.0.as_mut_slice() {
            return text.attend(layer, index, qkv);
        }
        let (mut attended, mut start) = (Vec::with_capacity(self.0.len()), 0);
        for text in &mut self.0 {
            let rows = qkv.slice_axis(1, start..start + text.rows)?;
            attended.push(text.attend(layer, index, &rows)?);
            start += text.rows;
        }
        concatenate(&attended.iter().collect::<Vec<_>>(), 1)
    }
}

impl Text<'_> {
    fn attend(&mut self, layer: &DecoderLayer, index: usize, qkv: &Array) -> Result<Array> {
        let mask = &mut self.masks[usize::from(layer.window.is_some())];
        let cache = &mut self.cache.layers[index];
        let mask = match mask {
            Some(mask) => mask,
            None => mask.insert(cache.mask(qkv.dim(1)?)?),
        };
        layer.attend(qkv, mask, cache)
    }
}

pub(super) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
