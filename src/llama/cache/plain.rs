use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ops::StateLayout;

use super::super::rope_frequencies::RopeFrequencies;
use super::state::State;
use super::{Heads, STEP, Seen};

/// All positions, in the model's type.
#[derive(Clone, Default)]
pub(super) struct Plain {
    state: Option<State>,
    len: i32,
}

impl Plain {
    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn array(&self) -> Option<&Array> {
        self.state.as_ref().map(|state| &state.array)
    }

    pub fn reserve(&mut self, len: i32, heads: Heads, dtype: Dtype) -> Result<()> {
        let Heads { heads, kv_heads, head_dim } = heads;
        let layout = StateLayout { heads, kv_heads, head_dim, capacity: rounded_up(len + 1) };
        let array = layout.zeros(1, dtype)?;
        array.eval()?;
        (self.state, self.len) = (Some(State { array, layout }), len);
        Ok(())
    }

    pub fn trim(&mut self, count: i32) {
        self.len -= count;
    }

    pub fn select_rows(&mut self, rows: &Array) -> Result<()> {
        self.state.as_mut().map_or(Ok(()), |state| state.select_rows(rows))
    }

    /// Keys and values of all positions, `[batch, kv_heads, len, head_dim]`.
    pub fn stored(&self) -> Result<Option<[Array; 2]>> {
        self.state.as_ref().map(|state| state.stored(self.len)).transpose()
    }

    /// One that has those.
    pub fn holding(stored: [Array; 2], heads: Heads) -> Result<Self> {
        let len = stored[0].dim(2)?;
        let like = stored[0].clone();
        let state = State::holding(Some(stored), &like, heads, rounded_up(len))?;
        Ok(Self { state: Some(state), len })
    }

    pub fn append(&mut self, qkv: &Array, heads: Heads, rope: &RopeFrequencies) -> Result<Seen> {
        let (start, end) = (self.len, self.len + qkv.dim(1)?);
        let mut state = match self.state.clone() {
            Some(state) if end <= state.layout.capacity => state,
            old => {
                let stored = old.map(|state| state.stored(start)).transpose()?;
                State::holding(stored, qkv, heads, rounded_up(end))?
            }
        };
        let queries = state.append(qkv, rope, start, start)?;
        let seen = state.seen(queries, end)?;
        // Drops the state before: by the time this one is computed, nothing else holds its buffer.
        self.state = Some(state);
        self.len = end;
        Ok(seen)
    }
}

/// The capacity for that many positions.
pub(in super::super) fn rounded_up(len: i32) -> i32 {
    (len / STEP + i32::from(len % STEP > 0)).saturating_mul(STEP)
}
