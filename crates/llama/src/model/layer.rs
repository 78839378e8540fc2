use std::cell::RefCell;

use mlx_primitives::support::Block;
use mlx_primitives::{Array, Result};

use super::attention::Attention;
use super::linear::{Change, Linear, Norm};
use super::mlp::Mlp;
use super::qkv_projection::QkvProjection;
use crate::base::{Axis, Config, RopeFrequencies, Share, Weights};
use crate::cache::{AttentionMask, LayerCache};

/// Layers share a block of up to this number of bytes, so that few large pages are partly used.
const BLOCK: usize = 128 << 20;

/// One layer of the decoder.
#[derive(Clone)]
pub(crate) struct DecoderLayer {
    pub input_layernorm: Norm,
    pub self_attn: Attention,
    pub post_attention_layernorm: Norm,
    pub mlp: Mlp,
    pub share: Share,
}

impl DecoderLayer {
    pub fn load(
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
            self_attn: Attention::load(config, &format!("{path}.self_attn"), rope, weights)?,
            mlp: Mlp::load(config, &format!("{path}.mlp"), weights)?,
            share: weights.share().clone(),
        })
    }

    /// Runs the layer on `x`, `[batch, time, hidden]`, and appends its keys and values to the
    /// cache.
    pub fn forward(
        &self,
        x: &Array,
        mask: &AttentionMask,
        cache: &mut LayerCache,
    ) -> Result<Array> {
        let Self { input_layernorm, self_attn, post_attention_layernorm, mlp, share } = self;
        let qkv = self_attn.norm_heads(self_attn.qkv_proj.forward(x, input_layernorm)?)?;
        let attended = self_attn.attend(&qkv, mask, cache, share)?;
        let h = self_attn.o_proj.added_to(x, attended, Axis::Heads, share)?;

        let inner = mlp.gated(&h, post_attention_layernorm)?;
        mlp.down_proj.added_to(&h, inner, Axis::Inner, share)
    }

    /// All arrays to evaluate before the layer runs.
    pub fn arrays(&self) -> Vec<&Array> {
        let mut arrays = self.self_attn.qkv_proj.arrays();
        arrays.extend(self.after_qkv().into_iter().flat_map(Linear::arrays));
        arrays.extend(self.norms());
        arrays
    }

    pub fn norms(&self) -> impl Iterator<Item = &Array> {
        let norms = [&self.input_layernorm, &self.post_attention_layernorm];
        let heads = self.self_attn.head_norms.iter().flatten();
        norms.into_iter().chain(heads).map(|norm| &norm.weight)
    }

    /// The projections, in the order in which they run.
    pub fn projections(&self) -> impl Iterator<Item = &Linear> {
        self.self_attn.qkv_proj.parts().iter().chain(self.after_qkv())
    }

    fn after_qkv(&self) -> [&Linear; 4] {
        let [gate, up, down] = self.mlp.projections();
        [&self.self_attn.o_proj, gate, up, down]
    }

    /// The layer with each projection changed by `f`.
    pub fn changed(&self, f: &Change) -> Result<Self> {
        self.with(self.self_attn.qkv_proj.changed(f)?, f)
    }

    /// The layer with each projection changed by `f`, which leaves the matrices as they are.
    pub fn updated(&self, f: &Change) -> Result<Self> {
        self.with(self.self_attn.qkv_proj.updated(f)?, f)
    }

    /// The layer with its matrices in this block, or in another one that replaces it and has room
    /// for several `layers` to come if they are small; or the layer as it was where no block is
    /// large enough.
    pub fn placed(self, block: &mut Option<Block>, layers: usize) -> Result<Self> {
        let qkv_proj = &self.self_attn.qkv_proj;
        let all = qkv_proj.linears().iter().chain(self.after_qkv());
        let bytes = Block::bytes_of(all.flat_map(Linear::arrays));
        if !block.as_ref().is_some_and(|block| block.has_room_for(bytes)) {
            let alike = (BLOCK / bytes.max(1)).clamp(1, layers.max(1));
            *block = Block::with_room_for(bytes * alike)?;
        }
        let Some(block) = block else {
            return Ok(self);
        };
        let qkv_proj = qkv_proj.placed(block)?;
        let block = RefCell::new(block);
        self.with(qkv_proj, &|linear| linear.placed(&mut block.borrow_mut()))
    }

    fn with(&self, qkv_proj: QkvProjection, f: &Change) -> Result<Self> {
        let o_proj = f(&self.self_attn.o_proj)?;
        Ok(Self {
            self_attn: Attention { qkv_proj, o_proj, ..self.self_attn.clone() },
            mlp: self.mlp.changed(f)?,
            ..self.clone()
        })
    }
}
