use crate::array::{Array, concatenate};
use crate::error::Result;
use crate::ops::{self, StateLayout};

use super::super::rope_frequencies::RopeFrequencies;
use super::{Heads, Seen, Stored};

/// A layer's state and how it is divided.
#[derive(Clone)]
pub(super) struct State {
    pub array: Array,
    pub layout: StateLayout,
}

impl State {
    /// Room for `capacity` positions, of which the first are those of `stored`: keys and values
    /// `[batch, kv_heads, time, head_dim]`. Of `like` the batch and the type count.
    pub fn holding(
        stored: Option<[Array; 2]>,
        like: &Array,
        heads: Heads,
        capacity: i32,
    ) -> Result<Self> {
        let Heads { heads, kv_heads, head_dim } = heads;
        let layout = StateLayout { heads, kv_heads, head_dim, capacity };
        let (batch, dtype) = (like.dim(0)?, like.dtype());
        let Some(stored) = stored else {
            return Ok(Self { array: layout.zeros(batch, dtype)?, layout });
        };
        let area = heads * StateLayout::QUERY_POSITIONS;
        let mut parts = vec![Array::zeros_of(&[batch, area, head_dim], dtype)?];
        for part in stored {
            let room = [batch, kv_heads, capacity - part.dim(2)?, head_dim];
            let padded = concatenate(&[&part, &Array::zeros_of(&room, dtype)?], 2)?;
            parts.push(padded.reshape(&[batch, kv_heads * capacity, head_dim])?);
        }
        let parts: Vec<&Array> = parts.iter().collect();
        Ok(Self { array: concatenate(&parts, 1)?, layout })
    }

    /// Writes a step whose first position is `offset` from position `slot` of the capacity on, and
    /// returns its rotated queries.
    pub fn append(
        &mut self,
        qkv: &Array,
        rope: &RopeFrequencies,
        offset: i32,
        slot: i32,
    ) -> Result<Array> {
        let time = qkv.dim(1)?;
        let rotation = rope.rotation(offset + time);
        let slots = (slot != offset).then(|| slot.into());
        self.array = ops::rope_append(&self.array, qkv, &self.layout, &rotation, offset, slots)?;
        if time <= StateLayout::QUERY_POSITIONS {
            return self.layout.queries(&self.array, time);
        }
        let StateLayout { heads, kv_heads, head_dim, .. } = self.layout;
        rope.rotate(&Heads { heads, kv_heads, head_dim }.split(qkv, 0, heads)?, offset)
    }

    /// Keeps those texts of the batch.
    pub fn select_rows(&mut self, rows: &Array) -> Result<()> {
        self.array = self.array.take(rows, 0)?;
        Ok(())
    }

    /// Keys and values of the first `len` positions of the capacity.
    pub fn stored(&self, len: i32) -> Result<[Array; 2]> {
        Ok([self.layout.keys(&self.array, len)?, self.layout.values(&self.array, len)?])
    }

    /// With the queries of a step, what its attention works on.
    pub fn seen(&self, queries: Array, len: i32) -> Result<Seen> {
        let [keys, values] = self.stored(len)?;
        Ok(Seen { queries, keys: Stored::Plain(keys), values: Stored::Plain(values) })
    }
}
