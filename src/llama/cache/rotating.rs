use crate::array::{Array, concatenate};
use crate::error::Result;

use super::super::rope_frequencies::RopeFrequencies;
use super::state::State;
use super::{CacheKind, Heads, STEP, Seen};

/// The first positions and the latest: what is seen, and in which order it is replaced, is that
/// of mlx-lm's `RotatingKVCache`.
#[derive(Clone)]
pub(super) struct Rotating {
    max_size: i32,
    keep: i32,
    state: Option<State>,
    /// Positions given so far.
    len: i32,
    /// Where the next position is written, unless that is the end.
    next: i32,
}

impl Rotating {
    pub fn new(max_size: i32, keep: i32) -> Self {
        Self { max_size, keep, state: None, len: 0, next: 0 }
    }

    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn array(&self) -> Option<&Array> {
        self.state.as_ref().map(|state| &state.array)
    }

    pub fn kind(&self) -> CacheKind {
        CacheKind::Rotating { max_size: self.max_size, keep: self.keep }
    }

    /// Whether positions may have been replaced.
    pub fn is_full(&self) -> bool {
        self.len >= self.max_size
    }

    /// Of one that is not full.
    pub fn trim(&mut self, count: i32) {
        self.len -= count;
        self.next = self.len;
    }

    pub fn select_rows(&mut self, rows: &Array) -> Result<()> {
        self.state.as_mut().map_or(Ok(()), |state| state.select_rows(rows))
    }

    /// Keys and values in their slots, `[batch, kv_heads, slots, head_dim]`, and the next slot.
    pub fn stored(&self) -> Result<Option<([Array; 2], i32)>> {
        let Some(state) = &self.state else { return Ok(None) };
        Ok(Some((state.stored(self.len.min(state.layout.capacity))?, self.next)))
    }

    /// One that has those, after `len` positions.
    pub fn holding(
        mut self,
        stored: [Array; 2],
        heads: Heads,
        len: i32,
        next: i32,
    ) -> Result<Self> {
        let (slots, like) = (stored[0].dim(2)?, stored[0].clone());
        self.state = Some(State::holding(Some(stored), &like, heads, slots)?);
        (self.len, self.next) = (len, next);
        Ok(self)
    }

    /// How many positions a step of several sees before its own, and how far back it looks.
    pub fn before(&self) -> (i32, i32) {
        (self.len.min(self.max_size - 1), self.max_size)
    }

    pub fn append(&mut self, qkv: &Array, heads: Heads, rope: &RopeFrequencies) -> Result<Seen> {
        let time = qkv.dim(1)?;
        let (mut state, slot) =
            if time == 1 { self.with_slot(qkv, heads)? } else { self.in_order(qkv, heads, time)? };
        let queries = state.append(qkv, rope, self.len, slot)?;
        let len = self.len + time;
        let seen = state.seen(queries, len.min(state.layout.capacity))?;
        (self.state, self.len, self.next) = (Some(state), len, slot + time);
        Ok(seen)
    }

    /// For one position: the state, and its slot.
    fn with_slot(&self, qkv: &Array, heads: Heads) -> Result<(State, i32)> {
        let old = self.state.clone();
        let mut next = self.next;
        let capacity = old.as_ref().map_or(0, |state| state.layout.capacity);
        let state = match old {
            Some(state) if capacity > self.max_size => {
                let stored = state.stored(capacity)?;
                let trimmed = self.without(capacity - self.max_size, stored)?;
                next = self.max_size;
                State::holding(Some(trimmed), qkv, heads, self.max_size)?
            }
            Some(state) if self.len < capacity || capacity == self.max_size => state,
            old => {
                let stored = old.map(|state| state.stored(capacity)).transpose()?;
                next = self.len;
                let room = STEP.min(self.max_size - self.len);
                State::holding(stored, qkv, heads, capacity + room)?
            }
        };
        Ok((state, if next == self.max_size { self.keep } else { next }))
    }

    /// For several positions: the latest in their order with room for `time` behind them, and
    /// where that is.
    fn in_order(&self, qkv: &Array, heads: Heads, time: i32) -> Result<(State, i32)> {
        let Some(state) = self.state.clone() else {
            return Ok((State::holding(None, qkv, heads, time)?, 0));
        };
        let capacity = state.layout.capacity;
        let mut stored = state.stored(capacity)?;
        let mut count = capacity;
        if self.next < self.len && self.next < capacity {
            for part in &mut stored {
                let older = part.slice(&[&.., &.., &(self.next..)])?;
                let newer = part.slice(&[&.., &.., &(self.keep..self.next)])?;
                let first = part.slice(&[&.., &.., &(..self.keep)])?;
                *part = concatenate(&[&first, &older, &newer], 2)?;
            }
        } else if self.next < capacity {
            count = self.next;
            stored = state.stored(count)?;
        }
        let spare = count - self.max_size + 1;
        if spare > 0 {
            stored = self.without(spare, stored)?;
            count -= spare;
        }
        Ok((State::holding(Some(stored), qkv, heads, count + time)?, count))
    }

    /// Without the `count` oldest positions after those that are kept.
    fn without(&self, count: i32, stored: [Array; 2]) -> Result<[Array; 2]> {
        let trimmed = |part: &Array| {
            let first = part.slice(&[&.., &.., &(..self.keep)])?;
            concatenate(&[&first, &part.slice(&[&.., &.., &(self.keep + count..)])?], 2)
        };
        Ok([trimmed(&stored[0])?, trimmed(&stored[1])?])
    }
}
