use std::cell::RefCell;

use crate::array::{Array, Block, concatenate};
use crate::error::Result;
use crate::ops::{self, AttentionOptions};

use super::adapters::Adapters;
use super::cache::{AttentionInputs, AttentionMask, Heads, KvTensor, LayerCache};
use super::config::Config;
use super::linear::{Around, Gate, Linear, Norm, gated};
use super::projections::Projections;
use super::rope_frequencies::RopeFrequencies;
use super::weights::Weights;

/// A change of a projection.
pub(super) type Change<'a> = dyn Fn(&Linear) -> Result<Linear> + 'a;

/// The projection at `path`.
pub(super) fn linear(
    config: &Config,
    path: &str,
    shape: [i32; 2],
    weights: &mut Weights,
) -> Result<Linear> {
    Linear::new(path.to_owned(), shape, config, weights)
}

pub(super) struct DecoderLayer {
    pub input_layernorm: Norm,
    pub attention: Attention,
    pub post_attention_layernorm: Norm,
    pub mlp: Mlp,
}

impl DecoderLayer {
    pub fn new(
        config: &Config,
        path: &str,
        rope: &RopeFrequencies,
        weights: &mut Weights,
    ) -> Result<Self> {
        let mut norm =
            |name: &str| Norm::load(&format!("{path}.{name}"), config.hidden_size, config, weights);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            attention: Attention::new(config, &format!("{path}.self_attn"), rope, weights)?,
            mlp: Mlp::new(config, &format!("{path}.mlp"), weights)?,
        })
    }

    /// All that is to be evaluated before the layer runs.
    pub fn arrays(&self) -> Vec<&Array> {
        let Mlp { gate_proj, up_proj, down_proj, .. } = &self.mlp;
        let mut arrays = self.attention.qkv_proj.arrays();
        let linears = [&self.attention.o_proj, gate_proj, up_proj, down_proj];
        arrays.extend(linears.into_iter().flat_map(Linear::arrays));
        arrays.extend(self.norms());
        arrays
    }

    pub fn forward(
        &self,
        x: &Array,
        mask: &AttentionMask,
        cache: &mut LayerCache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        let h = self.attention.forward(x, &self.input_layernorm, mask, cache, adapters)?;
        self.mlp.forward(&h, &self.post_attention_layernorm, adapters)
    }

    pub fn norms(&self) -> impl Iterator<Item = &Array> {
        let norms = [&self.input_layernorm, &self.post_attention_layernorm];
        let heads = self.attention.head_norms.iter().flatten();
        norms.into_iter().chain(heads).map(|norm| &norm.weight)
    }

    pub fn changed(&self, f: &Change) -> Result<Self> {
        self.with(self.attention.qkv_proj.changed(f)?, f)
    }

    /// The same, its matrices in one block of memory; itself where no block is large enough.
    pub fn placed(self) -> Result<Self> {
        let Mlp { gate_proj, up_proj, down_proj, .. } = &self.mlp;
        let qkv_proj = &self.attention.qkv_proj;
        let linears = [&self.attention.o_proj, gate_proj, up_proj, down_proj];
        let all = qkv_proj.linears().iter().chain(linears);
        let Some(mut block) = Block::with_room_for(all.flat_map(Linear::arrays))? else {
            return Ok(self);
        };
        let qkv_proj = qkv_proj.placed(&mut block)?;
        let block = RefCell::new(block);
        self.with(qkv_proj, &|linear| linear.placed(&mut block.borrow_mut()))
    }

    fn with(&self, qkv_proj: Projections, f: &Change) -> Result<Self> {
        let Attention { o_proj, heads, head_norms, rope, .. } = &self.attention;
        let Mlp { gate_proj, up_proj, down_proj, gate } = &self.mlp;
        Ok(Self {
            input_layernorm: self.input_layernorm.clone(),
            attention: Attention {
                qkv_proj,
                o_proj: f(o_proj)?,
                heads: *heads,
                head_norms: head_norms.clone(),
                rope: rope.clone(),
            },
            post_attention_layernorm: self.post_attention_layernorm.clone(),
            mlp: Mlp {
                gate_proj: f(gate_proj)?,
                up_proj: f(up_proj)?,
                down_proj: f(down_proj)?,
                gate: *gate,
            },
        })
    }

    /// Its projections, in the order that they run in.
    pub fn projections(&self) -> impl Iterator<Item = &Linear> {
        let Mlp { gate_proj, up_proj, down_proj, .. } = &self.mlp;
        let rest = [&self.attention.o_proj, gate_proj, up_proj, down_proj];
        self.attention.qkv_proj.parts().iter().chain(rest)
    }
}

