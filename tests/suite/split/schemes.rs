//! The schemes beside the exact one: sums of columns, and whole layers on each rank.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use half::f16;
use mlx_primitives::llama::{
    Adapters, Checkpoint, Config, Llama, Options, Quantization, Scheme, Split,
};
use mlx_primitives::ops::{Lora, QuantizedMode};
use mlx_primitives::{Array, Dtype, transforms};

use super::scenarios::{ADAPTERS, KINDS, PROMPTS, Results, bits, path_of, prompt, tokens};
use super::{Ranks, player, same, same_on};
use crate::support::Checked;

/// Fixtures whose heads, features and groups divide by two, and half of the last place of their type.
const DIVISIBLE: [(&str, f32); 7] = [
    ("llama-f32-biases", 6e-8),
    ("llama-f32-sliding", 6e-8),
    ("llama-f16-mha-untied", 4.9e-4),
    ("llama-bf16", 3.9e-3),
    ("llama-q8-g64-sharded", 4.9e-4),
    ("gguf-f16", 4.9e-4),
    (BLOCKS, 4.9e-4),
];

/// A model that [`write_blocks`] writes.
const BLOCKS: &str = "blocks";

impl Results {
    /// The logits of this rank's part of a model, near those of the whole. The ranks print the same
    /// bits.
    pub fn close_to_one(&mut self) -> Checked {
        let folder = tempfile::tempdir()?;
        for (name, unit) in DIVISIBLE {
            let path = if name == BLOCKS { write_blocks(folder.path())? } else { path_of(name) };
            let llama = self.checkpoint(&path)?;
            let prompt = prompt(llama.config().vocab_size);
            let row = Array::from_slice(&prompt, [1, prompt.len() as i32])?;
            let logits = |llama: &Llama| llama.forward(&row, &mut llama.new_cache());
            let (own, whole) = (logits(&llama)?, logits(&Llama::load(&path)?)?);
            self.add(name, bits(&own))?;
            let numbers = |x: &Array| x.astype(Dtype::Float32)?.to_vec::<f32>();
            let (own, whole) = (numbers(&own)?, numbers(&whole)?);
            let largest = whole.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let apart = own.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Each of two sums in a layer is rounded elsewhere: the product of a rank and the sum, by half
            // a unit each, and a sum of k terms of float32 in another order, by about the root of k.
            // Norms keep relative errors, and the layers after carry them on by a factor near one.
            // Twice that for the rounding of all that is computed of them.
            let config = llama.config();
            let order = (config.intermediate_size as f32).sqrt() * DIVISIBLE[0].1;
            let sums = (2 * config.num_hidden_layers) as f32;
            let bound = 2.0 * sums * (2.0 * unit + order) * largest;
            ensure!(apart <= bound, "{name}: {apart} apart, at most {bound}");
            ensure!(apart > 0.0 || name.contains("16"), "{name}: nothing was summed");
        }
        Ok(())
    }

    /// The error of a fixture with fewer layers than ranks.
    pub fn one_layer(&self, name: &str) -> Checked {
        let Err(error) = self.checkpoint(&path_of(name)) else {
            ensure!(self.split.is_none(), "{name} has a layer for each rank");
            return Ok(());
        };
        let expected = "expected at most a rank for each of 1 layers, got 2 ranks";
        ensure!(error.to_string().contains(expected), "{name}: {error}");
        Ok(())
    }

    /// The errors of derivatives on a rank, whether it holds the layer or not; its tokens after them.
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

