use mlx_primitives::ops::{self, KvLayout, RopeAppend};
use mlx_primitives::{Array, Result, concatenate};

use super::attention_inputs::{AttentionInputs, KvTensor};
use crate::base::{Heads, RopeFrequencies};

/// The buffer of a layer: the queries of the last step, if they are few, then the keys and the
/// values of all stored positions. A single array holds all of them, so that the op that appends to
/// it can reuse its memory.
#[derive(Clone)]
pub(super) struct KvBuffer {
    pub array: Array,
    pub layout: KvLayout,
}

impl KvBuffer {
    /// Creates a buffer for `capacity` positions. The keys and values of the first positions are
    /// `keys_values`, `[batch, kv_heads, time, head_dim]`. The buffer gets the batch size and type
    /// of `like`.
    pub fn holding(
        keys_values: Option<[Array; 2]>,
        like: &Array,
        heads: Heads,
        capacity: i32,
    ) -> Result<Self> {
        let layout = heads.layout(capacity);
        let Heads { heads, kv_heads, head_dim } = heads;
        let (batch, dtype) = (like.dim(0)?, like.dtype());
        let Some(keys_values) = keys_values else {
            return Ok(Self { array: layout.zeros(batch, dtype)?, layout });
        };
        let area = heads * KvLayout::QUERY_POSITIONS;
        let mut parts = vec![Array::zeros_of([batch, area, head_dim], dtype)?];
        for part in keys_values {
            let room = [batch, kv_heads, capacity - part.dim(2)?, head_dim];
            let padded = concatenate(&[&part, &Array::zeros_of(room, dtype)?], 2)?;
            parts.push(padded.reshape([batch, kv_heads * capacity, head_dim])?);
        }
        let parts: Vec<&Array> = parts.iter().collect();
        Ok(Self { array: concatenate(&parts, 1)?, layout })
    }

    /// Rotates a step and writes its keys and values. `offset` is the first position of the step,
    /// and `text` is the length of the sequence. Returns the queries of the step, and the keys and
    /// values of the first `len` positions of the buffer.
    pub fn append(
        &mut self,
        qkv: &Array,
        rope: &RopeFrequencies,
        [offset, text, len]: [i32; 3],
        rotation: RopeAppend,
    ) -> Result<AttentionInputs> {
        let (time, layout) = (qkv.dim(1)?, self.layout);
        self.array = ops::rope_append(&self.array, qkv, layout, rotation)?;
        let queries = match time <= KvLayout::QUERY_POSITIONS {
            true => layout.queries(&self.array, time)?,
            false => {
                let KvLayout { heads, kv_heads, head_dim, .. } = layout;
                let queries = Heads { heads, kv_heads, head_dim }.split(qkv, 0, heads)?;
                rope.rotate_in_text(&queries, offset, text)?
            }
        };
        let [keys, values] = self.keys_and_values(len)?.map(KvTensor::Plain);
        Ok(AttentionInputs { queries, keys, values })
    }

    /// The keys and values of the first `len` positions of the buffer.
    pub fn keys_and_values(&self, len: i32) -> Result<[Array; 2]> {
        self.layout.keys_and_values(&self.array, len)
    }
}
