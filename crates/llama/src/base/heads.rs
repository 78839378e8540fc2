use mlx_primitives::ops::KvLayout;
use mlx_primitives::{Array, Result};

use super::config::Config;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The number of query heads.
    pub heads: i32,
    /// The number of key heads, which is also the number of value heads.
    pub kv_heads: i32,
    /// The number of features of a head.
    pub head_dim: i32,
}

impl From<&Config> for Heads {
    fn from(config: &Config) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        Self { heads, kv_heads, head_dim: config.head_dim() }
    }
}

impl Heads {
    /// The layout of a layer's cache buffer for `capacity` positions.
    pub(crate) fn layout(&self, capacity: i32) -> KvLayout {
        let Self { heads, kv_heads, head_dim } = *self;
        KvLayout { heads, kv_heads, head_dim, capacity }
    }

    /// Takes the vectors of the heads `from..to` out of the projection `qkv`, as an array `[batch,
    /// to - from, time, head_dim]`. In `qkv`, the features of the heads follow one another.
    pub(crate) fn split(&self, qkv: &Array, from: i32, to: i32) -> Result<Array> {
        let (batch, time, features) = (qkv.dim(0)?, qkv.dim(1)?, self.head_dim);
        qkv.slice_axis(2, from * features..to * features)?
            .reshape([batch, time, to - from, features])?
            .transpose([0, 2, 1, 3])
    }
}

impl Config {
    /// The projections of a decoder layer in the order in which they run, with the numbers of
    /// outputs and inputs.
    pub(crate) fn projections(&self) -> [(&'static str, [i32; 2]); 7] {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let Heads { heads, kv_heads, head_dim } = Heads::from(self);
        let (queries, stored) = (heads * head_dim, kv_heads * head_dim);
        [
            ("self_attn.q_proj", [queries, hidden]),
            ("self_attn.k_proj", [stored, hidden]),
            ("self_attn.v_proj", [stored, hidden]),
            ("self_attn.o_proj", [hidden, queries]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
        ]
    }
}
