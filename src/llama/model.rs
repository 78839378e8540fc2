use crate::array::{Array, concatenate, select};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops;

use super::cache::{Cache, CacheKind, Heads, LayerCache};
use super::config::Config;
use super::rope_frequencies::RopeFrequencies;
use super::weights::Weights;

/// A Llama's weights and forward pass.
pub struct Llama {
    config: Config,
    embed_tokens: Array,
    layers: Vec<DecoderLayer>,
    norm: Array,
    lm_head: Linear,
}

impl Llama {
    /// Puts the model together; an error for missing, extra or misshapen tensors.
    pub fn new(config: Config, mut weights: Weights) -> Result<Self> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed_tokens = weights.take("model.embed_tokens.weight", &[vocab, hidden])?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| DecoderLayer::new(&config, &format!("model.layers.{i}"), &mut weights))
            .collect::<Result<_>>()?;
        let norm = weights.take("model.norm.weight", &[hidden])?;
        let lm_head = if config.tie_word_embeddings {
            Linear { weight_t: embed_tokens.t()?, bias: None }
        } else {
            Linear::new("lm_head", hidden, vocab, &mut weights)?
        };
        weights.finish(config.tie_word_embeddings)?;
        Ok(Self { config, embed_tokens, layers, norm, lm_head })
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The type of the activations.
    pub fn dtype(&self) -> Dtype {
        self.embed_tokens.dtype()
    }

    /// An empty cache for this model, of the plain kind.
    pub fn new_cache(&self) -> Cache {
        Cache { layers: vec![LayerCache::default(); self.layers.len()] }
    }

    /// An empty cache for this model; an error for a kind that cannot be.
    pub fn new_cache_of(&self, kind: CacheKind) -> Result<Cache> {
        if let CacheKind::Quantized { group_size, .. } = kind
            && group_size > 0
            && self.config.head_dim() % group_size != 0
        {
            return Err(Error::argument(
                "cache",
                format_args!(
                    "groups that divide {} features, got {group_size}",
                    self.config.head_dim()
                ),
            ));
        }
        Cache::new(self.layers.len(), kind)
    }

    /// Bytes of the weights.
    pub fn nbytes(&self) -> usize {
        let tied = self.config.tie_word_embeddings;
        let head = if tied { 0 } else { self.lm_head.nbytes() };
        let layers: usize = self.layers.iter().map(DecoderLayer::nbytes).sum();
        self.embed_tokens.nbytes() + self.norm.nbytes() + head + layers
    }

    /// Logits `[batch, time, vocab]` of what follows each of `tokens` (integers `[batch, time]`),
    /// which continue the positions in `cache` and are appended to it.
    ///
    /// ```
    /// use mlx_primitives::{Array, llama::Checkpoint};
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let mut cache = llama.new_cache();
    /// let tokens = Array::from_slice(&[423u32, 424], &[1, 2])?;
    /// assert_eq!(llama.forward(&tokens, &mut cache)?.shape(), [1, 2, 512]);
    /// assert_eq!(cache.len(), 2);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn forward(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        if tokens.ndim() != 2 || cache.layers.len() != self.layers.len() {
            return Err(Error::argument(
                "llama",
                format_args!(
                    "tokens [batch, time] and this model's cache, got {:?}",
                    tokens.shape()
                ),
            ));
        }
        let mut h = self.embed_tokens.take(tokens, 0)?; // [batch, time, hidden]
        let mask = cache.mask(tokens.dim(1)?)?;
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            h = layer.forward(&h, mask.as_ref(), cache)?;
        }
        let h = ops::rms_norm(&h, Some(&self.norm), self.config.rms_norm_eps)?;
        self.lm_head.forward(&h)
    }
}

struct DecoderLayer {
    input_layernorm: Array,
    attention: Attention,
    post_attention_layernorm: Array,
    mlp: Mlp,
    eps: f32,
}

