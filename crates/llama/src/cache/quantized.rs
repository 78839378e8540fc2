use mlx_primitives::{Array, Dtype, Error, Result, concatenate, ops};

use super::attention_inputs::{AttentionInputs, KvTensor};
use super::kind::{CacheKind, rounded_up};
use crate::base::{Heads, RopeFrequencies};

/// A cache that stores all positions, quantized.
#[derive(Clone)]
pub(super) struct Quantized {
    group_size: i32,
    bits: i32,
    /// The codes, scales and biases, `[batch, 2 * kv_heads, capacity, ...]`. The heads of keys come
    /// before the heads of values.
    buffers: Option<[Array; 3]>,
    len: i32,
}

impl Quantized {
    pub fn new(group_size: i32, bits: i32) -> Self {
        Self { group_size, bits, buffers: None, len: 0 }
    }

    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn buffers(&self) -> Option<&[Array; 3]> {
        self.buffers.as_ref()
    }

    pub fn kind(&self) -> CacheKind {
        CacheKind::Quantized { group_size: self.group_size, bits: self.bits }
    }

    pub fn trim(&mut self, count: i32) {
        self.len -= count;
    }

    /// The codes, scales and biases of all positions.
    pub fn parts(&self) -> Result<Option<[Array; 3]>> {
        let Some([packed, scales, biases]) = &self.buffers else { return Ok(None) };
        let seen = |buffer: &Array| buffer.i((.., .., ..self.len));
        Ok(Some([seen(packed)?, seen(scales)?, seen(biases)?]))
    }

    /// Creates a cache with these codes, scales and biases.
    pub fn holding(group_size: i32, bits: i32, parts: [Array; 3]) -> Result<Self> {
        let len = parts[0].dim(2)?;
        Ok(Self { group_size, bits, buffers: Some(parts), len })
    }

    pub fn append(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
        text: i32,
    ) -> Result<AttentionInputs> {
        let Heads { heads: queries, kv_heads, head_dim } = heads;
        if head_dim % self.group_size != 0 {
            return Err(Error::argument(
                "cache",
                format_args!("groups that divide {head_dim} features, got {}", self.group_size),
            ));
        }
        let (start, end) = (self.len, self.len + qkv.dim(1)?);
        let rotated = heads.split(qkv, 0, queries + kv_heads)?;
        let rotated = rope.rotate_in_text(&rotated, start, text)?;
        let keys = rotated.slice_axis(1, queries..)?;
        let values = heads.split(qkv, queries + kv_heads, queries + 2 * kv_heads)?;
        let new = concatenate(&[&keys, &values], 1)?;
        let (packed, scales, biases) = ops::quantize(&new, self.group_size, self.bits)?;
        let mut buffers = self.with_room([&packed, &scales, &biases], end)?;
        for (buffer, new) in buffers.iter_mut().zip([packed, scales, biases]) {
            *buffer = buffer.slice_update((.., .., start..end), &new)?;
        }
        let part = |from: i32, to: i32| -> Result<KvTensor> {
            let view = |i: usize| {
                let buffer: &Array = &buffers[i];
                buffer.i((.., from..to, ..end))
            };
            let (group_size, bits) = (self.group_size, self.bits);
            let (packed, scales, biases) = (view(0)?, view(1)?, view(2)?);
            Ok(KvTensor::Quantized { packed, scales, biases, group_size, bits })
        };
        let (keys, values) = (part(0, kv_heads)?, part(kv_heads, 2 * kv_heads)?);
        self.buffers = Some(buffers);
        self.len = end;
        Ok(AttentionInputs { queries: rotated.slice_axis(1, ..queries)?, keys, values })
    }

    /// Returns the buffers, enlarged if they have no room for `end` positions.
    fn with_room(&self, new: [&Array; 3], end: i32) -> Result<[Array; 3]> {
        let old = self.buffers.clone();
        let capacity = old.as_ref().map_or(Ok(0), |buffers| buffers[0].dim(2))?;
        let old = match old {
            Some(buffers) if end <= capacity => return Ok(buffers),
            old => old,
        };
        let empty = |i: usize| {
            let mut shape = new[i].shape().to_vec();
            shape[2] = rounded_up(end) - if old.is_some() { self.len } else { 0 };
            match new[i].dtype() {
                Dtype::Uint32 => Array::zeros::<u32>(&shape),
                dtype => Array::zeros_of(&shape, dtype),
            }
        };
        let grown = |i: usize| match &old {
            Some(old) => {
                let seen = old[i].i((.., .., ..self.len))?;
                concatenate(&[&seen, &empty(i)?], 2)
            }
            None => empty(i),
        };
        Ok([grown(0)?, grown(1)?, grown(2)?])
    }
}
