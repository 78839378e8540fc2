//! The forward pass in training. The trained weights and low-rank updates are its arguments, so
//! that MLX can differentiate with respect to them.

use std::collections::BTreeMap;

use mlx_primitives::ops::{self, CrossEntropy, KvLayout, LinearCrossEntropy, LinearWeight, Lora};
use mlx_primitives::support::Fnv;
use mlx_primitives::{Array, Dtype, Error, Result, random, transforms};

use super::layer::DecoderLayer;
use super::linear::Linear;
use super::llama::Llama;
use super::update::Update;
use crate::base::Heads;
use crate::cache::{AttentionMask, join_heads};

/// The maximum number of logits that exist at a time, unless the output projection has a low-rank
/// update. More logits are computed in chunks, and computed again in the backward pass.
pub(crate) const LOGITS: usize = 1 << 24;

type Arrays = BTreeMap<String, Array>;

/// The trained arrays, which replace a model's weights and low-rank updates.
#[derive(Clone, Default)]
pub(crate) struct Trained {
    /// Trained arrays by their names. A projection P with an update has `P.lora_a`
    /// `[rank, inputs]`, `P.lora_b` `[outputs, rank]` and, in DoRA, `P.m` `[outputs]`. A trained
    /// weight has the same name as in checkpoints.
    pub arrays: Arrays,
    /// The factor that multiplies the low-rank updates.
    pub scale: f32,
    /// For each projection P with a `P.m`, the sum of squares of each row of its matrix. If an
    /// entry is missing, the forward pass computes it.
    pub squares: Arrays,
    /// The fraction of each update's inputs that dropout sets to zero, and the random seed for the
    /// choice of these inputs.
    pub dropout: Option<(f32, u64)>,
}

impl Llama {
    /// Returns the model with these arrays in place of its weights and updates. The arrays, except
    /// DoRA's `P.m`, are converted to the types of the model.
    pub(crate) fn trained(&self, trained: &Trained) -> Result<Self> {
        let mut model = self.map(&mut |_| Ok(()))?;
        let dtype = self.dtype();
        for layer in &mut model.layers {
            *layer = layer.trained(trained, dtype)?;
        }
        if let Some(head) = &mut model.lm_head {
            head.train(trained, dtype)?;
        }
        Ok(model)
    }

    /// Whether the matrix that computes the logits is not packed.
    pub(crate) fn plain_head(&self) -> bool {
        let head = self.lm_head.as_ref().unwrap_or(&self.embed_tokens);
        matches!(head.matrix, LinearWeight::Plain(_))
    }

    /// Computes the loss of each target, `[rows, length]`. The loss is 0 where the target is -1.
    /// With `recompute`, the backward pass runs each layer again instead of keeping its results.
    pub(crate) fn losses(
        &self,
        trained: &Trained,
        [inputs, targets]: [&Array; 2],
        recompute: bool,
    ) -> Result<Array> {
        if !self.share().is_whole() {
            return Err(Error::argument("training", "a model that one process holds"));
        }
        let h = self.through_trained(trained, inputs, recompute)?;
        let mut head = self.lm_head.as_ref().unwrap_or(&self.embed_tokens).clone();
        head.train(trained, self.dtype())?;
        let cross_entropy = CrossEntropy { ignore_index: Some(-1), ..Default::default() };
        if head.update.is_none() && inputs.size().saturating_mul(self.vocab()) > LOGITS {
            let h = self.norm.forward(&h)?;
            let bias = head.bias.as_ref();
            let options = LinearCrossEntropy { bias, cross_entropy, ..Default::default() };
            return ops::linear_cross_entropy(&h, head.matrix, targets, options);
        }
        let logits = head.forward(&h, Some(&self.norm), None)?;
        ops::cross_entropy(&logits, targets, cross_entropy)
    }