impl DecoderLayer {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let hidden = [config.hidden_size];
        Ok(Self {
            input_layernorm: weights.take(&format!("{path}.input_layernorm.weight"), &hidden)?,
            attention: Attention::new(config, &format!("{path}.self_attn"), weights)?,
            post_attention_layernorm: weights
                .take(&format!("{path}.post_attention_layernorm.weight"), &hidden)?,
            mlp: Mlp::new(config, &format!("{path}.mlp"), weights)?,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(&self, x: &Array, mask: Option<&Array>, cache: &mut LayerCache) -> Result<Array> {
        let normed = ops::rms_norm(x, Some(&self.input_layernorm), self.eps)?;
        let h = x.add(self.attention.forward(&normed, mask, cache)?)?;
        let normed = ops::rms_norm(&h, Some(&self.post_attention_layernorm), self.eps)?;
        h.add(self.mlp.forward(&normed)?)
    }

    fn nbytes(&self) -> usize {
        let norms = self.input_layernorm.nbytes() + self.post_attention_layernorm.nbytes();
        norms + self.attention.nbytes() + self.mlp.nbytes()
    }
}

struct Attention {
    /// Queries, keys and values in one.
    qkv_proj: Linear,
    o_proj: Linear,
    heads: Heads,
    rope: RopeFrequencies,
}

impl Attention {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let heads = Heads::from(config);
        let (hidden, features) = (config.hidden_size, heads.head_dim);
        let mut linear =
            |name: &str, i, o| Linear::new(&format!("{path}.{name}"), i, o, &mut *weights);
        let parts = [
            linear("q_proj", hidden, heads.heads * features)?,
            linear("k_proj", hidden, heads.kv_heads * features)?,
            linear("v_proj", hidden, heads.kv_heads * features)?,
        ];
        Ok(Self {
            qkv_proj: Linear::joined(&parts)?,
            o_proj: linear("o_proj", heads.heads * features, hidden)?,
            heads,
            rope: config.rope_frequencies()?,
        })
    }

    fn forward(&self, x: &Array, mask: Option<&Array>, cache: &mut LayerCache) -> Result<Array> {
        let (batch, time) = (x.dim(0)?, x.dim(1)?);
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let seen = cache.append(&self.qkv_proj.forward(x)?, self.heads, &self.rope)?;
        let (keys, values) = (seen.keys.dequantized()?, seen.values.dequantized()?);

        // Query heads that share a key head: [batch, kv_heads, group, time, head_dim].
        let group = heads / kv_heads;
        let scaled = seen.queries.multiply((head_dim as f32).powf(-0.5))?;
        let queries = scaled.reshape(&[batch, kv_heads, group, time, head_dim])?;
        let (keys, values) = (keys.expand_dims(&[2])?, values.expand_dims(&[2])?);
        let scores = queries.matmul(&keys.t()?)?; // [batch, kv_heads, group, time, seen]
        let scores = match mask {
            Some(mask) => select(mask, &scores, &lowest(scores.dtype())?)?,
            None => scores,
        };
        let output = ops::softmax(&scores)?.matmul(&values)?;
        let output = output
            .reshape(&[batch, heads, time, head_dim])?
            .transpose(&[0, 2, 1, 3])?
            .reshape(&[batch, time, heads * head_dim])?;
        self.o_proj.forward(&output)
    }

    fn nbytes(&self) -> usize {
        self.qkv_proj.nbytes() + self.o_proj.nbytes()
    }
}

/// The least finite number, which MLX's attention puts where a query may not look.
fn lowest(dtype: Dtype) -> Result<Array> {
    match dtype {
        Dtype::Float16 => Array::scalar(half::f16::MIN),
        Dtype::Bfloat16 => Array::scalar(half::bf16::MIN),
        _ => Array::scalar(f32::MIN),
    }
}

struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            gate_proj: Linear::new(&format!("{path}.gate_proj"), hidden, inner, weights)?,
            up_proj: Linear::new(&format!("{path}.up_proj"), hidden, inner, weights)?,
            down_proj: Linear::new(&format!("{path}.down_proj"), inner, hidden, weights)?,
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let gate = self.gate_proj.forward(x)?;
        let silu = gate.multiply(gate.sigmoid()?)?;
        self.down_proj.forward(&silu.multiply(self.up_proj.forward(x)?)?)
    }

    fn nbytes(&self) -> usize {
        self.gate_proj.nbytes() + self.up_proj.nbytes() + self.down_proj.nbytes()
    }
}

struct Linear {
    /// `[inputs, outputs]`, a view of the stored `[outputs, inputs]`.
    weight_t: Array,
    bias: Option<Array>,
}

impl Linear {
    fn new(path: &str, inputs: i32, outputs: i32, weights: &mut Weights) -> Result<Self> {
        let weight = weights.take(&format!("{path}.weight"), &[outputs, inputs])?;
        let bias = weights.take_optional(&format!("{path}.bias"), &[outputs])?;
        Ok(Self { weight_t: weight.t()?, bias })
    }

    /// The outputs of several one after the other, of the same inputs.
    fn joined(parts: &[Self]) -> Result<Self> {
        let weights: Vec<&Array> = parts.iter().map(|part| &part.weight_t).collect();
        // Rows stay as they were stored: `[outputs, inputs]`.
        let rows: Vec<Array> = weights.iter().map(|weight| weight.t()).collect::<Result<_>>()?;
        let weight = concatenate(&rows.iter().collect::<Vec<_>>(), 0)?;
        let biases = match parts.iter().all(|part| part.bias.is_none()) {
            true => None,
            false => {
                let of = |part: &Self| match &part.bias {
                    Some(bias) => Ok(bias.clone()),
                    None => Array::zeros_of(&[part.weight_t.dim(1)?], part.weight_t.dtype()),
                };
                let biases: Vec<Array> = parts.iter().map(of).collect::<Result<_>>()?;
                Some(concatenate(&biases.iter().collect::<Vec<_>>(), 0)?)
            }
        };
        Ok(Self { weight_t: weight.t()?, bias: biases })
    }

    fn nbytes(&self) -> usize {
        self.weight_t.nbytes() + self.bias.as_ref().map_or(0, Array::nbytes)
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let y = x.matmul(&self.weight_t)?;
        self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.add(bias))
    }
}
