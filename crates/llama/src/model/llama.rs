use std::cell::OnceCell;

use mlx_primitives::device::{Device, default_device};
use mlx_primitives::{Array, Dtype, Error, Result, eval};

use super::adapters::Adapters;
use super::layer::DecoderLayer;
use super::linear::{Change, Fusion, Linear, Norm};
use super::matrix::Matrix;
use crate::base::{Axis, Config, Progress, Quantization, Share, ShareOf, Weights, whole};
use crate::cache::{AttentionMask, Cache};

/// A Llama's weights and forward pass. It stays on the thread that loaded it, as a
/// [`Checkpoint`](crate::Checkpoint) does.
pub struct Llama {
    pub(crate) config: Config,
    pub(crate) embed_tokens: Matrix,
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) norm: Norm,
    /// `None` if the embedding is also the output projection.
    pub(crate) lm_head: Option<Linear>,
    pub(crate) share: Share,
    /// The updates beside the weights.
    pub(crate) adapters: Adapters,
    /// The sum over all weights, once it was asked for.
    pub(crate) weights_sum: OnceCell<u64>,
}

impl Llama {
    /// Makes a model of a configuration and weights. Nothing is evaluated.
    ///
    /// # Errors
    ///
    /// Returns an error for missing, extra or misshapen tensors, and names the tensor.
    pub fn new(config: Config, weights: Weights) -> Result<Self> {
        Self::assemble(config, weights, &whole, None)
    }

    /// Makes a model, or this process's part of it, of a configuration and weights. With `progress`,
    /// each layer is evaluated before the next one is read.
    pub(crate) fn assemble(
        mut config: Config,
        weights: Weights,
        share: ShareOf,
        mut progress: Option<&mut dyn FnMut(Progress)>,
    ) -> Result<Self> {
        let share = share(&config)?;
        share.agree("the model", &mut || weights.identity(&config))?;
        let tied = config.tie_word_embeddings.unwrap_or(!weights.contains("lm_head.weight"));
        config.tie_word_embeddings = Some(tied);
        let mut weights = weights.held_by(share.clone());
        weights.keep_own_layers(config.num_hidden_layers);
        let total = weights.nbytes();
        // The CPU reads weights faster that lie together in large pages.
        let place = progress.is_some() && default_device()? == Device::Cpu;
        let mut read = |arrays: &[&Array], left: u64| -> Result<()> {
            let Some(progress) = &mut progress else { return Ok(()) };
            eval(arrays.iter().copied())?;
            progress(Progress { done: total.saturating_sub(left), total });
            Ok(())
        };
        read(&[], total)?;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed_tokens =
            Matrix::load("model.embed_tokens", [vocab, hidden], &config, &mut weights)?;
        let embed_tokens = match tied && place {
            true => embed_tokens.placed_alone()?,
            false => embed_tokens,
        };
        read(&embed_tokens.arrays(), weights.nbytes())?;
        let rope = config.rope_frequencies()?;
        let (mut layers, mut block) = (Vec::new(), None);
        let own = share.layers(config.num_hidden_layers);
        for i in 0..config.num_hidden_layers {
            let drawn = weights.source().is_some();
            if !own.contains(&i) && !drawn {
                continue;
            }
            let path = format!("model.layers.{i}");
            let layer = DecoderLayer::load(&config, &path, &rope, &mut weights)?;
            if !own.contains(&i) {
                continue; // drawn, since the random numbers of the next layers come after its own
            }
            let layer = match place {
                true => layer.placed(&mut block, own.len() - layers.len())?,
                false => layer,
            };
            read(&layer.arrays(), weights.nbytes())?;
            layers.push(layer);
        }
        let norm = Norm::load("model.norm", hidden, &config, &mut weights)?;
        let lm_head = match tied {
            true => None,
            false => Some(Linear::load("lm_head", [vocab, hidden], &config, &mut weights)?),
        };
        let lm_head = match lm_head {
            Some(head) if place => Some(head.placed_alone()?),
            head => head,
        };
        let mut rest = vec![&norm.weight];
        rest.extend(lm_head.iter().flat_map(Linear::arrays));
        read(&rest, 0)?;
        weights.finish(tied)?;
        let llama = Self {
            config,
            embed_tokens,
            layers,
            norm,
            lm_head,
            share,
            adapters: Adapters::default(),
            weights_sum: OnceCell::new(),
        };
        llama.share.learn_types(llama.dtype(), &mut |dtype| llama.stream_after(dtype))?;
        Ok(llama)
    }

    /// The type of the hidden states behind the layers of this process, for the type in front of them.
    fn stream_after(&self, entered: Dtype) -> Result<Dtype> {
        let h = Array::zeros_of([1, 1, self.config.hidden_size], entered)?;
        Ok(self.through_layers(h, &mut self.new_cache())?.dtype())
    }

    /// The configuration that the model was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The type of the activations, to which the embedding and the norms promote.
    pub fn dtype(&self) -> Dtype {
        match (self.embed_tokens.dtype(), self.norm.weight.dtype()) {
            (embedding, norm) if embedding == norm => norm,
            _ => Dtype::Float32,
        }
    }

