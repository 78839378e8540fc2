use mlx_primitives::ops::Attention;
use mlx_primitives::{Array, Dtype, Result};

use super::attention_inputs::AttentionInputs;
use super::kind::STEP;
use super::kv_buffer::KvBuffer;
use crate::base::{Heads, RopeFrequencies};

/// A cache of all positions in the model's type.
#[derive(Clone, Default)]
pub(super) struct Plain {
    buffer: Option<KvBuffer>,
    len: i32,
}

impl Plain {
    pub fn len(&self) -> i32 {
        self.len
    }

    pub fn array(&self) -> Option<&Array> {
        self.buffer.as_ref().map(|buffer| &buffer.array)
    }

    pub fn reserve(&mut self, len: i32, heads: Heads, dtype: Dtype) -> Result<()> {
        let layout = heads.layout(rounded_up(len + 1));
        let array = layout.zeros(1, dtype)?;
        array.eval()?;
        (self.buffer, self.len) = (Some(KvBuffer { array, layout }), len);
        Ok(())
    }

    pub fn trim(&mut self, count: i32) {
        self.len -= count;
    }

    pub fn select_rows(&mut self, rows: &Array) -> Result<()> {
        self.buffer.as_mut().map_or(Ok(()), |buffer| buffer.select_rows(rows))
    }

    /// The keys and values of all positions, `[batch, kv_heads, len, head_dim]`.
    pub fn stored(&self) -> Result<Option<[Array; 2]>> {
        self.buffer.as_ref().map(|buffer| buffer.stored(self.len)).transpose()
    }

    /// A cache with these keys and values.
    pub fn holding(stored: [Array; 2], heads: Heads) -> Result<Self> {
        let len = stored[0].dim(2)?;
        let like = stored[0].clone();
        let buffer = KvBuffer::holding(Some(stored), &like, heads, rounded_up(len))?;
        Ok(Self { buffer: Some(buffer), len })
    }

    pub fn append(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
    ) -> Result<AttentionInputs> {
        let start = self.len;
        self.step(qkv, heads, |buffer| buffer.append(qkv, rope, start, start))
    }

    pub fn attend(
        &mut self,
        qkv: &Array,
        heads: Heads,
        rope: &RopeFrequencies,
        rules: Attention,
    ) -> Result<Array> {
        let start = self.len;
        self.step(qkv, heads, |buffer| buffer.attend(qkv, rope, start, start, rules))
    }

    /// Runs an op on the buffer, with room for the positions of `qkv`.
    fn step<R>(
        &mut self,
        qkv: &Array,
        heads: Heads,
        run: impl FnOnce(&mut KvBuffer) -> Result<R>,
    ) -> Result<R> {
        let end = self.len + qkv.dim(1)?;
        let mut buffer = match &self.buffer {
            Some(buffer) if end <= buffer.layout.capacity => buffer.clone(),
            _ => KvBuffer::holding(self.stored()?, qkv, heads, rounded_up(end))?,
        };
        let result = run(&mut buffer)?;
        // Drops the previous array, so that nothing else holds its memory when this one is
        // computed.
        (self.buffer, self.len) = (Some(buffer), end);
        Ok(result)
    }
}

/// The capacity for `len` positions: the next multiple of [`STEP`].
pub(crate) fn rounded_up(len: i32) -> i32 {
    (len / STEP + i32::from(len % STEP > 0)).saturating_mul(STEP)
}
