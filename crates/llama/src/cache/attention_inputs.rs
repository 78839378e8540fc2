use mlx_primitives::ops::{self, QuantizedRows};
use mlx_primitives::{Array, Result};

/// The keys or values of a layer, `[batch, kv_heads, seen, head_dim]`, either plain or quantized
/// along the last axis. `seen` is the number of positions, with those of the step.
#[derive(Clone, Debug)]
pub enum KvTensor {
    /// Numbers in the model's type.
    Plain(Array),
    /// The codes, scales and biases that [`ops::quantize`] returns.
    Quantized {
        /// The packed codes, as uint32.
        packed: Array,
        /// The scale of each group.
        scales: Array,
        /// The bias of each group.
        biases: Array,
        /// The number of elements in a group.
        group_size: i32,
        /// The number of bits of a code.
        bits: i32,
    },
}

impl KvTensor {
    /// Returns the quantized rows, the bits and the group size, or `None` if attention cannot read
    /// the codes directly.
    pub(crate) fn rows(&self) -> Option<(QuantizedRows<'_>, i32, i32)> {
        match self {
            Self::Quantized { packed, scales, biases, group_size, bits: bits @ (4 | 8) } => {
                Some((QuantizedRows { packed, scales, biases }, *bits, *group_size))
            }
            _ => None,
        }
    }

    /// Returns the numbers in the model's type, dequantized if necessary.
    ///
    /// # Errors
    ///
    /// Returns an error if the shapes of the quantized parts do not match. A
    /// [`LayerCache`](super::layer::LayerCache) never returns such parts.
    pub fn dequantized(&self) -> Result<Array> {
        match self {
            Self::Plain(array) => Ok(array.clone()),
            Self::Quantized { packed, scales, biases, group_size, bits } => {
                ops::dequantize(packed, scales, biases, *group_size, *bits)
            }
        }
    }
}

/// The mask of a step: the keys that each query sees.
#[derive(Clone, Debug)]
pub enum AttentionMask {
    /// All keys. This is the case for a single query.
    All,
    /// The keys up to the position of the query. The last query has the position of the last key.
    Causal,
    /// The keys for which these booleans are true: `[time, seen]`.
    Mask(Array),
}

impl AttentionMask {
    /// The attention options that implement this mask.
    pub(crate) fn rules(&self) -> ops::Attention<'_> {
        match self {
            Self::All => ops::Attention::default(),
            Self::Causal => ops::Attention { causal: true, ..Default::default() },
            Self::Mask(mask) => ops::Attention { mask: Some(mask), ..Default::default() },
        }
    }
}

/// The queries, keys and values for one step of attention. The keys and values are views of the
/// cache's buffers.
#[derive(Clone, Debug)]
pub struct AttentionInputs {
    /// The rotated queries of the step, `[batch, heads, time, head_dim]`.
    pub queries: Array,
    /// The keys of all positions in the cache, including the positions of the step.
    pub keys: KvTensor,
    /// The values of these positions.
    pub values: KvTensor,
}

impl AttentionInputs {
    /// Computes attention, `[batch, heads, time, head_dim]`. `dropped` is the number of positions
    /// that the cache dropped before its first key.
    pub(crate) fn attend(&self, mask: &AttentionMask, dropped: i32) -> Result<Array> {
        let (queries, options) = (&self.queries, ops::Attention { dropped, ..mask.rules() });
        if let (KvTensor::Plain(keys), KvTensor::Plain(values)) = (&self.keys, &self.values) {
            return ops::attention(queries, keys, values, options);
        }
        if let (Some((k, bits, group_size)), Some((v, ..))) = (self.keys.rows(), self.values.rows())
        {
            return ops::attention_quantized(queries, k, v, bits, group_size, options);
        }
        let [keys, values] = [&self.keys, &self.values].map(KvTensor::dequantized);
        ops::attention(queries, &keys?, &values?, options)
    }
}

/// Reshapes the results of attention: `[batch, heads, time, head_dim]` becomes `[batch, time,
/// features]`, where `features` is `heads * head_dim`.
pub(crate) fn join_heads(attended: &Array) -> Result<Array> {
    let (batch, heads, time, features) = attended.dims4()?;
    let joined = [batch, time, heads * features];
    match time {
        1 => attended.reshape(joined),
        _ => attended.transpose([0, 2, 1, 3])?.reshape(joined),
    }
}