    /// The model with its projections and its embedding packed, except matrices whose rows are not
    /// whole groups.
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
        for projection in self.projections() {
            let [_, inputs] = projection.whole_shape();
            if matches!(projection.matrix, Matrix::Plain(_)) && to.divides(inputs) {}
        }
        let packed = self.with_projections(&|projection| projection.quantized(to))?;
        Ok(Self { embed_tokens: self.embed_tokens.quantized(to)?, ..packed })
    }

    /// The model with each projection changed by `f`.
    pub(crate) fn with_projections(&self, f: &Change) -> Result<Self> {
        self.with(&|layer| layer.changed(f), f)
    }

    /// The model with each projection changed by `f`, which leaves the matrices as they are.
    pub(crate) fn with_updates(&self, f: &Change) -> Result<Self> {
        let same = self.with(&|layer| layer.updated(f), f)?;
        Ok(Self { weights_sum: self.weights_sum.clone(), ..same })
    }

    fn with(
        &self,
        of_layer: &dyn Fn(&DecoderLayer) -> Result<DecoderLayer>,
        of_head: &Change,
    ) -> Result<Self> {
        Ok(Self {
            config: self.config.clone(),
            embed_tokens: self.embed_tokens.clone(),
            layers: self.layers.iter().map(of_layer).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            lm_head: self.lm_head.as_ref().map(of_head).transpose()?,
            share: self.share.clone(),
            adapters: self.adapters.clone(),
            weights_sum: OnceCell::new(),
        })
    }

    /// The bytes of the weights.
    pub fn nbytes(&self) -> usize {
        let projections: usize = self.projections().map(Linear::nbytes).sum();
        let norms: usize = self.norms().map(Array::nbytes).sum();
        self.embed_tokens.nbytes() + projections + norms
    }

    /// The number of parameters: packed weights count as the numbers that they stand for.
    pub fn parameters(&self) -> u64 {
        let projections: u64 = self.projections().map(Linear::size).sum();
        let norms: u64 = self.norms().map(|norm| norm.size() as u64).sum();
        self.embed_tokens.size() + projections + norms
    }

    /// All projections, in the order in which they run.
    pub(crate) fn projections(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(DecoderLayer::projections).chain(&self.lm_head)
    }

    fn norms(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(DecoderLayer::norms).chain([&self.norm.weight])
    }

    /// The logits `[batch, time, vocab]` of the token after each of `tokens`, integers
    /// `[batch, time]`. The tokens continue the positions in `cache`, to which their keys and
    /// values are appended.
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is no matrix of integers, or if `cache` was made for another
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
        self.logits(&self.decoded(tokens, cache)?, Fusion::norm(&self.norm))
    }

    /// Hidden states `[batch, time, hidden]` of `tokens` (integers `[batch, time]`) after the final
    /// norm, without the output projection. The tokens continue the positions in `cache` and are
    /// appended to it.
    ///
    /// [`project`](Self::project) makes of them the logits that [`forward`](Self::forward) returns.
    /// [`Embedding`](crate::Embedding) pools them to a vector for each text.
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is no matrix of integers, or if `cache` was made for another
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
        self.norm.forward(&self.decoded(tokens, cache)?)
    }

    /// Logits `[..., vocab]` of hidden states `[..., hidden]`, which [`hidden`](Self::hidden)
    /// returned, by the output projection or, where the model has none, the embedding.
    ///
    /// # Errors
    ///
    /// Returns an error if the last axis of `hidden` is not as long as the model's hidden states, or
    /// its type is not float32, float16 or bfloat16.
    pub fn project(&self, hidden: &Array) -> Result<Array> {
        self.logits(hidden, Fusion::default())
    }

    /// The output of the last layer, `[batch, time, hidden]`.
    pub(crate) fn decoded(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        if tokens.ndim() != 2 || cache.layers.len() != self.layers.len() {
            return Err(Error::argument(
                "llama",
                format_args!(
                    "tokens [batch, time] and this model's cache, got {:?}",
                    tokens.shape()
                ),
            ));
        }
        let hidden = self.config.hidden_size;
        let h = self.share.input(tokens, hidden, &mut || self.embed(tokens))?;
        let h = self.through_layers(h, cache)?;
        self.share.output(h, &cache.arrays().collect::<Vec<_>>())
    }

    /// The output of the last layer that this process holds.
    fn through_layers(&self, mut h: Array, cache: &mut Cache) -> Result<Array> {
        let time = h.dim(1)?;
        // Layers of full attention share a mask, and so do layers of sliding attention.
        let mut masks: [Option<AttentionMask>; 2] = [None, None];
        for ((i, layer), cache) in self.numbered_layers().zip(&mut cache.layers) {
            let shared = &mut masks[usize::from(self.config.window_of(i).is_some())];
            let mask = match shared {
                Some(mask) => mask,
                None => shared.insert(cache.mask(time)?),
            };
            h = layer.forward(&h, mask, cache)?;
        }
        Ok(h)
    }

    /// The share of the model that this process holds.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The layers that this process holds, with their numbers.
    pub(crate) fn numbered_layers(&self) -> impl Iterator<Item = (usize, &DecoderLayer)> {
        let first = self.share.layers(self.config.num_hidden_layers).start;
        (first.unsigned_abs() as usize..).zip(&self.layers)
    }

    /// The input of the first layer, `[batch, time, hidden]`.
    pub(crate) fn embed(&self, tokens: &Array) -> Result<Array> {
        let h =
            self.share.embedding(tokens, &mut |ids| self.embed_tokens.rows(ids, self.dtype()))?;
        match self.config.kind()?.scales_embedding() {
            true => h.multiply((self.config.hidden_size as f32).sqrt()),
            false => Ok(h),
        }
    }

    pub(crate) fn logits(&self, h: &Array, fusion: Fusion) -> Result<Array> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(h, fusion),
            None => self.embed_tokens.forward(h, None, fusion),
        }?;
        self.share.gather(logits, Axis::Vocab)
    }
}