    /// Computes the output of the last layer. With `recompute`, the backward pass runs each layer
    /// again.
    fn through_trained(&self, trained: &Trained, tokens: &Array, recompute: bool) -> Result<Array> {
        if tokens.ndim() != 2 {
            let got = tokens.shape();
            return Err(Error::argument(
                "training",
                format_args!("tokens [batch, time], got {got:?}"),
            ));
        }
        let mut h = self.embedded(tokens)?;
        let caches = self.new_cache().layers;
        for (at, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            let own = format!("model.layers.{at}.");
            let own = trained.arrays.iter().filter(|(name, _)| name.starts_with(&own));
            let (names, own): (Vec<String>, Vec<Array>) =
                own.map(|(name, array)| (name.clone(), array.clone())).unzip();
            let (layer, dtype) = (layer.clone(), self.dtype());
            let rest = Trained { arrays: Arrays::new(), ..trained.clone() };
            let mask: AttentionMask = cache.mask(h.dim(1)?)?;
            let run = move |mut inputs: Vec<Array>| {
                let h = inputs.pop();
                let h = h.ok_or_else(|| Error::argument("training", "hidden states"))?;
                let arrays = names.iter().cloned().zip(inputs).collect();
                let layer = layer.trained(&Trained { arrays, ..rest.clone() }, dtype)?;
                layer.forward(&h, |qkv| layer.attend_to_itself(qkv, &mask))
            };
            let inputs: Vec<Array> = own.into_iter().chain([h]).collect();
            h = match recompute {
                true => transforms::checkpoint(run, &inputs)?,
                false => run(inputs)?,
            };
        }
        Ok(h)
    }
}

impl DecoderLayer {
    /// Computes the attention of complete sequences, without a cache. The backward pass of this
    /// function needs fewer dispatches than the backward pass of the ops that append to a cache.
    fn attend_to_itself(&self, qkv: &Array, mask: &AttentionMask) -> Result<Array> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let layout = KvLayout { heads, kv_heads, head_dim, capacity: 0 };
        let rotation = self.rope.rotation(0, qkv.dim(1)?);
        let [queries, keys, values] = ops::rope_heads(qkv, layout, rotation)?;
        join_heads(&ops::attention(&queries, &keys, &values, mask.rules())?)
    }

    fn trained(&self, trained: &Trained, dtype: Dtype) -> Result<Self> {
        let mut layer = self.clone();
        for norm in layer.norms_mut() {
            if let Some(weight) = trained.arrays.get(&format!("{}.weight", norm.path)) {
                norm.weight = weight.astype(norm.weight.dtype())?;
            }
        }
        let mut joined = false;
        for (at, projection) in layer.projections.iter_mut().enumerate() {
            joined |= projection.train(trained, dtype)? && at < 3;
        }
        if joined {
            layer.join()?;
        }
        Ok(layer)
    }
}

impl Linear {
    /// Replaces arrays of this projection by the trained arrays. Returns whether its matrix or its
    /// bias is trained.
    fn train(&mut self, trained: &Trained, dtype: Dtype) -> Result<bool> {
        let of = |part: &str| trained.arrays.get(&format!("{}.{part}", self.path));
        let update = of("lora_a").zip(of("lora_b"));
        let (weight, bias) = (of("weight"), of("bias"));
        if let Some((a, b)) = update {
            let mut lora = Lora::new(a.astype(dtype)?, b.astype(dtype)?, trained.scale)?;
            if let Some(magnitude) = of("m") {
                lora = lora.with_magnitude(magnitude.clone())?;
            }
            let mut update = Update::new(lora, &self.matrix, trained.squares.get(&self.path))?;
            if let Some((rate, seed)) = trained.dropout {
                let mut hash = Fnv::default();
                hash.add(format!("{seed} {}", self.path).as_bytes());
                update.dropout = Some((rate, random::key(hash.0)?));
            }
            self.update = Some(update);
        }
        if let Some(weight) = weight {
            self.matrix = LinearWeight::Plain(weight.astype(self.matrix.dtype())?);
        }
        if let (Some(new), Some(bias)) = (bias, &mut self.bias) {
            *bias = new.astype(bias.dtype())?;
        }
        Ok(weight.is_some() || bias.is_some())
    }
}
