//! The scheme `pipeline`, which gives each rank complete layers. Also models that neither this
//! scheme nor the scheme `gather` can split.

use std::path::Path;

use anyhow::ensure;
use mlx_primitives::ops::{Lora, QuantizedMode};
use mlx_primitives::{Array, transforms};
use mlx_primitives_llama::{Adapters, Checkpoint, Llama, Options, Quantization};
use mlx_primitives_ranks::{Scheme, Split};

use super::scenarios::{ADAPTERS, KINDS, PROMPTS, Results, path_of, tokens};
use super::{Ranks, player, same, same_on};
use crate::support::Checked;

impl Results {
    /// Checks the error for a fixture with fewer layers than ranks.
    pub fn one_layer(&self, name: &str) -> Checked {
        let Err(error) = self.checkpoint(&path_of(name)) else {
            ensure!(self.split.is_none(), "{name} has a layer for each rank");
            return Ok(());
        };
        let expected = "expected at most a rank for each of 1 layers, got 2 ranks";
        ensure!(error.to_string().contains(expected), "{name}: {error}");
        Ok(())
    }

    /// Checks the errors of derivatives in the first and in the last layer, only one of which is on
    /// this rank. Adds the tokens that the model generates afterwards.
    pub fn derivatives(&mut self) -> Checked {
        let demo = self.demo()?;
        let llama = &demo.llama;
        let row = Array::from_slice(&[423u32, 17, 99, 240], [1, 4])?;
        let mut errors = Vec::new();
        for layer in [0, 3] {
            let name = format!("model.layers.{layer}.self_attn.q_proj");
            let [outputs, inputs] = llama.projection_shape(&name)?;
            let a = Array::full([2, inputs], 0.1f32)?;
            let b = Array::full([outputs, 2], 0.1f32)?;
            let logits = |a: Array| {
                let update = Lora::new(a, b.clone(), 0.5)?;
                let adapters = [(name.clone(), update)].into_iter().collect();
                llama.forward_adapted(&row, &mut llama.new_cache(), Some(&adapters))
            };
            errors.push(transforms::grad(|a| logits(a)?.mean(..), &a).err());
            errors.push(transforms::jvp(logits, &a, &a).err());
        }
        let hidden = llama.hidden(&row, &mut llama.new_cache())?;
        errors.push(transforms::grad(|h| llama.project(&h)?.mean(..), &hidden).err());
        for error in &errors {
            let text = error.as_ref().map(ToString::to_string);
            let expected = "[split] expected one rank for derivatives, got 2 ranks";
            let expected = self.split.is_some().then(|| expected.to_owned());
            ensure!(text == expected, "{text:?} in place of {expected:?}");
        }
        let options = Options { max_tokens: 12, ..Options::default() };
        let prompt = demo.tokenizer.encode(PROMPTS[0])?;
        self.add("after derivatives", tokens(llama, &prompt, &options))
    }

    /// Adds greedy tokens of the demo model: with every kind of cache, with packed weights, for a
    /// batch, with a draft model, and with adapters.
    pub fn greedy(&mut self) -> Checked {
        let (demo, texts, options) = self.demo_texts()?;
        for (name, cache) in KINDS {
            let options = Options { cache, ..options.clone() };
            self.add(name, tokens(&demo.llama, &texts[0], &options))?;
        }
        let groups = Quantization { group_size: 16, bits: 4, mode: QuantizedMode::Nvfp4 };
        let packed = demo.llama.quantized(groups)?;
        self.add("packed", tokens(&packed, &texts[1], &options))?;
        self.batch_and_draft(&demo, &texts, &options, &Checkpoint::demo()?.llama)?;
        let adapters = Adapters::load(ADAPTERS, &demo.llama)?;
        self.add("merged", tokens(&demo.llama.merged(&adapters)?, &texts[0], &options))?;
        let beside = demo.llama.adapted(&adapters)?;
        self.add("beside", tokens(&beside, &texts[0], &options))
    }
}

#[test(simulated = never)]
fn ranks_draw_the_greedy_tokens_of_one() -> Checked {
    same("greedy", "1,1", Path::new("-"))
}

#[test(simulated = never)]
fn whole_layers_compute_the_bits_of_one() -> Checked {
    same("layers", "pipeline:1,1", Path::new("-"))?;
    same("random", "pipeline:1,1", Path::new("-"))?;
    same("demo", "pipeline:3,1", Path::new("-"))?;
    same("demo", "pipeline:1,2,1", Path::new("-"))
}

/// The ranks send hidden states through MLX's ring, as on a GPU.
#[test(simulated = never)]
fn whole_layers_on_a_ring_compute_the_bits_of_one() -> Checked {
    same_on("demo", "pipeline:1,1,2", Path::new("-"), &[("MLX_PRIMITIVES_TEST_RING", "1")])
}

/// The ranks send hidden states by gathering arrays, as with NCCL.
#[test(simulated = never)]
fn whole_layers_by_gathers_compute_the_bits_of_one() -> Checked {
    let gathers = [("MLX_PRIMITIVES_TEST_RING", "gathers")];
    same_on("demo", "pipeline:1,1,2", Path::new("-"), &gathers)?;
    same_on("demo", "pipeline:2,1", Path::new("-"), &gathers)?;
    same_on("few-fixtures", "1,1", Path::new("-"), &gathers)
}

#[test(simulated = never)]
fn a_prompt_cache_crosses_between_layers_and_rows() -> Checked {
    let folder = tempfile::tempdir()?;
    same("save", "pipeline:1,1", folder.path())?; // this process has saved last
    same("load", "pipeline:2,1,1", folder.path())?;
    let save = format!("split save pipeline:1,1,1 {}", folder.path().display());
    Ranks::start(3, |_| player(&save))?.results()?;
    same("load", "1,1", folder.path())?;
    same("load", "pipeline:1,1", folder.path())
}

/// If a scheme cannot split a model, it returns an error that suggests a solution.
#[test(simulated = never)]
fn what_cannot_be_split_is_refused() -> Checked {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../llama/assets/demo");
    let load = |shares: &[u32], scheme: Scheme, rank: usize| -> Checked<Llama> {
        let split = Split::planned(shares, rank)?.with_scheme(scheme);
        Ok(Llama::load_part_lazily(demo, |config, weights| split.hold(config, weights))?)
    };
    let refused = |shares: &[u32], scheme: Scheme, expected: &str| {
        for rank in 0..shares.len() {
            let error = load(shares, scheme, rank).err().expect("an error").to_string();
            assert!(error.contains(expected), "{error}");
        }
    };
    refused(&[1; 5], Scheme::Pipeline, "at most a rank for each of 4 layers, got 5 ranks");
    refused(&[1; 5], Scheme::Gather, "at most a rank for each of 4 query heads, got 5 ranks");
    Ok(())
}

#[test(simulated = never)]
fn derivatives_are_refused_and_ranks_go_on() -> Checked {
    for shares in ["1,1", "pipeline:1,1"] {
        same("derivatives", shares, Path::new("-"))?;
    }
    Ok(())
}
