use std::cell::OnceCell;
use std::collections::BTreeMap;

use mlx_primitives::ops::{CpuActivations, LinearWeight, RowOrder, with_row_order};
use mlx_primitives::{Array, Dtype, Error, Result};

use super::adapters::Adapters;
use super::layer::DecoderLayer;
use super::linear::{Linear, Module, Norm};
use super::matrix;
use super::texts::Texts;
use super::update::Update;
use crate::base::{Config, Exchange, Quantization, RopeFrequencies, Share, Weights};
use crate::cache::Cache;

/// The weights and the forward pass of a Llama model. Only the thread that loaded the model can use
/// it, as with a [`Checkpoint`](crate::Checkpoint).
pub struct Llama {
    pub(crate) config: Config,
    /// The type to which [`Weights::converted_to`] converted the floats.
    pub(super) dtype: Option<Dtype>,
    pub(super) embed_tokens: Linear,
    /// The layers of this process.
    pub(super) layers: Vec<DecoderLayer>,
    pub(super) norm: Norm,
    /// `None` if the embedding is also the output projection.
    pub(super) lm_head: Option<Linear>,
    /// The low-rank updates that run beside the weights.
    pub(super) adapters: Adapters,
    /// The sum that `fingerprint` computes over all weights. The cell is empty until the first
    /// call of `fingerprint`.
    pub(super) weights_sum: OnceCell<u64>,
}

impl Llama {
    /// Makes a model from a configuration and weights. Nothing is evaluated.
    ///
    /// # Errors
    ///
    /// Returns an error for missing, extra or misshapen tensors, and names the tensor.
    pub fn new(config: Config, weights: Weights) -> Result<Self> {
        Self::assemble(config, weights, None)
    }

