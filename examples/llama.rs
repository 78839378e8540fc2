//! Runs a Llama from `config.json` and `model.safetensors` on the ops of this crate: the layers, a
//! cache of keys and values, and a loop that chooses the most probable token.
//!
//! ```sh
//! cargo run --release --example llama -- "Once upon a time"
//! cargo run --release --example llama -- "Once upon a time" folder/of/a/model
//! ```
//!
//! It reads Llamas whose weights are not quantized and which use the original rotary embedding.
//! `mlx_primitives_llama` reads many more models, samples tokens, and is faster.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use mlx_primitives::ops::{Attention, Linear, Rope};
use mlx_primitives::prelude::*;
use mlx_primitives::{async_eval, io};
use serde::Deserialize;
use tokenizers::Tokenizer;

const MAX_TOKENS: usize = 100;

#[derive(Deserialize)]
struct Config {
    model_type: String,
    hidden_size: i32,
    num_hidden_layers: usize,
    num_attention_heads: i32,
    num_key_value_heads: Option<i32>,
    head_dim: Option<i32>,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<serde_json::Value>,
    quantization: Option<serde_json::Value>,
    eos_token_id: serde_json::Value, // a number or a list
}

/// The weights of a layer: matrices `[outputs, inputs]`, and the weights of its norms.
struct Layer {
    attention_norm: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    mlp_norm: Array,
    gate: Array,
    up: Array,
    down: Array,
}

/// The keys and values of a layer so far, `[1, kv_heads, positions, head_dim]`.
type Cache = Option<(Array, Array)>;

pub struct Llama {
    config: Config,
    embedding: Array,
    layers: Vec<Layer>,
    norm: Array,
    head: Array,
}

impl Llama {
    pub fn load(folder: &Path) -> Result<Self> {
        let config = std::fs::read_to_string(folder.join("config.json"))
            .with_context(|| format!("reading config.json in {}", folder.display()))?;
        let config: Config = serde_json::from_str(&config).context("reading config.json")?;
        let plain = config.rope_scaling.is_none() && config.quantization.is_none();
        ensure!(
            config.model_type == "llama" && plain,
            "expected a llama with plain weights and the original rotation"
        );
        let weights = io::load_safetensors(folder.join("model.safetensors"))?.arrays;
        let weight = |name: &str| -> Result<Array> {
            let found = weights.get(&format!("model.{name}.weight"));
            Ok(found.with_context(|| format!("model.safetensors has no {name}"))?.clone())
        };
        let layer = |i: usize| -> Result<Layer> {
            let weight = |name: &str| weight(&format!("layers.{i}.{name}"));
            Ok(Layer {
                attention_norm: weight("input_layernorm")?,
                q: weight("self_attn.q_proj")?,
                k: weight("self_attn.k_proj")?,
                v: weight("self_attn.v_proj")?,
                o: weight("self_attn.o_proj")?,
                mlp_norm: weight("post_attention_layernorm")?,
                gate: weight("mlp.gate_proj")?,
                up: weight("mlp.up_proj")?,
                down: weight("mlp.down_proj")?,
            })
        };
        let embedding = weight("embed_tokens")?;
        Ok(Self {
            head: weights.get("lm_head.weight").unwrap_or(&embedding).clone(),
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: weight("norm")?,
            embedding,
            config,
        })
    }