    /// The greedy tokens of the demo model, with every kind of cache, in groups that divide, with
    /// adapters, for a batch and with a draft.
    pub fn greedy(&mut self) -> Checked {
        let demo = self.demo()?;
        let texts = PROMPTS.map(|text| demo.tokenizer.encode(text));
        let texts = texts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let options = Options { max_tokens: 12, ..Options::default() };
        for (name, cache) in KINDS {
            let options = Options { cache, ..options.clone() };
            self.add(name, tokens(&demo.llama, &texts[0], &options))?;
        }
        let groups = Quantization { group_size: 16, bits: 4, mode: QuantizedMode::Nvfp4 };
        let packed = demo.llama.quantized(groups)?;
        self.add("packed", tokens(&packed, &texts[1], &options))?;
        let mut steps = Vec::new();
        for step in demo.generate_batch(&texts, &options)? {
            steps.push(format!("{:?}", step?));
        }
        self.add("batch", Ok(steps.join(" ")))?;
        let draft = Checkpoint::demo()?.llama;
        let drafted = demo.llama.generate(&texts[2], &options)?.with_draft(&draft, 3)?;
        let drafted: Vec<u32> = drafted.collect::<Result<_, _>>()?;
        self.add("draft", Ok(format!("{drafted:?}")))?;
        let adapters = Adapters::load(ADAPTERS, &demo.llama)?;
        self.add("merged", tokens(&demo.llama.merged(&adapters)?, &texts[0], &options))?;
        let beside = demo.llama.adapted(&adapters)?;
        self.add("beside", tokens(&beside, &texts[0], &options))
    }
}

