//! Builds the graph of a decoded token twice: for our model, and with the built-ins of MLX that
//! mlx-lm calls one by one.

use std::collections::BTreeMap;

use mlx_primitives::graph::{self, Node};
use mlx_primitives::ops::{self, Attention, LinearWeight, QuantizedLinear, QuantizedMode};
use mlx_primitives::{Array, Dtype, Error, Result, builtin, eval};
use mlx_primitives_llama::{
    Config, Llama,
    base::{ModelType, RopeFrequencies},
};

/// The number of positions by which mlx-lm enlarges its key/value buffers.
const STEP: i32 = 256;

/// Whether the model has K-quants and 16-bit activations. GPUs have no kernel for their products,
/// so the nodes of a token cannot be counted.
pub fn unpacks_k_quants(llama: &Llama) -> bool {
    let is_k_quant = |weight: &LinearWeight| match weight {
        LinearWeight::Quantized(packed) => packed.mode() == QuantizedMode::KQuant,
        LinearWeight::Plain(_) => false,
    };
    llama.dtype() != Dtype::Float32 && llama.weights().values().any(is_k_quant)
}

/// Returns the graph nodes of a decoded token on a GPU with `context` positions in the cache. The
/// first list is for `llama`. The second list is for MLX's built-ins, which run `affine`: the same
/// model in formats that MLX supports. Evaluates only the caches. Leaves out nodes that read or
/// pack weights that are not in memory yet.
pub fn nodes_of_a_token(llama: &Llama, affine: &Llama, context: i32) -> Result<[Vec<Node>; 2]> {
    let token = Array::from_slice(&[0u32], [1, 1])?;
    // Layers with a sliding window count as if they read the whole context.
    let mut cache = llama.zeroed_cache(context)?;
    let ours = llama.forward(&token, &mut cache)?;
    let model = BuiltIns {
        config: affine.config(),
        rope: affine.config().rope_frequencies()?,
        weights: affine.weights(),
        context,
    };
    let mut buffers = Vec::new();
    let theirs = model.forward(&token, affine, &mut buffers)?;
    let [once, once_affine] = [llama, affine].map(|model| graph::nodes(model.arrays()));
    let ours = graph::nodes([&ours].into_iter().chain(cache.arrays()))?;
    let theirs = graph::nodes([&theirs].into_iter().chain(&buffers))?;
    let theirs = without(theirs, &once_affine?).into_iter().map(of_mlx).collect();
    Ok([without(ours, &once?), theirs])
}

/// Removes the nodes in `once` from `nodes`. The two lists may give a node different numbers of
/// bytes: a node with several results counts only the first result that the walk over the graph
/// reaches. So if `nodes` has no equal node, this function removes a node with the same name.
fn without(mut nodes: Vec<Node>, once: &[Node]) -> Vec<Node> {
    let mut left = Vec::new();
    for node in once {
        match nodes.iter().position(|other| other == node) {
            Some(place) => drop(nodes.remove(place)),
            None => left.push(node),
        }
    }
    for node in left {
        if let Some(place) = nodes.iter().position(|other| other.name == node.name) {
            nodes.remove(place);
        }
    }
    nodes
}

/// Renames one of our nodes to the corresponding node of MLX. On a GPU, MLX also runs RMS norm,
/// rotary embedding, attention, and mlx-lm's compiled SwiGLU as one node each.
fn of_mlx(node: Node) -> Node {
    let name = match node.name.as_str() {
        "RmsNorm" => "RMSNorm",
        "Rope" => "RoPE",
        "Attention" => "ScaledDotProductAttention",
        "Activation" => "CompiledSwiGLU",
        other => other,
    };
    Node { name: name.to_owned(), ours: false, ..node }
}

/// Runs a model with MLX's built-ins and `context` positions in the cache.
struct BuiltIns<'a> {
    config: &'a Config,
    rope: RopeFrequencies,
    weights: BTreeMap<String, LinearWeight>,
    context: i32,
}

