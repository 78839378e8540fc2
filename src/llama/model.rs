use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{self, AttentionOptions};

use super::adapters::Adapters;
use super::cache::{Cache, CacheKind, Heads, LayerCache, Seen, Stored, Visible};
use super::config::{Config, Quantization};
use super::linear::{Around, Linear, Matrix, Norm, Projections, swiglu};
use super::rope_frequencies::RopeFrequencies;
use super::weights::Weights;

/// A Llama's weights and forward pass.
pub struct Llama {
    pub(super) config: Config,
    pub(super) embed_tokens: Matrix,
    pub(super) layers: Vec<DecoderLayer>,
    pub(super) norm: Norm,
    /// None where the embedding is the output projection too.
    pub(super) lm_head: Option<Linear>,
    /// What [`adapted`](Self::adapted) set.
    pub(super) adapters: Option<Adapters>,
}

impl Llama {
    /// Puts the model together; an error for missing, extra or misshapen tensors.
    pub fn new(config: Config, mut weights: Weights) -> Result<Self> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let path = "model.embed_tokens";
        let embed_tokens =
            Matrix::load(path, [vocab, hidden], config.quantization_of(path)?, &mut weights)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| DecoderLayer::new(&config, &format!("model.layers.{i}"), &mut weights))
            .collect::<Result<_>>()?;
        let norm = Norm {
            weight: weights.take("model.norm.weight", &[hidden])?,
            eps: config.rms_norm_eps,
        };
        let lm_head = match config.tie_word_embeddings {
            true => None,
            false => Some(linear(&config, "lm_head", [vocab, hidden], &mut weights)?),
        };
        weights.finish(config.tie_word_embeddings)?;
        Ok(Self { config, embed_tokens, layers, norm, lm_head, adapters: None })
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The type of the activations.
    pub fn dtype(&self) -> Dtype {
        self.norm.weight.dtype()
    }

    /// The same model with every projection, and the embedding, packed whose rows are whole groups.
    ///
    /// ```
    /// use mlx_primitives::llama::{Checkpoint, Quantization};
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let packed = llama.quantized(Quantization::affine(32, 4))?;
    /// assert!(packed.nbytes() * 4 < llama.nbytes());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn quantized(&self, to: Quantization) -> Result<Self> {
        let packed = self.with_projections(&|projection| projection.quantized(to))?;
        Ok(Self { embed_tokens: self.embed_tokens.quantized(to)?, ..packed })
    }

    /// The same model with other projections.
    pub(super) fn with_projections(&self, f: &Change) -> Result<Self> {
        Ok(Self {
            config: self.config.clone(),
            embed_tokens: self.embed_tokens.clone(),
            layers: self.layers.iter().map(|layer| layer.changed(f)).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            lm_head: self.lm_head.as_ref().map(f).transpose()?,
            adapters: self.adapters.clone(),
        })
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
        let head = self.lm_head.as_ref().map_or(0, Linear::nbytes);
        let layers: usize = self.layers.iter().map(DecoderLayer::nbytes).sum();
        self.embed_tokens.nbytes() + self.norm.weight.nbytes() + head + layers
    }

    /// All projections, in the order that they run in.
    pub(super) fn projections(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(DecoderLayer::projections).chain(&self.lm_head)
    }

    /// Numbers that the weights stand for, packed or not.
    pub fn parameters(&self) -> u64 {
        let matrices = self.projections().map(|projection| &projection.matrix);
        let (mut numbers, mut bytes) = (0, 0);
        for matrix in matrices.chain([&self.embed_tokens]) {
            numbers += matrix.size();
            bytes += matrix.nbytes();
        }
        // The rest, norms and biases, are stored as they are.
        numbers + (self.nbytes().saturating_sub(bytes) / self.dtype().size()) as u64
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
        self.forward_adapted(tokens, cache, self.adapters.as_ref())
    }

    /// As [`forward`](Self::forward), with these low-rank updates beside the projections they name.
    pub fn forward_adapted(
        &self,
        tokens: &Array,
        cache: &mut Cache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        if tokens.ndim() != 2 || cache.layers.len() != self.layers.len() {
            return Err(Error::argument(
                "llama",
                format_args!(
                    "tokens [batch, time] and this model's cache, got {:?}",
                    tokens.shape()
                ),
            ));
        }
        let mut h = self.embed_tokens.rows(tokens, self.dtype())?; // [batch, time, hidden]
        let visible = cache.visible(tokens.dim(1)?)?;
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            h = layer.forward(&h, &visible, cache, adapters)?;
        }
        self.logits(&h, adapters)
    }

    fn logits(&self, h: &Array, adapters: Option<&Adapters>) -> Result<Array> {
        let around = Around { norm: Some(&self.norm), adapters, ..Around::default() };
        match &self.lm_head {
            Some(head) => head.forward(h, around),
            None => {
                let matrix = self.embed_tokens.clone();
                Linear { path: String::new(), matrix, bias: None }.forward(h, around)
            }
        }
    }
}

/// A change of a projection.
pub(super) type Change<'a> = dyn Fn(&Linear) -> Result<Linear> + 'a;

fn linear(config: &Config, path: &str, shape: [i32; 2], weights: &mut Weights) -> Result<Linear> {
    Linear::new(path.to_owned(), shape, config.quantization_of(path)?, weights)
}

pub(super) struct DecoderLayer {
    pub input_layernorm: Norm,
    pub attention: Attention,
    pub post_attention_layernorm: Norm,
    pub mlp: Mlp,
}

