use mlx_primitives::{Array, Result, concatenate, ops};

use super::linear::{Linear, Norm};
use super::qkv_projection::QkvProjection;
use crate::base::{Config, Heads, RopeFrequencies, Share, Weights};
use crate::cache::{AttentionInputs, AttentionMask, KvTensor, LayerCache};

/// The weights of self-attention.
#[derive(Clone)]
pub(crate) struct Attention {
    pub qkv_proj: QkvProjection,
    pub o_proj: Linear,
    pub heads: Heads,
    /// Norms of each head's queries and keys before the rotary embedding, in Qwen3.
    pub head_norms: Option<[Norm; 2]>,
    pub rope: RopeFrequencies,
}

impl Attention {
    pub fn load(
        config: &Config,
        path: &str,
        rope: &RopeFrequencies,
        weights: &mut Weights,
    ) -> Result<Self> {
        let whole = Heads::from(config);
        let (hidden, features) = (config.hidden_size, whole.head_dim);
        let mut projection = |name: &str, outputs: i32, inputs: i32| {
            Linear::load(&format!("{path}.{name}"), [outputs, inputs], config, weights)
        };
        let qkv = [
            projection("q_proj", whole.heads * features, hidden)?,
            projection("k_proj", whole.kv_heads * features, hidden)?,
            projection("v_proj", whole.kv_heads * features, hidden)?,
        ];
        let o_proj = projection("o_proj", hidden, whole.heads * features)?;
        let head_norms = match config.kind()?.normalizes_heads() {
            true => {
                let mut norm =
                    |name: &str| Norm::load(&format!("{path}.{name}"), features, config, weights);
                Some([norm("q_norm")?, norm("k_norm")?])
            }
            false => None,
        };
        let qkv_proj = QkvProjection::new(qkv)?;
        let heads = weights.share().heads(whole);
        Ok(Self { qkv_proj, o_proj, heads, head_norms, rope: rope.clone() })
    }

    /// Appends a fused projection `[batch, time, features]` to the cache and returns the attention of
    /// its queries, `[batch, time, heads * head_dim]`.
    pub fn attend(
        &self,
        qkv: &Array,
        mask: &AttentionMask,
        cache: &mut LayerCache,
        share: &Share,
    ) -> Result<Array> {
        let absent = share.absent_queries();
        if absent.is_none()
            && let Some(attended) = cache.attend(qkv, self.heads, &self.rope, mask)?
        {
            return Ok(attended);
        }
        let AttentionInputs { queries, keys, values } =
            cache.append(qkv, self.heads, &self.rope)?;
        let Some((before, after)) = absent else {
            return join_heads(&scaled_dot_product_attention(&queries, &keys, &values, mask)?);
        };
        // Attention chooses the order of its sums by the number of query heads of a key head, so zeros
        // take the place of the absent ones.
        let (batch, heads, time, features) = queries.dims4()?;
        let zeros = |heads: i32| Array::zeros_of([batch, heads, time, features], queries.dtype());
        let all = concatenate(&[&zeros(before)?, &queries, &zeros(after)?], 1)?;
        let attended = scaled_dot_product_attention(&all, &keys, &values, mask)?;
        join_heads(&attended.slice_axis(1, before..before + heads)?)
    }

    /// Normalizes each head's queries and keys in a fused projection `[batch, time, features]`,
    /// where the model does that.
    pub fn norm_heads(&self, qkv: Array) -> Result<Array> {
        let Some([q_norm, k_norm]) = &self.head_norms else { return Ok(qkv) };
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let shape = qkv.shape().to_vec();
        let all = qkv.reshape([shape[0], shape[1], heads + 2 * kv_heads, head_dim])?;
        let queries = q_norm.forward(&all.slice_axis(2, ..heads)?)?;
        let keys = k_norm.forward(&all.slice_axis(2, heads..heads + kv_heads)?)?;
        let values = all.slice_axis(2, heads + kv_heads..)?;
        concatenate(&[&queries, &keys, &values], 2)?.reshape(&shape)
    }
}

/// The attention `[batch, heads, time, head_dim]` over keys and values as a cache stores them.
fn scaled_dot_product_attention(
    queries: &Array,
    keys: &KvTensor,
    values: &KvTensor,
    mask: &AttentionMask,
) -> Result<Array> {
    let options = mask.rules();
    if let (KvTensor::Plain(keys), KvTensor::Plain(values)) = (keys, values) {
        return ops::attention(queries, keys, values, options);
    }
    if let (Some((k, bits, group_size)), Some((v, ..))) = (keys.rows(), values.rows()) {
        return ops::attention_quantized(queries, k, v, bits, group_size, options);
    }
    ops::attention(queries, &keys.dequantized()?, &values.dequantized()?, options)
}

/// The results of attention `[batch, heads, time, head_dim]` as `[batch, time, heads * head_dim]`.
fn join_heads(attended: &Array) -> Result<Array> {
    let (batch, heads, time, features) = attended.dims4()?;
    let joined = [batch, time, heads * features];
    match time {
        1 => attended.reshape(joined),
        _ => attended.transpose([0, 2, 1, 3])?.reshape(joined),
    }
}
