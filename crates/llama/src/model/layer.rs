use mlx_primitives::ops::{self, LinearWeight, QuantizedWeight};
use mlx_primitives::support::{Block, gated_linear};
use mlx_primitives::{Array, Result, concatenate};

use super::linear::{Linear, Module, Norm};
use super::matrix;
use crate::base::{Activation, Config, Heads, RopeFrequencies, Weights};
use crate::cache::{AttentionInputs, AttentionMask, LayerCache, join_heads};

/// The maximum size in bytes of a memory block that several small layers share. Sharing wastes less
/// memory in partly used large pages.
const BLOCK: usize = 128 << 20;

/// One layer of the decoder.
#[derive(Clone)]
pub(super) struct DecoderLayer {
    pub input_layernorm: Norm,
    pub post_attention_layernorm: Norm,
    /// Norms of each head's queries and keys before the rotary embedding, in Qwen3.
    pub head_norms: Option<[Norm; 2]>,
    /// The projections q, k, v, o, gate, up and down, in this order.
    pub projections: [Linear; 7],
    /// The matrices of the q, k and v projections, concatenated along axis 0 (the outputs), if they
    /// are not packed. The matrices in `projections` are then views of this array.
    qkv_rows: Option<Array>,
    /// The concatenated biases of the q, k and v projections, with zeros for a projection without a
    /// bias. `None` if none of the three has a bias.
    qkv_biases: Option<Array>,
    pub heads: Heads,
    /// For this process's key heads, the numbers of query heads in earlier and in later processes;
    /// `None` if this process has all query heads of its key heads.
    absent: Option<(i32, i32)>,
    pub rope: RopeFrequencies,
    pub activation: Activation,
    /// The length of the sliding window of attention; `None` if the layer attends to all positions.
    pub window: Option<i32>,
}

impl DecoderLayer {
    pub fn load(
        config: &Config,
        index: i32,
        rope: &RopeFrequencies,
        weights: &mut Weights,
    ) -> Result<Self> {
        let path = |name: &str| format!("model.layers.{index}.{name}");
        let [q, k, v, o, gate, up, down] = config
            .projections()
            .map(|(name, shape)| Linear::load(&path(name), shape, config, weights));
        let projections = [q?, k?, v?, o?, gate?, up?, down?];
        let mut norm = |name: &str, features| Norm::load(&path(name), features, config, weights);
        let (hidden, head_dim) = (config.hidden_size, config.head_dim());
        let head_norms = match config.kind()?.normalizes_heads() {
            true => {
                Some([norm("self_attn.q_norm", head_dim)?, norm("self_attn.k_norm", head_dim)?])
            }
            false => None,
        };
        let mut layer = Self {
            input_layernorm: norm("input_layernorm", hidden)?,
            post_attention_layernorm: norm("post_attention_layernorm", hidden)?,
            head_norms,
            projections,
            qkv_rows: None,
            qkv_biases: None,
            heads: weights.share().heads(Heads::from(config)),
            absent: weights.share().absent_queries(),
            rope: rope.clone(),
            activation: config.activation()?,
            window: config.window_of(index.unsigned_abs() as usize),
        };
        layer.join()?;
        Ok(layer)
    }

