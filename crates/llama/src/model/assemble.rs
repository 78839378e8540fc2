use std::cell::OnceCell;

use mlx_primitives::device::{Device, default_device};
use mlx_primitives::{Array, Dtype, Result, eval, memory};

use super::adapters::Adapters;
use super::layer::DecoderLayer;
use super::linear::{Linear, Norm};
use super::llama::Llama;
use super::matrix;
use crate::base::{Config, Progress, Weights};

impl Llama {
    /// Makes a model, or this process's part of a model, from a configuration and weights. With
    /// `progress`, each layer is evaluated before the next one is read.
    pub(crate) fn assemble(
        mut config: Config,
        mut weights: Weights,
        mut progress: Option<&mut dyn FnMut(Progress)>,
    ) -> Result<Self> {
        let share = weights.share().clone();
        share.agree("the model", &mut || weights.identity(&config))?;
        let tied = config.tie_word_embeddings.unwrap_or(!weights.contains("lm_head.weight"));
        config.tie_word_embeddings = Some(tied);
        weights.keep_own_layers(config.num_hidden_layers);
        let (total, dtype) = (weights.nbytes(), weights.dtype());
        // A CPU reads weights faster if they lie together in large pages of memory.
        let place = progress.is_some() && default_device()? == Device::Cpu;
        let mut read = |arrays: Vec<&Array>, left: u64| -> Result<()> {
            let Some(progress) = &mut progress else { return Ok(()) };
            eval(arrays)?;
            progress(Progress { done: total.saturating_sub(left), total });
            Ok(())
        };
        read(Vec::new(), total)?;
        let shape = [config.vocab_size, config.hidden_size];
        let mut embed_tokens = Linear::load("model.embed_tokens", shape, &config, &mut weights)?;
        if tied && place {
            embed_tokens.matrix = matrix::placed(&embed_tokens.matrix)?;
        }
        read(embed_tokens.arrays().collect(), weights.nbytes())?;
        let rope = config.rope_frequencies()?;
        let (mut layers, mut block) = (Vec::new(), None);
        let own = share.layers(config.num_hidden_layers);
        for i in 0..config.num_hidden_layers {
            let drawn = weights.source().is_some();
            if !own.contains(&i) && !drawn {
                continue;
            }
            let mut layer = DecoderLayer::load(&config, i, &rope, &mut weights)?;
            if !own.contains(&i) {
                continue; // drawn only because the random numbers of later layers follow
            }
            if place {
                layer.place(&mut block, own.len() - layers.len())?;
            }
            read(layer.arrays().collect(), weights.nbytes())?;
            layers.push(layer);
        }
        let norm = Norm::load("model.norm", config.hidden_size, &config, &mut weights)?;
        let mut lm_head = match tied {
            true => None,
            false => Some(Linear::load("lm_head", shape, &config, &mut weights)?),
        };
        for head in lm_head.iter_mut().filter(|_| place) {
            head.matrix = matrix::placed(&head.matrix)?;
        }
        let head = lm_head.iter().flat_map(Linear::arrays);
        read([&norm.weight].into_iter().chain(head).collect(), 0)?;
        weights.finish(tied)?;
        let llama = Self {
            config,
            dtype,
            embed_tokens,
            layers,
            norm,
            lm_head,
            adapters: Adapters::default(),
            weights_sum: OnceCell::new(),
        };
        memory::prefetch(llama.arrays())?;
        share.learn_types(llama.dtype(), &mut |dtype| llama.dtype_after(dtype))?;
        Ok(llama)
    }

    /// Returns the type of the last layer's output in this process, if the first layer's input has
    /// the type `dtype`.
    fn dtype_after(&self, dtype: Dtype) -> Result<Dtype> {
        let h = Array::zeros_of([1, 1, self.config.hidden_size], dtype)?;
        Ok(self.through_layers(h, &mut (&mut self.new_cache()).into())?.dtype())
    }
}
