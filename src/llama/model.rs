use crate::array::{Array, select};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops;

use super::cache::{Cache, LayerCache};
use super::config::Config;
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

    /// An empty cache for this model.
    pub fn new_cache(&self) -> Cache {
        Cache::new(self.layers.len())
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
        let mask = causal_mask(cache.len(), tokens.dim(1)?)?;
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            h = layer.forward(&h, mask.as_ref(), cache)?;
        }
        let h = ops::rms_norm(&h, Some(&self.norm), self.config.rms_norm_eps)?;
        self.lm_head.forward(&h)
    }
}

/// True where a query may look, `[time, start + time]`; none for a single query, which sees all.
fn causal_mask(start: i32, time: i32) -> Result<Option<Array>> {
    if time == 1 {
        return Ok(None);
    }
    let (start, end) = (f64::from(start), f64::from(start + time));
    let queries = Array::arange::<i32>(start, end, 1.0)?.expand_dims(&[1])?;
    let keys = Array::arange::<i32>(0.0, end, 1.0)?.expand_dims(&[0])?;
    Ok(Some(queries.greater_equal(&keys)?))
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
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    rope_theta: f32,
    rope_traditional: bool,
}

impl Attention {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        let (hidden, head_dim) = (config.hidden_size, config.head_dim());
        let mut linear =
            |name: &str, i, o| Linear::new(&format!("{path}.{name}"), i, o, &mut *weights);
        Ok(Self {
            q_proj: linear("q_proj", hidden, heads * head_dim)?,
            k_proj: linear("k_proj", hidden, kv_heads * head_dim)?,
            v_proj: linear("v_proj", hidden, kv_heads * head_dim)?,
            o_proj: linear("o_proj", heads * head_dim, hidden)?,
            heads,
            kv_heads,
            head_dim,
            rope_theta: config.rope_theta,
            rope_traditional: config.rope_traditional,
        })
    }

    fn forward(&self, x: &Array, mask: Option<&Array>, cache: &mut LayerCache) -> Result<Array> {
        let (batch, time) = (x.dim(0)?, x.dim(1)?);
        let split = |x: Array, heads| {
            x.reshape(&[batch, time, heads, self.head_dim])?.transpose(&[0, 2, 1, 3])
        };
        let queries = self.rope(&split(self.q_proj.forward(x)?, self.heads)?, cache.len())?;
        let keys = self.rope(&split(self.k_proj.forward(x)?, self.kv_heads)?, cache.len())?;
        let values = split(self.v_proj.forward(x)?, self.kv_heads)?;
        let [keys, values] = cache.append(keys, values)?;

        // Query heads that share a key head: [batch, kv_heads, group, time, head_dim].
        let group = self.heads / self.kv_heads;
        let scaled = queries.multiply((self.head_dim as f32).powf(-0.5))?;
        let queries = scaled.reshape(&[batch, self.kv_heads, group, time, self.head_dim])?;
        let (keys, values) = (keys.expand_dims(&[2])?, values.expand_dims(&[2])?);
        let scores = queries.matmul(&keys.t()?)?; // [batch, kv_heads, group, time, seen]
        let scores = match mask {
            Some(mask) => select(mask, &scores, &lowest(scores.dtype())?)?,
            None => scores,
        };
        let output = ops::softmax(&scores)?.matmul(&values)?;
        let output = output
            .reshape(&[batch, self.heads, time, self.head_dim])?
            .transpose(&[0, 2, 1, 3])?
            .reshape(&[batch, time, self.heads * self.head_dim])?;
        self.o_proj.forward(&output)
    }

    fn rope(&self, x: &Array, offset: i32) -> Result<Array> {
        let base = Some(self.rope_theta);
        ops::rope(x, self.head_dim, self.rope_traditional, base, 1.0, offset, None)
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

    fn forward(&self, x: &Array) -> Result<Array> {
        let y = x.matmul(&self.weight_t)?;
        self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.add(bias))
    }
}