impl BuiltIns<'_> {
    /// Returns the logits of a token, and appends the keys and values of each layer to `buffers`.
    fn forward(&self, token: &Array, llama: &Llama, buffers: &mut Vec<Array>) -> Result<Array> {
        let (embedding, config) = ("model.embed_tokens", self.config);
        let mut h = match self.weight(embedding)? {
            LinearWeight::Plain(rows) => rows.take(token, 0)?,
            packed @ LinearWeight::Quantized(rows) => rows.take_rows(token, packed.dtype())?,
        }
        .astype(llama.dtype())?;
        if config.kind()? == ModelType::Gemma {
            h = h.multiply((config.hidden_size as f32).sqrt())?;
        }
        for layer in 0..config.num_hidden_layers {
            let of = |name: &str| format!("model.layers.{layer}.{name}");
            let normed = self.norm(&h, &of("input_layernorm"))?;
            h = h.add(self.attention(&normed, &of("self_attn"), buffers)?)?;
            let normed = self.norm(&h, &of("post_attention_layernorm"))?;
            let gate = self.product(&normed, &of("mlp.gate_proj"))?;
            let up = self.product(&normed, &of("mlp.up_proj"))?;
            let inner = config.gated(&gate, &up)?;
            h = h.add(self.product(&inner, &of("mlp.down_proj"))?)?;
        }
        let tied = config.tie_word_embeddings == Some(true);
        self.product(&self.norm(&h, "model.norm")?, if tied { embedding } else { "lm_head" })
    }

    fn weight(&self, path: &str) -> Result<&LinearWeight> {
        self.weights
            .get(&format!("{path}.weight"))
            .ok_or_else(|| Error::argument("info", format_args!("a weight {path}, got none")))
    }

    fn norm(&self, x: &Array, path: &str) -> Result<Array> {
        let weight = self.weight(path)?.arrays().next();
        ops::rms_norm(x, weight, self.config.rms_norm_eps)
    }

    fn product(&self, x: &Array, path: &str) -> Result<Array> {
        let y = match self.weight(path)? {
            LinearWeight::Plain(rows) => builtin::matmul(x, &rows.t()?)?,
            LinearWeight::Quantized(rows) => {
                let ours = ops::quantized_linear(x, rows, QuantizedLinear::default())?;
                builtin::composition(&ours)?.remove(0)
            }
        };
        match self.weights.get(&format!("{path}.bias")) {
            Some(LinearWeight::Plain(bias)) => y.add(bias),
            _ => Ok(y),
        }
    }

    fn attention(&self, x: &Array, path: &str, buffers: &mut Vec<Array>) -> Result<Array> {
        let (config, features, len) = (self.config, self.config.head_dim(), self.context);
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        let of = |name: &str| format!("{path}.{name}");
        let split = |name: &str, heads: i32| {
            let parts = self.product(x, &of(name))?.reshape([1, 1, heads, features])?;
            parts.transpose([0, 2, 1, 3])
        };
        let (mut queries, mut keys) = (split("q_proj", heads)?, split("k_proj", kv_heads)?);
        if self.weights.contains_key(&format!("{path}.q_norm.weight")) {
            queries = self.norm(&queries, &of("q_norm"))?;
            keys = self.norm(&keys, &of("k_norm"))?;
        }
        let queries = self.rope.rotate(&queries, len)?;
        let new = [self.rope.rotate(&keys, len)?, split("v_proj", kv_heads)?];
        let [keys, values] = new.each_ref().map(|new| {
            let capacity = len / STEP * STEP + STEP;
            let buffer = Array::zeros_of([1, kv_heads, capacity, features], new.dtype())?;
            eval([&buffer])?;
            let buffer = buffer.slice_update((.., .., len..len + 1), new)?;
            buffers.push(buffer.clone());
            buffer.i((.., .., ..len + 1))
        });
        let attended = ops::attention(&queries, &keys?, &values?, Attention::default())?;
        let joined = attended.transpose([0, 2, 1, 3])?.reshape([1, 1, heads * features])?;
        self.product(&joined, &of("o_proj"))
    }
}
