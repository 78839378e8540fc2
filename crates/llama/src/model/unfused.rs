//! The model built of MLX's built-ins, op by op as mlx-lm calls them, for comparison with the fused
//! one.

use mlx_primitives::{Array, Result, builtin, concatenate, graph, ops};

use super::attention::Attention;
use super::layer::DecoderLayer;
use super::linear::{Linear, Norm};
use super::llama::Llama;
use super::matrix::Matrix;
use super::mlp::Mlp;
use crate::base::Heads;
use crate::cache::{Cache, CacheKind};

/// The implementation of the fused ops that MLX has too: RMS norm, rotary embedding, attention, and
/// the compiled SwiGLU of mlx-lm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fused {
    /// MLX's own ops, which on a CPU are graphs of many ops.
    BuiltIn,
    /// Our ops, for counting: each is one node, like MLX's own ops on a GPU.
    StandIn,
}

/// The cache of [`Llama::forward_unfused`]: keys and values `[batch, kv_heads, capacity, head_dim]`
/// of each layer, written in place.
pub struct UnfusedCache {
    layers: Vec<Option<[Array; 2]>>,
    len: i32,
}

/// The number of positions by which buffers grow, as in mlx-lm.
const STEP: i32 = 256;

impl Llama {
    /// An empty cache for [`forward_unfused`](Self::forward_unfused).
    pub fn new_unfused_cache(&self) -> UnfusedCache {
        UnfusedCache { layers: vec![None; self.layers.len()], len: 0 }
    }

    /// The logits `[1, time, vocab]` of [`forward`](Self::forward), computed by MLX's built-ins
    /// alone, for one text of one position or more.
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is no matrix of integers, or does not fit the cache.
    pub fn forward_unfused(&self, tokens: &Array, cache: &mut UnfusedCache) -> Result<Array> {
        self.unfused(tokens, cache, Fused::BuiltIn)
    }

    /// The nodes that a decoded token takes on a GPU with `context` positions in the cache: those
    /// of this model, and those of MLX's built-ins. Only the caches are evaluated. Nodes that read
    /// or pack weights that are not in memory yet do not count.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for a cache of that many positions.
    pub fn cost_of_a_token(&self, context: i32) -> Result<[Vec<graph::Node>; 2]> {
        let token = Array::from_slice(&[0u32], [1, 1])?;
        // Sliding layers count as if they saw the whole context.
        let mut cache = Cache::new(self.layers.len(), CacheKind::Plain)?;
        cache.reserve(context, self.share.heads(Heads::from(self.config())), self.dtype())?;
        let mut unfused = self.new_unfused_cache();
        unfused.reserve(context, self)?;
        let ours = self.forward(&token, &mut cache)?;
        let theirs = self.unfused(&token, &mut unfused, Fused::StandIn)?;
        let once = self.pending()?;
        let ours = graph::nodes([&ours].into_iter().chain(cache.arrays()))?;
        let arrays = [&theirs].into_iter().chain(unfused.layers.iter().flatten().flatten());
        let theirs = graph::nodes(arrays)?;
        let theirs = without(theirs, &once).into_iter().map(stood_for).collect();
        Ok([without(ours, &once), theirs])
    }

    /// The nodes of weights that are not computed yet.
    fn pending(&self) -> Result<Vec<graph::Node>> {
        let layers = self.layers.iter().flat_map(|layer| layer.arrays());
        let head = self.lm_head.iter().flat_map(Linear::arrays);
        let rest = self.embed_tokens.arrays().into_iter().chain([&self.norm.weight]);
        graph::nodes(layers.chain(head).chain(rest))
    }

    fn unfused(&self, tokens: &Array, cache: &mut UnfusedCache, fused: Fused) -> Result<Array> {
        let mut h = self.embed(tokens)?;
        let len = cache.len;
        for ((i, layer), buffers) in self.numbered_layers().zip(&mut cache.layers) {
            // For counting, sliding layers see the whole context.
            let window = self.config.window_of(i).filter(|_| fused == Fused::BuiltIn);
            h = layer.unfused(&h, buffers, Seen { len, window }, fused)?;
        }
        cache.len += tokens.dim(1)?;
        let h = self.norm.unfused(&h, fused)?;
        match &self.lm_head {
            Some(head) => head.unfused(&h),
            None => self.embed_tokens.unfused(&h),
        }
    }
}

/// The nodes without those of `once`. A node of several results counts other bytes depending on the
/// result that was met first, so nodes without an equal are removed by name.
fn without(mut nodes: Vec<graph::Node>, once: &[graph::Node]) -> Vec<graph::Node> {
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

/// The node of MLX that one of our nodes stands for.
fn stood_for(node: graph::Node) -> graph::Node {
    let name = match node.name.as_str() {
        "RmsNorm" => "RMSNorm",
        "Rope" => "RoPE",
        "Attention" => "ScaledDotProductAttention",
        "Activation" => "CompiledSwiGLU",
        other => other,
    };
    graph::Node { name: name.to_owned(), ours: false, ..node }
}

impl Norm {
    fn unfused(&self, x: &Array, fused: Fused) -> Result<Array> {
        match fused {
            Fused::BuiltIn => builtin::rms_norm(x, Some(&self.weight), self.eps),
            Fused::StandIn => self.forward(x),
        }
    }
}

impl Matrix {
    fn unfused(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Plain(rows) => x.matmul(&rows.t()?),
            Self::Quantized(rows) => {
                let ours = ops::quantized_linear(x, rows, ops::QuantizedLinear::default())?;
                Ok(builtin::composition(&ours)?.remove(0))
            }
        }
    }
}