    /// Runs the layer on `x`, `[batch, time, hidden]`. `attend` computes attention from one array
    /// that contains the queries, keys and values.
    pub fn forward(
        &self,
        x: &Array,
        attend: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        use LinearWeight::{Plain, Quantized};
        let [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj] = &self.projections;

        // `qkv` has the queries, keys and values of all heads one after the other along the last
        // axis. One product computes it, unless the formats of the three matrices differ or one of
        // the projections has an update.
        let (norm, biases) = (&self.input_layernorm, self.qkv_biases.as_ref());
        let apart = || {
            let x = norm.forward(x)?;
            let [q, k, v] = [q_proj, k_proj, v_proj].map(|part| part.forward(&x, None, None));
            concatenate(&[&q?, &k?, &v?], -1)
        };
        let updated = [q_proj, k_proj, v_proj].iter().any(|part| part.update.is_some());
        let qkv = match (&self.qkv_rows, [&q_proj.matrix, &k_proj.matrix, &v_proj.matrix]) {
            _ if updated => apart()?,
            (Some(rows), _) => {
                let options = ops::Linear { bias: biases, ..Default::default() };
                ops::linear(&norm.forward(x)?, rows, options)?
            }
            (None, [Quantized(q), Quantized(k), Quantized(v)])
                if same_format(q, k) && same_format(q, v) =>
            {
                let qkv = ops::quantized_linears(x, &[q, k, v], Some(norm.fused()))?;
                biases.map_or(Ok(qkv.clone()), |biases| qkv.add(biases))?
            }
            _ => apart()?,
        };
        let qkv = match &self.head_norms {
            Some(norms) => self.normed_heads(&qkv, norms)?,
            None => qkv,
        };

        let h = o_proj.forward(&attend(&qkv)?, None, Some(x))?;

        let norm = &self.post_attention_layernorm;
        let plain = |part: &Linear| part.bias.is_none() && part.update.is_none();
        let silu = self.activation == Activation::Silu && plain(gate_proj) && plain(up_proj);
        let inner = match (&gate_proj.matrix, &up_proj.matrix) {
            (Quantized(gate), Quantized(up)) if silu && same_format(gate, up) => {
                ops::quantized_swiglu(&h, gate, up, Some(norm.fused()))?
            }
            matrices => {
                let fused = match matrices {
                    (Plain(gate), Plain(up)) if silu => {
                        let (weight, eps) = norm.fused();
                        gated_linear([&h, gate, up, weight], eps)?
                    }
                    _ => None,
                };
                let apart = || {
                    let x = norm.forward(&h)?;
                    let [gate, up] = [gate_proj, up_proj].map(|part| part.forward(&x, None, None));
                    self.activation.gated(&gate?, &up?)
                };
                fused.map_or_else(apart, Ok)?
            }
        };
        down_proj.forward(&inner, None, Some(&h))
    }

    /// Rotates queries and keys, appends keys and values to the cache, and attends to the whole
    /// cache.
    pub fn attend(
        &self,
        qkv: &Array,
        mask: &AttentionMask,
        cache: &mut LayerCache,
    ) -> Result<Array> {
        match self.absent {
            None => cache.attend(qkv, self.heads, &self.rope, mask),
            Some(absent) => self.attend_beside(absent, qkv, mask, cache),
        }
    }