pub(super) struct Attention {
    pub qkv_proj: Projections,
    pub o_proj: Linear,
    pub heads: Heads,
    /// Of the vectors of queries and of keys, before they turn.
    pub head_norms: Option<[Norm; 2]>,
    pub rope: RopeFrequencies,
}

impl Attention {
    fn new(
        config: &Config,
        path: &str,
        rope: &RopeFrequencies,
        weights: &mut Weights,
    ) -> Result<Self> {
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
        let o_proj = projection("o_proj", hidden, heads.heads * features)?;
        let head_norms = match config.kind()?.normalises_heads() {
            true => {
                let mut norm =
                    |name: &str| Norm::load(&format!("{path}.{name}"), features, config, weights);
                Some([norm("q_norm")?, norm("k_norm")?])
            }
            false => None,
        };
        Ok(Self { qkv_proj: Projections::new(qkv)?, o_proj, heads, head_norms, rope: rope.clone() })
    }

    /// `x + attention(norm(x))`.
    fn forward(
        &self,
        x: &Array,
        norm: &Norm,
        mask: &AttentionMask,
        cache: &mut LayerCache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        let (batch, time) = (x.dim(0)?, x.dim(1)?);
        let around = Around { norm: Some(norm), adapters, ..Around::default() };
        let qkv = self.normed_heads(self.qkv_proj.forward(x, around)?)?;
        let inputs = cache.append(&qkv, self.heads, &self.rope)?;
        let output = attend(&inputs, mask)?.transpose(&[0, 2, 1, 3])?.reshape(&[
            batch,
            time,
            self.heads.heads * self.heads.head_dim,
        ])?;
        let around = Around { residual: Some(x), adapters, ..Around::default() };
        self.o_proj.forward(&output, around)
    }

    /// `[batch, time, features]` of all heads, those of queries and keys normalised.
    fn normed_heads(&self, qkv: Array) -> Result<Array> {
        let Some([of_queries, of_keys]) = &self.head_norms else { return Ok(qkv) };
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let shape = qkv.shape().to_vec();
        let all = qkv.reshape(&[shape[0], shape[1], heads + 2 * kv_heads, head_dim])?;
        let queries = of_queries.forward(&all.slice_axis(2, ..heads)?)?;
        let keys = of_keys.forward(&all.slice_axis(2, heads..heads + kv_heads)?)?;
        let values = all.slice_axis(2, heads + kv_heads..)?;
        concatenate(&[&queries, &keys, &values], 2)?.reshape(&shape)
    }
}

/// `[batch, heads, time, head_dim]`.
fn attend(inputs: &AttentionInputs, mask: &AttentionMask) -> Result<Array> {
    let mut options = AttentionOptions::default();
    match mask {
        AttentionMask::All => {}
        AttentionMask::Causal => options.causal = true,
        AttentionMask::Mask(mask) => options.mask = Some(mask),
    }
    match (&inputs.keys, &inputs.values) {
        (KvTensor::Plain(keys), KvTensor::Plain(values)) => {
            ops::attention(&inputs.queries, keys, values, &options)
        }
        (keys, values) => {
            if let (Some((k, bits, group_size)), Some((v, ..))) = (keys.rows(), values.rows()) {
                return ops::attention_quantized(&inputs.queries, k, v, bits, group_size, &options);
            }
            ops::attention(&inputs.queries, &keys.dequantized()?, &values.dequantized()?, &options)
        }
    }
}

pub(super) struct Mlp {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
    pub gate: Gate,
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
            gate: if config.kind()?.gates_by_gelu() { Gate::Gelu } else { Gate::Silu },
        })
    }

    /// `x + down(act(gate(norm(x))) * up(norm(x)))`.
    fn forward(&self, x: &Array, norm: &Norm, adapters: Option<&Adapters>) -> Result<Array> {
        let around = Around { norm: Some(norm), adapters, ..Around::default() };
        let inner = gated(self.gate, &self.gate_proj, &self.up_proj, x, around)?;
        let around = Around { residual: Some(x), adapters, ..Around::default() };
        self.down_proj.forward(&inner, around)
    }
}