impl Linear {
    fn unfused(&self, x: &Array) -> Result<Array> {
        let y = self.matrix.unfused(x)?;
        self.bias.as_ref().map_or_else(|| Ok(y.clone()), |bias| y.add(bias))
    }
}

impl DecoderLayer {
    fn unfused(
        &self,
        x: &Array,
        buffers: &mut Option<[Array; 2]>,
        seen: Seen,
        fused: Fused,
    ) -> Result<Array> {
        let normed = self.input_layernorm.unfused(x, fused)?;
        let h = x.add(self.self_attn.unfused(&normed, buffers, seen, fused)?)?;
        let normed = self.post_attention_layernorm.unfused(&h, fused)?;
        h.add(self.mlp.unfused(&normed, fused)?)
    }
}

impl Attention {
    fn unfused(
        &self,
        x: &Array,
        buffers: &mut Option<[Array; 2]>,
        Seen { len, window }: Seen,
        fused: Fused,
    ) -> Result<Array> {
        let (batch, time) = (x.dim(0)?, x.dim(1)?);
        let features = self.heads.head_dim;
        let split =
            |x: Array, heads| x.reshape([batch, time, heads, features])?.transpose([0, 2, 1, 3]);
        let [q, k, v] = self.qkv_proj.parts().each_ref().map(|part| part.unfused(x));
        let (mut queries, mut keys) =
            (split(q?, self.heads.heads)?, split(k?, self.heads.kv_heads)?);
        if let Some([of_queries, of_keys]) = &self.head_norms {
            (queries, keys) =
                (of_queries.unfused(&queries, fused)?, of_keys.unfused(&keys, fused)?);
        }
        let (queries, keys) = (self.turned(&queries, len, fused)?, self.turned(&keys, len, fused)?);
        let values = split(v?, self.heads.kv_heads)?;

        let end = len + time;
        let mut grown = grown(buffers.take(), [&keys, &values], len, end)?;
        for (buffer, new) in grown.iter_mut().zip([&keys, &values]) {
            *buffer = buffer.slice_update((.., .., len..end), new)?;
        }
        let [keys, values] = grown.each_ref().map(|b| b.i((.., .., ..end)));
        *buffers = Some(grown);

        let mask = window.filter(|window| end > *window);
        let mask = mask.map(|window| within(window, len, end)).transpose()?;
        let causal = time > 1 && mask.is_none();
        let options = ops::Attention { causal, mask: mask.as_ref(), ..Default::default() };
        let output = ops::attention(&queries, &keys?, &values?, options)?;
        let output = match fused {
            Fused::BuiltIn => builtin::composition(&output)?.remove(0),
            Fused::StandIn => output,
        };
        let width = self.heads.heads * features;
        self.o_proj.unfused(&output.transpose([0, 2, 1, 3])?.reshape([batch, time, width])?)
    }

    fn turned(&self, x: &Array, offset: i32, fused: Fused) -> Result<Array> {
        let turned = self.rope.rotate(x, offset)?;
        match fused {
            Fused::BuiltIn => Ok(builtin::composition(&turned)?.remove(0)),
            Fused::StandIn => Ok(turned),
        }
    }
}

impl Mlp {
    fn unfused(&self, x: &Array, fused: Fused) -> Result<Array> {
        let (gate, up) = (self.gate_proj.unfused(x)?, self.up_proj.unfused(x)?);
        let inner = match fused {
            Fused::BuiltIn => self.activation.built_of_mlx(&gate)?.multiply(up)?,
            Fused::StandIn => self.activation.gated(&gate, &up)?,
        };
        self.down_proj.unfused(&inner)
    }
}

/// The positions before a step, and how many of them its layer sees.
#[derive(Clone, Copy)]
struct Seen {
    len: i32,
    window: Option<i32>,
}

/// The keys, of all before `end`, that the queries from `len` on see in a window.
fn within(window: i32, len: i32, end: i32) -> Result<Array> {
    let queries = Array::arange::<i32>(f64::from(len), f64::from(end), 1.0)?.expand_dims([1])?;
    let keys = Array::arange::<i32>(0.0, f64::from(end), 1.0)?.expand_dims([0])?;
    let back = queries.subtract(keys)?;
    back.greater_equal(0)?.logical_and(back.less(window)?)
}

impl UnfusedCache {
    /// Fills the cache with evaluated buffers of which `len` positions are used.
    fn reserve(&mut self, len: i32, model: &Llama) -> Result<()> {
        let config = model.config();
        let shape = [1, config.kv_heads(), len / STEP * STEP + STEP, config.head_dim()];
        for buffers in &mut self.layers {
            let zeros = || Array::zeros_of(shape, model.dtype());
            let new = [zeros()?, zeros()?];
            mlx_primitives::eval(&new)?;
            *buffers = Some(new);
        }
        self.len = len;
        Ok(())
    }
}

/// The buffers, enlarged if necessary to have room for `end` positions.
fn grown(buffers: Option<[Array; 2]>, new: [&Array; 2], len: i32, end: i32) -> Result<[Array; 2]> {
    if let Some(buffers) = &buffers
        && end <= buffers[0].dim(2)?
    {
        return Ok(buffers.clone());
    }
    let part = |i: usize| {
        let mut shape = new[i].shape().to_vec();
        shape[2] = (end - len + STEP - 1) / STEP * STEP;
        let empty = Array::zeros_of(&shape, new[i].dtype())?;
        match &buffers {
            Some(buffers) => {
                let seen = buffers[i].i((.., .., ..len))?;
                concatenate(&[&seen, &empty], 2)
            }
            None => Ok(empty),
        }
    };
    Ok([part(0)?, part(1)?])
}