    /// Normalizes each head's queries and keys in `qkv`, `[batch, time, features]`.
    fn normed_heads(&self, qkv: &Array, [q_norm, k_norm]: &[Norm; 2]) -> Result<Array> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let shape = qkv.shape().to_vec();
        let all = qkv.reshape([shape[0], shape[1], heads + 2 * kv_heads, head_dim])?;
        let queries = q_norm.forward(&all.slice_axis(2, ..heads)?)?;
        let keys = k_norm.forward(&all.slice_axis(2, heads..heads + kv_heads)?)?;
        let values = all.slice_axis(2, heads + kv_heads..)?;
        concatenate(&[&queries, &keys, &values], 2)?.reshape(&shape)
    }

    /// Computes attention if other processes have query heads of this process's key heads. The
    /// order of the additions in attention depends on the number of query heads per key head. Zeros
    /// replace the query heads of other processes, so the order is the same as in a single process.
    fn attend_beside(
        &self,
        (before, after): (i32, i32),
        qkv: &Array,
        mask: &AttentionMask,
        cache: &mut LayerCache,
    ) -> Result<Array> {
        let dropped = cache.dropped(qkv.dim(1)?);
        let AttentionInputs { queries, keys, values } =
            cache.append(qkv, self.heads, &self.rope)?;
        let (batch, heads, time, features) = queries.dims4()?;
        let zeros = |heads: i32| Array::zeros_of([batch, heads, time, features], queries.dtype());
        let queries = concatenate(&[&zeros(before)?, &queries, &zeros(after)?], 1)?;
        let attended = AttentionInputs { queries, keys, values }.attend(mask, dropped)?;
        join_heads(&attended.slice_axis(1, before..before + heads)?)
    }

    /// Concatenates the matrices of the q, k and v projections if they are not packed, and
    /// concatenates their biases. Callers must call this after each change of a matrix.
    pub fn join(&mut self) -> Result<()> {
        let parts = self.projections.first_chunk::<3>().into_iter().flatten();
        let (mut rows, mut biases) = (Vec::new(), Vec::new());
        let dtype = parts.clone().find_map(|part| Some(part.bias.as_ref()?.dtype()));
        for part in parts {
            if let LinearWeight::Plain(plain) = &part.matrix {
                rows.push(plain);
            }
            biases.extend(match (&part.bias, dtype) {
                (Some(bias), _) => Some(bias.clone()),
                (None, Some(dtype)) => Some(Array::zeros_of(&part.matrix.shape()?[..1], dtype)?),
                (None, None) => None,
            });
        }
        let joined = |arrays: &[&Array]| (arrays.len() == 3).then(|| concatenate(arrays, 0));
        let (rows, biases) = (joined(&rows), joined(&biases.iter().collect::<Vec<_>>()));
        (self.qkv_rows, self.qkv_biases) = (rows.transpose()?, biases.transpose()?);
        self.view_joined()
    }

    /// Replaces the matrices of the q, k and v projections by views of `qkv_rows`.
    fn view_joined(&mut self) -> Result<()> {
        let Some(rows) = &self.qkv_rows else { return Ok(()) };
        let mut start = 0;
        for part in self.projections.iter_mut().take(3) {
            let end = start + part.matrix.shape()?[0];
            part.matrix = rows.i(start..end)?.into();
            start = end;
        }
        Ok(())
    }

    /// Moves the matrices into `block`. If the block has too little room, a new block replaces it.
    /// `layers` counts this layer and the layers after it. If layers are small, the new block has
    /// room for several of them. If no block can be allocated, the matrices stay where they are.
    pub fn place(&mut self, block: &mut Option<Block>, layers: usize) -> Result<()> {
        let apart = if self.qkv_rows.is_some() { 3 } else { 0 };
        let parts = self.projections.iter().skip(apart).flat_map(Linear::arrays);
        let bytes = Block::bytes_of(self.qkv_rows.iter().chain(parts));
        if !block.as_ref().is_some_and(|block| block.has_room_for(bytes)) {
            let alike = (BLOCK / bytes.max(1)).clamp(1, layers.max(1));
            *block = Block::with_room_for(bytes * alike)?;
        }
        let Some(block) = block else { return Ok(()) };
        if let Some(rows) = &mut self.qkv_rows {
            *rows = block.place(&[&*rows])?.remove(0);
        }
        for part in self.projections.iter_mut().skip(apart) {
            part.matrix = matrix::placed_in(block, &part.matrix)?;
        }
        self.view_joined()
    }

    /// The norms of the layer, then its projections in the order in which they run.
    pub fn modules(&self) -> impl Iterator<Item = Module<'_>> {
        let norms = [&self.input_layernorm, &self.post_attention_layernorm].into_iter();
        let norms = norms.chain(self.head_norms.iter().flatten()).map(Module::Norm);
        norms.chain(self.projections.iter().map(Module::Linear))
    }

    pub fn norms_mut(&mut self) -> impl Iterator<Item = &mut Norm> {
        let norms = [&mut self.input_layernorm, &mut self.post_attention_layernorm].into_iter();
        norms.chain(self.head_norms.iter_mut().flatten())
    }

    /// All arrays to evaluate before the layer runs.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let joined = self.qkv_rows.iter().chain(&self.qkv_biases);
        joined.chain(self.modules().flat_map(Module::arrays))
    }
}

/// Whether both matrices have the same format, so that one dispatch can multiply by both.
fn same_format(a: &QuantizedWeight, b: &QuantizedWeight) -> bool {
    (a.group_size(), a.bits(), a.mode()) == (b.group_size(), b.bits(), b.mode())
}