    /// All modules that have weights. Each layer yields its norms, then its projections in the
    /// order in which they run.
    pub(super) fn modules(&self) -> impl Iterator<Item = Module<'_>> {
        let layers = self.layers.iter().flat_map(DecoderLayer::modules);
        let first = [Module::Linear(&self.embed_tokens)].into_iter().chain(layers);
        first.chain([Module::Norm(&self.norm)]).chain(self.lm_head.iter().map(Module::Linear))
    }

    /// All arrays to evaluate before a pass.
    #[doc(hidden)]
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let ends = [&self.embed_tokens].into_iter().chain(&self.lm_head).flat_map(Linear::arrays);
        self.layers.iter().flat_map(DecoderLayer::arrays).chain(ends).chain([&self.norm.weight])
    }

    /// Returns a copy of the model. `f` is called on each projection of the copy and on its
    /// embedding. If `f` changes a matrix, the caller must call [`joined`](Self::joined) next.
    pub(super) fn map(&self, f: &mut dyn FnMut(&mut Linear) -> Result<()>) -> Result<Self> {
        let mut model = Self {
            config: self.config.clone(),
            dtype: self.dtype,
            embed_tokens: self.embed_tokens.clone(),
            layers: self.layers.clone(),
            norm: self.norm.clone(),
            lm_head: self.lm_head.clone(),
            adapters: self.adapters.clone(),
            weights_sum: OnceCell::new(),
        };
        model.projections_mut().try_for_each(f)?;
        Ok(model)
    }

    /// The embedding and all projections.
    fn projections_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let layers = self.layers.iter_mut().flat_map(|layer| &mut layer.projections);
        [&mut self.embed_tokens].into_iter().chain(layers).chain(&mut self.lm_head)
    }

    /// Concatenates the q, k and v matrices of each layer again, after a matrix has changed.
    pub(super) fn joined(mut self) -> Result<Self> {
        self.layers.iter_mut().try_for_each(DecoderLayer::join)?;
        Ok(self)
    }

    /// The configuration that the model was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The type of the activations. It is the type of [`Weights::converted_to`] or, without one,
    /// the result of MLX's type promotion for the types of the embedding and the norms.
    pub fn dtype(&self) -> Dtype {
        let (embedding, norm) = (self.embed_tokens.matrix.dtype(), self.norm.weight.dtype());
        let stored = if embedding == norm { norm } else { Dtype::Float32 };
        self.dtype.unwrap_or(stored)
    }

    /// Returns the model with packed projections and a packed embedding. A matrix is packed only if
    /// its row length is a multiple of the group size and of 32, or of 256 for K-quants.
    ///
    /// # Errors
    ///
    /// Returns an error for a format that MLX does not have.
    ///
    /// ```
    /// use mlx_primitives_llama::{Checkpoint, Quantization};
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let packed = llama.quantized(Quantization::affine(32, 4))?;
    /// assert!(packed.nbytes() * 4 < llama.nbytes());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn quantized(&self, to: Quantization) -> Result<Self> {
        to.check()?;
        let packed = self.map(&mut |linear| {
            linear.matrix = matrix::quantized(&linear.matrix, to)?;
            if let Some(Update { lora, .. }) = linear.update.take() {
                linear.update = Some(Update::new(lora, &linear.matrix, None)?);
            }
            Ok(())
        });
        packed?.joined()
    }

    /// Selects how a CPU rounds activations in products with packed weights.
    ///
    /// ```
    /// use mlx_primitives::ops::CpuActivations;
    /// use mlx_primitives_llama::{Checkpoint, Quantization};
    ///
    /// let llama = Checkpoint::demo()?.llama.quantized(Quantization::affine(32, 4))?;
    /// let llama = llama.with_activations(CpuActivations::Int8);
    /// assert!(llama.nbytes() > 0);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    #[must_use]
    pub fn with_activations(mut self, activations: CpuActivations) -> Self {
        for linear in self.projections_mut() {
            if let LinearWeight::Quantized(packed) = &mut linear.matrix {
                *packed = packed.clone().with_activations(activations);
            }
        }
        self
    }

    /// Whether [`CpuActivations::Int8`] changes the products of any weights of the model, with the
    /// CPU kernels in use.
    pub fn can_round_activations(&self) -> bool {
        self.modules().any(|module| {
            matches!(module, Module::Linear(Linear { matrix: LinearWeight::Quantized(packed), .. })
                if packed.can_round_activations())
        })
    }

    /// The bytes of this process's weights.
    pub fn nbytes(&self) -> usize {
        self.modules().flat_map(Module::arrays).map(Array::nbytes).sum()
    }

    /// The number of this process's parameters. A packed matrix counts with the number of its
    /// unpacked elements.
    pub fn parameters(&self) -> u64 {
        let count = |module: Module| match module {
            Module::Norm(norm) => norm.weight.size() as u64,
            Module::Linear(Linear { rows, inputs, bias, .. }) => {
                let elements = rows.len() as u64 * u64::from(inputs.unsigned_abs());
                elements + bias.as_ref().map_or(0, |bias| bias.size() as u64)
            }
        };
        self.modules().map(count).sum()
    }

    /// The weights of this process: the matrices, the norms and the biases, by the names that they
    /// have in checkpoints, such as `model.norm.weight`. A norm is the factor that multiplies the
    /// normalized values. In Gemma, this factor is the checkpoint's norm plus 1.
    ///
    /// ```
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let weights = Checkpoint::demo()?.llama.weights();
    /// assert_eq!(weights["model.layers.0.mlp.down_proj.weight"].shape()?, [128, 352]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn weights(&self) -> BTreeMap<String, LinearWeight> {
        let mut weights = BTreeMap::new();
        for module in self.modules() {
            let (weight, bias) = match module {
                Module::Norm(norm) => ((&norm.weight).into(), None),
                Module::Linear(linear) => (linear.matrix.clone(), linear.bias.as_ref()),
            };
            let path = module.path();
            weights.insert(format!("{path}.weight"), weight);
            weights.extend(bias.map(|bias| (format!("{path}.bias"), bias.into())));
        }
        weights
    }

    /// The logits `[batch, time, vocab]` of the token after each of `tokens`, integers
    /// `[batch, time]`. The tokens follow the positions in `cache`, and their keys and values are
    /// appended to `cache`.
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is not a matrix of integers, or if `cache` was made for another
    /// model.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let mut cache = llama.new_cache();
    /// let tokens = Array::from_slice(&[423u32, 424], &[1, 2])?;
    /// assert_eq!(llama.forward(&tokens, &mut cache)?.shape(), [1, 2, 512]);
    /// assert_eq!(cache.len(), 2);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn forward(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        self.logits(&self.decoded(tokens, &mut cache.into())?)
    }

    /// Hidden states `[batch, time, hidden]` of `tokens` (integers `[batch, time]`) after the final
    /// norm, without the output projection. The tokens follow the positions in `cache`, and their
    /// keys and values are appended to `cache`.
    ///
    /// [`project`](Self::project) computes the logits of [`forward`](Self::forward) from these
    /// states. [`Embedding`](crate::decode::Embedding) pools the states of each sequence into one
    /// vector.
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is not a matrix of integers, or if `cache` was made for another
    /// model.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let tokens = Array::from_slice(&[423u32, 424, 7], &[1, 3])?;
    /// let hidden = llama.hidden(&tokens, &mut llama.new_cache())?;
    /// assert_eq!(hidden.shape(), [1, 3, llama.config().hidden_size]);
    /// // Logits of the last position alone.
    /// let logits = llama.project(&hidden.slice_axis(1, -1..)?)?;
    /// assert_eq!(logits.shape(), [1, 1, 512]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn hidden(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        self.norm.forward(&self.decoded(tokens, &mut cache.into())?)
    }

    /// Logits `[..., vocab]` of hidden states `[..., hidden]` that [`hidden`](Self::hidden)
    /// returned. The output projection computes the logits. A model without an output projection
    /// uses the embedding instead.
    ///
    /// # Errors
    ///
    /// Returns an error if the last axis of `hidden` is not as long as the model's hidden states,
    /// or its type is not float32, float16 or bfloat16.
    pub fn project(&self, hidden: &Array) -> Result<Array> {
        self.head().forward(hidden, None, None)
    }

    /// The projection that computes the logits.
    fn head(&self) -> &Linear {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// Computes the logits from the output of the last layer.
    pub(super) fn logits(&self, h: &Array) -> Result<Array> {
        self.head().forward(h, Some(&self.norm), None)
    }

    /// Computes the logits of the last rows of sequences. The product adds its terms in
    /// the order [`RowOrder::Tokens`], even if a row is the last row of a prompt.
    pub(super) fn last_logits(&self, h: &Array) -> Result<Array> {
        with_row_order(RowOrder::Tokens, || self.logits(h))
    }

    /// The output of the last layer, `[batch, time, hidden]`.
    pub(super) fn decoded(&self, tokens: &Array, texts: &mut Texts) -> Result<Array> {
        if tokens.ndim() != 2 || !texts.have_layers(self.layers.len()) {
            return Err(Error::argument(
                "llama",
                format_args!(
                    "tokens [batch, time] and this model's cache, got {:?}",
                    tokens.shape()
                ),
            ));
        }
        if self.embed_tokens.part.exchanges() {
            return self.decoded_of_part(tokens, texts);
        }
        self.through_layers(self.embedded(tokens)?, texts)
    }

    /// The input of the first layer, in a process that has the whole model.
    pub(super) fn embedded(&self, tokens: &Array) -> Result<Array> {
        self.scaled(self.embedding_rows(tokens)?)
    }

    /// Does the work of [`decoded`](Self::decoded) in a process that has only a part of the model.
    fn decoded_of_part(&self, tokens: &Array, texts: &mut Texts) -> Result<Array> {
        let (exchange, hidden) = (self.exchange(), self.config.hidden_size);
        let mut embed = || {
            let rows = exchange.embedding(tokens, &mut |ids| self.embedding_rows(ids))?;
            self.scaled(rows)
        };
        let h = exchange.input(tokens, hidden, &mut embed)?;
        let h = self.through_layers(h, texts)?;
        exchange.output(h, &texts.arrays())
    }

    /// This process's part of the model, and its communication with the other processes.
    pub fn exchange(&self) -> &dyn Exchange {
        &**self.share()
    }

    pub(crate) fn share(&self) -> &Share {
        self.embed_tokens.part.share()
    }

    /// Returns the rows of the embedding at the indices `ids`.
    fn embedding_rows(&self, ids: &Array) -> Result<Array> {
        match &self.embed_tokens.matrix {
            LinearWeight::Plain(rows) => rows.take(ids, 0)?.astype(self.dtype()),
            // As in MLX, the rows are first rounded to the type of the matrix.
            packed @ LinearWeight::Quantized(rows) => {
                rows.take_rows(ids, packed.dtype())?.astype(self.dtype())
            }
        }
    }

    /// The input of the first layer, computed from rows of the embedding.
    fn scaled(&self, rows: Array) -> Result<Array> {
        match self.config.kind()?.scales_embedding() {
            true => rows.multiply((self.config.hidden_size as f32).sqrt()),
            false => Ok(rows),
        }
    }

    /// Runs `h` through the layers of this process, and returns the output of the last one.
    pub(super) fn through_layers(&self, mut h: Array, texts: &mut Texts) -> Result<Array> {
        for (index, layer) in self.layers.iter().enumerate() {
            h = layer.forward(&h, |qkv| texts.attend(layer, index, qkv))?;
        }
        Ok(h)
    }

    /// Returns the logits `[batch, 1, vocab]` of the token that follows `tokens`, which are
    /// integers `[batch, time]`. The logits are the last row of the result of
    /// [`forward`](Self::forward), whose other rows are not computed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`forward`](Self::forward).
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let mut cache = llama.new_cache();
    /// let tokens = Array::from_slice(&[423u32, 424, 7], &[1, 3])?;
    /// assert_eq!(llama.forward_last(&tokens, &mut cache)?.shape(), [1, 1, 512]);
    /// assert_eq!(cache.len(), 3);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn forward_last(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        let mut h = self.decoded(tokens, &mut cache.into())?;
        if h.dim(1)? > 1 {
            h = h.slice_axis(1, -1..)?;
        }
        self.last_logits(&h)
    }

    /// The frequencies of the rotary embedding; `None` in a process without layers.
    pub(crate) fn rope(&self) -> Option<&RopeFrequencies> {
        self.layers.first().map(|layer| &layer.rope)
    }

    /// The window lengths of this process's layers; `None` for a layer without a window.
    pub(crate) fn windows(&self) -> impl Iterator<Item = Option<i32>> {
        self.layers.iter().map(|layer| layer.window)
    }
}