/// Writes a GGUF model of two layers with 128 features, packed in blocks of 32 weights (Q8_0). The down
/// projection of the second layer has blocks of 256 (Q6_K), as wide as a row, so that ranks share them.
fn write_blocks(folder: &Path) -> Checked<PathBuf> {
    const BLOCK: [(u32, u64, usize); 2] = [(8, 32, 34), (14, 256, 210)]; // type, weights, bytes
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![128, 64], Some(0))];
    let norm = |name: String| (name, vec![128], None);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            tensors.push((name(part), vec![128, 128], Some(0)));
        }
        for part in ["ffn_gate", "ffn_up"] {
            tensors.push((name(part), vec![128, 256], Some(0)));
        }
        tensors.push((name("ffn_down"), vec![256, 128], Some(layer)));
        tensors.extend(["attn_norm", "ffn_norm"].map(|part| norm(name(part))));
    }
    tensors.push(norm("output_norm.weight".to_owned()));

    let mut file = b"GGUF".to_vec();
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(7u64.to_le_bytes());
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "llama");
    for (key, value) in [
        ("embedding_length", 128u32),
        ("block_count", 2),
        ("feed_forward_length", 256),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
    ] {
        text(&mut file, &format!("llama.{key}"));
        file.extend(4u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    text(&mut file, "llama.attention.layer_norm_rms_epsilon");
    file.extend(6u32.to_le_bytes());
    file.extend(1e-5f32.to_le_bytes());

    let mut random = fastrand::Rng::with_seed(7);
    let mut data = Vec::new();
    for (name, extents, block) in tensors {
        text(&mut file, &name);
        file.extend((extents.len() as u32).to_le_bytes());
        extents.iter().for_each(|extent: &u64| file.extend(extent.to_le_bytes()));
        let (kind, weights, bytes) = block.map_or((0, 1, 4), |block: usize| BLOCK[block]);
        file.extend(kind.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        for _ in 0..extents.iter().product::<u64>() / weights {
            let start = data.len();
            data.extend((0..bytes).map(|_| random.u8(..)));
            match block {
                Some(0) => {
                    data[start..start + 2].copy_from_slice(&f16::from_f32(1e-3).to_le_bytes())
                }
                Some(_) => data[start + 208..].copy_from_slice(&f16::from_f32(2e-5).to_le_bytes()),
                None => data[start..].copy_from_slice(&1f32.to_le_bytes()),
            }
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    let path = folder.join("model.gguf");
    fs::write(&path, file)?;
    Ok(path)
}

#[test]
fn sums_are_near_the_logits_of_one() -> Checked {
    for shares in ["reduce:1,1", "reduce:2,2"] {
        let role = format!("split close {shares} -");
        let results = Ranks::start(2, |_| player(&role))?.results()?;
        let bits = |text: &str| {
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&results[0]), bits(&results[1]));
        assert_eq!(bits(&results[0]).len(), DIVISIBLE.len());
    }
    Ok(())
}

#[test]
fn sums_draw_the_greedy_tokens_of_one() -> Checked {
    same("greedy", "reduce:1,1", Path::new("-"))?;
    let ring = [("MLX_PRIMITIVES_TEST_RING", "1")];
    same_on("greedy", "reduce:1,1", Path::new("-"), &ring)
}

#[test]
fn sums_read_and_write_prompt_caches_of_other_schemes() -> Checked {
    let folder = tempfile::tempdir()?;
    Results::new(None, &[], Scheme::Gather)?.save_caches(folder.path())?;
    same("load", "reduce:1,1", folder.path())?;
    let save = format!("split save reduce:1,1 {}", folder.path().display());
    Ranks::start(2, |_| player(&save))?.results()?;
    same("load", "1,1", folder.path())
}

#[test]
fn whole_layers_compute_the_bits_of_one() -> Checked {
    same("layers", "pipeline:1,1", Path::new("-"))?;
    same("random", "pipeline:1,1", Path::new("-"))?;
    same("demo", "pipeline:3,1", Path::new("-"))?;
    same("demo", "pipeline:1,2,1", Path::new("-"))
}

/// On a GPU, hidden states take MLX's ring.
#[test]
fn whole_layers_on_a_ring_compute_the_bits_of_one() -> Checked {
    same_on("demo", "pipeline:1,1,2", Path::new("-"), &[("MLX_PRIMITIVES_TEST_RING", "1")])
}

#[test]
fn a_prompt_cache_crosses_between_layers_and_rows() -> Checked {
    let folder = tempfile::tempdir()?;
    same("save", "pipeline:1,1", folder.path())?; // this process has saved last
    same("load", "pipeline:2,1,1", folder.path())?;
    let save = format!("split save pipeline:1,1,1 {}", folder.path().display());
    Ranks::start(3, |_| player(&save))?.results()?;
    same("load", "1,1", folder.path())?;
    same("load", "pipeline:1,1", folder.path())
}

/// Schemes refuse what they cannot split, and say what to do.
#[test]
fn what_cannot_be_split_is_refused() -> Checked {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    let load = |shares: &[u32], scheme: Scheme, rank: usize| -> Checked<Llama> {
        Ok(Split::planned(shares, rank)?.with_scheme(scheme).load_lazily(demo)?)
    };
    let refused = |shares: &[u32], scheme: Scheme, expected: &str| {
        for rank in 0..shares.len() {
            let error = load(shares, scheme, rank).err().expect("an error").to_string();
            assert!(error.contains(expected), "{error}");
        }
    };
    let keys = "key heads that divide in the ratio [1, 1, 1] for the scheme reduce, got 2: choose \
                other shares";
    refused(&[1, 1, 1], Scheme::Reduce, keys);
    refused(&[3, 1], Scheme::Reduce, "key heads that divide in the ratio [3, 1]");
    refused(&[1; 5], Scheme::Pipeline, "at most a rank for each of 4 layers, got 5 ranks");
    refused(&[1; 5], Scheme::Gather, "at most a rank for each of 4 query heads, got 5 ranks");
    for rank in 0..2 {
        let half = load(&[1, 1], Scheme::Reduce, rank)?;
        let error =
            half.quantized(Quantization::affine(32, 4)).err().expect("an error").to_string();
        let expected = "whole groups of 32 packed columns of model.layers.0.mlp.down_proj on each \
                        rank, got columns 0 to 176 on rank 0";
        assert!(error.contains(expected) && error.contains("the scheme gather"), "{error}");
    }
    // Packed in the file, and of random weights.
    let config = || {
        Config::parse(
            r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
                "intermediate_size": 96, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
                "vocab_size": 64}"#,
        )
    };
    let split = Split::planned(&[1, 1], 1)?.with_scheme(Scheme::Reduce);
    let packed = Some(Quantization::affine(32, 4));
    let error = split.random(config()?, Dtype::Float32, packed, 0).err().expect("an error");
    assert!(error.to_string().contains("got columns 0 to 48 on rank 0"), "{error}");
    Ok(())
}

#[test]
fn derivatives_are_refused_and_ranks_go_on() -> Checked {
    for shares in ["1,1", "reduce:1,1", "pipeline:1,1"] {
        same("derivatives", shares, Path::new("-"))?;
    }
    Ok(())
}
