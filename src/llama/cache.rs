use crate::array::{Array, concatenate};
use crate::error::Result;

/// Positions by which a layer's buffers grow.
const STEP: i32 = 256;

/// Keys and values of the positions seen so far, for each layer.
///
/// Buffers grow by steps of 256 positions and are written in place in between.
#[derive(Clone, Default)]
pub struct Cache {
    pub(super) layers: Vec<LayerCache>,
}

impl Cache {
    /// An empty cache for a model of that many layers.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![LayerCache::default(); layers] }
    }

    /// How many positions it holds.
    pub fn len(&self) -> i32 {
        self.layers.first().map_or(0, |layer| layer.len)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// The buffers, to be evaluated.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| layer.buffers.iter().flatten())
    }
}

#[derive(Clone, Default)]
pub(super) struct LayerCache {
    /// Keys and values, `[batch, kv_heads, capacity, head_dim]`.
    buffers: Option<[Array; 2]>,
    len: i32,
}

impl LayerCache {
    pub(super) fn len(&self) -> i32 {
        self.len
    }

    /// Appends `[batch, kv_heads, time, head_dim]`; returns all keys and values.
    pub(super) fn append(&mut self, keys: Array, values: Array) -> Result<[Array; 2]> {
        let (start, end) = (self.len, self.len + keys.dim(2)?);
        let mut buffers = self.grown(&keys, &values, end)?;
        for (buffer, new) in buffers.iter_mut().zip([keys, values]) {
            *buffer = buffer.slice_update(&[&.., &.., &(start..end)], &new)?;
        }
        let seen = [0, 1].map(|i| buffers[i].slice(&[&.., &.., &(..end)]));
        self.buffers = Some(buffers);
        self.len = end;
        let [keys, values] = seen;
        Ok([keys?, values?])
    }

    /// The buffers, with room for `end` positions.
    fn grown(&mut self, keys: &Array, values: &Array, end: i32) -> Result<[Array; 2]> {
        let capacity = match &self.buffers {
            Some([keys, _]) => keys.dim(2)?,
            None => 0,
        };
        if let (Some(buffers), true) = (&self.buffers, end <= capacity) {
            return Ok(buffers.clone());
        }
        let room = (end - self.len + STEP - 1) / STEP * STEP;
        let mut grown = Vec::with_capacity(2);
        for (i, new) in [keys, values].into_iter().enumerate() {
            let mut shape = new.shape().to_vec();
            shape[2] = room;
            let empty = Array::zeros_of(&shape, new.dtype())?;
            grown.push(match &self.buffers {
                Some(buffers) => {
                    let seen = buffers[i].slice(&[&.., &.., &(..self.len)])?;
                    concatenate(&[&seen, &empty], 2)?
                }
                None => empty,
            });
        }
        let values = grown.remove(1);
        Ok([grown.remove(0), values])
    }
}
