use mlx_primitives::ops::{RowOrder, row_order};
use mlx_primitives::{Array, Result, concatenate};

use super::kind::{CacheKind, STEP};
use super::kv_buffer::KvBuffer;
use crate::base::Heads;

/// Whether a step of `time` positions sees the earlier positions in sequence order. Otherwise it
/// sees them in the order of the slots in memory.
pub(super) fn takes_order(time: i32) -> bool {
    time > 1 || row_order() == RowOrder::Prompt
}

/// A cache of the first positions and the latest ones. It stores the same positions as mlx-lm's
/// `RotatingKVCache`. When a full cache takes a single position, each position lies in a slot that
/// depends only on the position. So the sizes of earlier steps do not change the order in which
/// attention adds up its terms.
#[derive(Clone)]
pub(super) struct Rotating {
    max_size: i32,
    keep: i32,
    buffer: Option<KvBuffer>,
    /// The number of positions that were appended so far.
    len: i32,
    /// The slot of the next position. If the buffer is full and `next` is its end, the next
    /// position goes to the slot `keep` instead.
    next: i32,
}

impl Rotating {
    pub fn new(max_size: i32, keep: i32) -> Self {
        Self { max_size, keep, buffer: None, len: 0, next: 0 }
    }

    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn array(&self) -> Option<&Array> {
        self.buffer.as_ref().map(|buffer| &buffer.array)
    }

    pub fn kind(&self) -> CacheKind {
        CacheKind::Rotating { max_size: self.max_size, keep: self.keep }
    }

    /// Whether positions may have been overwritten.
    pub fn is_full(&self) -> bool {
        self.len >= self.max_size
    }

    /// Removes the last `count` positions of a cache that is not full.
    pub fn trim(&mut self, count: i32) {
        self.len -= count;
        self.next = self.len;
    }

    /// Returns the keys and values in slot order, `[batch, kv_heads, slots, head_dim]`, and the
    /// next slot.
    pub fn keys_and_values(&self) -> Result<Option<([Array; 2], i32)>> {
        let Some(buffer) = &self.buffer else { return Ok(None) };
        Ok(Some((buffer.keys_and_values(self.len.min(buffer.layout.capacity))?, self.next)))
    }

    /// Creates a cache of `len` positions with these keys and values.
    pub fn holding(
        mut self,
        keys_values: [Array; 2],
        heads: Heads,
        len: i32,
        next: i32,
    ) -> Result<Self> {
        let (slots, like) = (keys_values[0].dim(2)?, keys_values[0].clone());
        self.buffer = Some(KvBuffer::holding(Some(keys_values), &like, heads, slots)?);
        (self.len, self.next) = (len, next);
        Ok(self)
    }

    /// Returns how many earlier positions a step of several positions sees, and the size of its
    /// window.
    pub fn before(&self) -> (i32, i32) {
        (self.len.min(self.max_size - 1), self.max_size)
    }

    /// Returns a buffer with room for the positions of `qkv`, and the slot of the first of them.
    pub fn with_room(&self, qkv: &Array, heads: Heads) -> Result<(KvBuffer, i32)> {
        match qkv.dim(1)? {
            time if takes_order(time) => self.in_order(qkv, heads, time),
            _ => self.with_slot(qkv, heads),
        }
    }

    /// Stores the buffer after a step. `len` positions have been appended so far, and the next one
    /// goes to the slot `next`.
    pub fn step_to(&mut self, buffer: KvBuffer, len: i32, next: i32) {
        (self.buffer, self.len, self.next) = (Some(buffer), len, next);
    }

    /// Returns the buffer with room for one position, and the slot of this position.
    fn with_slot(&self, qkv: &Array, heads: Heads) -> Result<(KvBuffer, i32)> {
        let (full, slots) = (self.is_full(), self.max_size - self.keep);
        match self.buffer.clone() {
            Some(buffer) if full => {
                let slot = self.keep + (self.len - self.keep) % slots;
                let next = if self.next == self.max_size { self.keep } else { self.next };
                if buffer.layout.capacity == self.max_size && next == slot {
                    return Ok((buffer, slot));
                }
                let (keys_values, _) = self.latest(&buffer, self.max_size)?;
                // The slot that the step overwrites has the oldest position.
                let newest = self.max_size - (slot - self.keep);
                let turned = |part: &Array| {
                    let parts = [(0, self.keep), (newest, self.max_size), (self.keep, newest)];
                    let [first, older, newer] = parts.map(|(from, to)| part.i((.., .., from..to)));
                    concatenate(&[&first?, &older?, &newer?], 2)
                };
                let turned = [turned(&keys_values[0])?, turned(&keys_values[1])?];
                Ok((KvBuffer::holding(Some(turned), qkv, heads, self.max_size)?, slot))
            }
            Some(buffer) if self.len < buffer.layout.capacity => Ok((buffer, self.len)),
            old => {
                let capacity = old.as_ref().map_or(0, |buffer| buffer.layout.capacity);
                let keys_values = old.map(|buffer| buffer.keys_and_values(capacity)).transpose()?;
                let room = STEP.min(self.max_size - self.len);
                Ok((KvBuffer::holding(keys_values, qkv, heads, capacity + room)?, self.len))
            }
        }
    }

    /// Returns a buffer with the latest positions in sequence order and room for `time` more, and
    /// the slot of the first new position.
    fn in_order(&self, qkv: &Array, heads: Heads, time: i32) -> Result<(KvBuffer, i32)> {
        let Some(buffer) = self.buffer.clone() else {
            return Ok((KvBuffer::holding(None, qkv, heads, time)?, 0));
        };
        let (keys_values, count) = self.latest(&buffer, self.max_size - 1)?;
        Ok((KvBuffer::holding(Some(keys_values), qkv, heads, count + time)?, count))
    }

    /// Returns at most `most` keys and values in sequence order, and their number. The positions
    /// that are never overwritten come first, then the latest ones.
    fn latest(&self, buffer: &KvBuffer, most: i32) -> Result<([Array; 2], i32)> {
        let capacity = buffer.layout.capacity;
        let mut keys_values = buffer.keys_and_values(capacity)?;
        let mut count = capacity;
        if self.next < self.len && self.next < capacity {
            for part in &mut keys_values {
                let older = part.i((.., .., self.next..))?;
                let newer = part.i((.., .., self.keep..self.next))?;
                let first = part.i((.., .., ..self.keep))?;
                *part = concatenate(&[&first, &older, &newer], 2)?;
            }
        } else if self.next < capacity {
            count = self.next;
            keys_values = buffer.keys_and_values(count)?;
        }
        let spare = count - most;
        if spare > 0 {
            keys_values = self.without(spare, keys_values)?;
            count -= spare;
        }
        Ok((keys_values, count))
    }

    /// Removes the `count` oldest positions, but never the first `keep` positions.
    fn without(&self, count: i32, keys_values: [Array; 2]) -> Result<[Array; 2]> {
        let trimmed = |part: &Array| {
            let first = part.i((.., .., ..self.keep))?;
            concatenate(&[&first, &part.i((.., .., self.keep + count..))?], 2)
        };
        Ok([trimmed(&keys_values[0])?, trimmed(&keys_values[1])?])
    }
}