    /// Returns the logits `[1, 1, vocabulary]` after `tokens`, an int32 or uint32 array
    /// `[1, time]`.
    fn forward(&self, tokens: &Array, caches: &mut [Cache]) -> Result<Array> {
        let mut x = self.embedding.take(tokens, 0)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = self.layer(layer, &x, cache)?;
        }
        let last = ops::rms_norm(&x.i((.., -1..))?, Some(&self.norm), self.config.rms_norm_eps)?;
        Ok(ops::linear(&last, &self.head, Linear::default())?)
    }

    /// The shape of `x` and of the result is `[1, time, hidden]`.
    fn layer(&self, layer: &Layer, x: &Array, cache: &mut Cache) -> Result<Array> {
        let eps = self.config.rms_norm_eps;
        let normed = ops::rms_norm(x, Some(&layer.attention_norm), eps)?;
        let attended = self.attention(layer, &normed, cache)?;
        let x = added(x, &attended, &layer.o)?;
        let normed = ops::rms_norm(&x, Some(&layer.mlp_norm), eps)?;
        let gate = ops::linear(&normed, &layer.gate, Linear::default())?;
        let up = ops::linear(&normed, &layer.up, Linear::default())?;
        added(&x, &ops::swiglu(&gate, &up)?, &layer.down)
    }

    /// Returns `[1, time, heads * head_dim]`; appends the positions' keys and values to the cache.
    fn attention(&self, layer: &Layer, x: &Array, cache: &mut Cache) -> Result<Array> {
        let config = &self.config;
        let heads = config.num_attention_heads;
        let kv_heads = config.num_key_value_heads.unwrap_or(heads);
        let dims = config.head_dim.unwrap_or(config.hidden_size / heads);
        let time = x.dim(1)?;
        let project = |w: &Array, heads: i32| -> Result<Array> {
            let y = ops::linear(x, w, Linear::default())?;
            Ok(y.reshape((1, time, heads, dims))?.transpose((0, 2, 1, 3))?)
        };
        let offset = cache.as_ref().map_or(Ok(0), |(keys, _)| keys.dim(2))?;
        let base = config.rope_theta.or(Some(10_000.0));
        let rope = Rope { dims, base, offset: offset.into(), ..Rope::default() };
        let q = ops::rope(&project(&layer.q, heads)?, rope)?;
        let mut k = ops::rope(&project(&layer.k, kv_heads)?, rope)?;
        let mut v = project(&layer.v, kv_heads)?;
        if let Some((keys, values)) = cache {
            k = concatenate(&[keys, &k], 2)?;
            v = concatenate(&[values, &v], 2)?;
        }
        let causal = Attention { causal: true, ..Attention::default() };
        let attended = ops::attention(&q, &k, &v, causal)?;
        *cache = Some((k, v));
        Ok(attended.transpose((0, 2, 1, 3))?.reshape((1, time, heads * dims))?)
    }

    /// Calls `each` with every token that follows `prompt`. Stops if `each` returns an error, the
    /// model ends its text, or `most` tokens have been generated.
    pub fn generate<F>(&self, prompt: &[u32], most: usize, mut each: F) -> Result<()>
    where
        F: FnMut(u32) -> Result<()>,
    {
        ensure!(!prompt.is_empty(), "expected a prompt of at least one token");
        let mut caches: Vec<Cache> = self.layers.iter().map(|_| None).collect();
        let mut tokens = Array::from_slice(prompt, (1, prompt.len() as i32))?;
        for _ in 0..most {
            tokens = self.forward(&tokens, &mut caches)?.argmax(-1)?;
            async_eval([&tokens])?;
            let token = tokens.item::<u32>()?;
            let end = &self.config.eos_token_id;
            if *end == token || end.as_array().is_some_and(|all| all.iter().any(|e| *e == token)) {
                break;
            }
            each(token)?;
        }
        Ok(())
    }
}

/// `x + y · wᵀ`.
fn added(x: &Array, y: &Array, w: &Array) -> Result<Array> {
    Ok(ops::linear(y, w, Linear { residual: Some(x), ..Linear::default() })?)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let prompt = arguments.next().unwrap_or_else(|| "Once upon a time".to_owned());
    let folder = arguments.next().unwrap_or_else(|| "crates/llama/assets/demo".to_owned());
    let llama = Llama::load(Path::new(&folder))?;
    let file = Path::new(&folder).join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&file)
        .map_err(|e| anyhow::anyhow!("reading {}: {e}", file.display()))?;
    let ids = tokenizer.encode(prompt.as_str(), true).map_err(anyhow::Error::msg)?;
    let mut text = tokenizer.decode_stream(true);
    print!("{prompt}");
    llama.generate(ids.get_ids(), MAX_TOKENS, |token| {
        print!("{}", text.step(token).map_err(anyhow::Error::msg)?.unwrap_or_default());
        Ok(std::io::stdout().flush()?)
    })?;
    println!();
    Ok(())
}