impl DecoderLayer {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let mut norm = |name: &str| -> Result<Norm> {
            let weight = weights.take(&format!("{path}.{name}.weight"), &[config.hidden_size])?;
            Ok(Norm { weight, eps: config.rms_norm_eps })
        };
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            attention: Attention::new(config, &format!("{path}.self_attn"), weights)?,
            mlp: Mlp::new(config, &format!("{path}.mlp"), weights)?,
        })
    }

    fn forward(
        &self,
        x: &Array,
        visible: &Visible,
        cache: &mut LayerCache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        let h = self.attention.forward(x, &self.input_layernorm, visible, cache, adapters)?;
        self.mlp.forward(&h, &self.post_attention_layernorm, adapters)
    }

    fn nbytes(&self) -> usize {
        let norms =
            self.input_layernorm.weight.nbytes() + self.post_attention_layernorm.weight.nbytes();
        norms + self.attention.nbytes() + self.mlp.nbytes()
    }

    fn changed(&self, f: &Change) -> Result<Self> {
        let Attention { qkv_proj, o_proj, heads, rope } = &self.attention;
        let Mlp { gate_proj, up_proj, down_proj } = &self.mlp;
        Ok(Self {
            input_layernorm: self.input_layernorm.clone(),
            attention: Attention {
                qkv_proj: qkv_proj.changed(f)?,
                o_proj: f(o_proj)?,
                heads: *heads,
                rope: rope.clone(),
            },
            post_attention_layernorm: self.post_attention_layernorm.clone(),
            mlp: Mlp { gate_proj: f(gate_proj)?, up_proj: f(up_proj)?, down_proj: f(down_proj)? },
        })
    }

    /// Its projections, in the order that they run in.
    pub fn projections(&self) -> impl Iterator<Item = &Linear> {
        let Mlp { gate_proj, up_proj, down_proj } = &self.mlp;
        let rest = [&self.attention.o_proj, gate_proj, up_proj, down_proj];
        self.attention.qkv_proj.parts().iter().chain(rest)
    }
}

pub(super) struct Attention {
    pub qkv_proj: Projections,
    pub o_proj: Linear,
    pub heads: Heads,
    pub rope: RopeFrequencies,
}

impl Attention {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let heads = Heads::from(config);
        let (hidden, features) = (config.hidden_size, heads.head_dim);
        let mut projection = |name: &str, outputs: i32, inputs: i32| {
            linear(config, &format!("{path}.{name}"), [outputs, inputs], weights)
        };
        let qkv = [
            projection("q_proj", heads.heads * features, hidden)?,
            projection("k_proj", heads.kv_heads * features, hidden)?,
            projection("v_proj", heads.kv_heads * features, hidden)?,
        ];
        Ok(Self {
            o_proj: projection("o_proj", hidden, heads.heads * features)?,
            qkv_proj: Projections::new(qkv)?,
            heads,
            rope: config.rope_frequencies()?,
        })
    }

    /// `x + attention(norm(x))`.
    fn forward(
        &self,
        x: &Array,
        norm: &Norm,
        visible: &Visible,
        cache: &mut LayerCache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        let (batch, time) = (x.dim(0)?, x.dim(1)?);
        let around = Around { norm: Some(norm), adapters, ..Around::default() };
        let qkv = self.qkv_proj.forward(x, around)?;
        let seen = cache.append(&qkv, self.heads, &self.rope)?;
        let output = attend(&seen, visible)?.transpose(&[0, 2, 1, 3])?.reshape(&[
            batch,
            time,
            self.heads.heads * self.heads.head_dim,
        ])?;
        let around = Around { residual: Some(x), adapters, ..Around::default() };
        self.o_proj.forward(&output, around)
    }

    fn nbytes(&self) -> usize {
        self.qkv_proj.nbytes() + self.o_proj.nbytes()
    }
}

/// `[batch, heads, time, head_dim]`.
fn attend(seen: &Seen, visible: &Visible) -> Result<Array> {
    let mut options = AttentionOptions::default();
    match visible {
        Visible::All => {}
        Visible::Causal => options.causal = true,
        Visible::Mask(mask) => options.mask = Some(mask),
    }
    match (&seen.keys, &seen.values) {
        (Stored::Plain(keys), Stored::Plain(values)) => {
            ops::attention(&seen.queries, keys, values, &options)
        }
        (keys, values) => {
            if let (Some((k, bits, group_size)), Some((v, ..))) = (keys.rows(), values.rows()) {
                return ops::attention_quantized(&seen.queries, k, v, bits, group_size, &options);
            }
            ops::attention(&seen.queries, &keys.dequantized()?, &values.dequantized()?, &options)
        }
    }
}

pub(super) struct Mlp {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
}

impl Mlp {
    fn new(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let mut projection = |name: &str, outputs: i32, inputs: i32| {
            linear(config, &format!("{path}.{name}"), [outputs, inputs], weights)
        };
        Ok(Self {
            gate_proj: projection("gate_proj", inner, hidden)?,
            up_proj: projection("up_proj", inner, hidden)?,
            down_proj: projection("down_proj", hidden, inner)?,
        })
    }

    /// `x + down(silu(gate(norm(x))) * up(norm(x)))`.
    fn forward(&self, x: &Array, norm: &Norm, adapters: Option<&Adapters>) -> Result<Array> {
        let around = Around { norm: Some(norm), adapters, ..Around::default() };
        let inner = swiglu(&self.gate_proj, &self.up_proj, x, around)?;
        let around = Around { residual: Some(x), adapters, ..Around::default() };
        self.down_proj.forward(&inner, around)
    }

    fn nbytes(&self) -> usize {
        self.gate_proj.nbytes() + self.up_proj.nbytes() + self.down_proj.nbytes()
    }
}
