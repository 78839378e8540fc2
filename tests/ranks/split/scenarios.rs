//! Scenarios that print results of a model, such as its tokens or a hash of its logits, with a line
//! for each case. A model on several ranks must print the same lines as in one process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use mlx_primitives::{Array, Dtype};
use mlx_primitives_llama::base::Weights;
use mlx_primitives_llama::{
    Adapters, CacheKind, Checkpoint, Config, Llama, Options, PromptCache, Quantization, Sampling,
};
use mlx_primitives_ranks::Group;
use mlx_primitives_ranks::{Scheme, Split};

use crate::support::Checked;
use crate::support::models::checkpoints as root;

pub(super) const ADAPTERS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");
pub(super) const PROMPTS: [&str; 3] =
    ["Once upon a time", "The dog", "One day, Tom saw a big red bird"];

pub(super) const KINDS: [(&str, CacheKind); 3] = [
    ("plain", CacheKind::Plain),
    ("rotating", CacheKind::Rotating { max_size: 8, keep: 2 }),
    ("packed", CacheKind::Quantized { group_size: 32, bits: 4 }),
];

/// The results of this process. The process is a rank of `group`, or runs alone.
pub struct Results {
    group: Option<Group>,
    pub(super) split: Option<Split>,
    /// The type to which the weights of fixtures are converted.
    pub dtype: Option<Dtype>,
    pub lines: Vec<String>,
}

/// A hash of the bits of an array.
pub(super) fn bits(array: &Array) -> Checked<String> {
    let numbers = array.astype(Dtype::Float32)?.to_vec::<f32>()?;
    assert!(numbers.iter().all(|number| number.is_finite()));
    let add = |hash: u64, number: &f32| {
        (hash ^ u64::from(number.to_bits())).wrapping_mul(0x0100_0000_01b3)
    };
    let hash = numbers.iter().fold(0xcbf2_9ce4_8422_2325, add);
    Ok(format!("{:?} {hash:016x}", array.shape()))
}

pub(super) fn tokens(llama: &Llama, prompt: &[u32], options: &Options) -> Checked<String> {
    let tokens: Vec<u32> = llama.generate(prompt, options)?.collect::<Result<_, _>>()?;
    Ok(format!("{tokens:?}"))
}

/// The path of a checkpoint fixture: a GGUF file or a folder.
pub(super) fn path_of(name: &str) -> PathBuf {
    let folder = root().join(name);
    if name.starts_with("gguf") { folder.join("model.gguf") } else { folder }
}

pub(super) fn prompt(vocabulary: i32) -> Vec<u32> {
    (1..=11).map(|i| i * 37 % vocabulary.unsigned_abs()).collect()
}

impl Results {
    pub fn new(group: Option<&Group>, shares: &[u32], scheme: Scheme) -> Checked<Self> {
        let split = group.map(|group| Split::new(group, shares)).transpose()?;
        let split = split.map(|split| split.with_scheme(scheme));
        Ok(Self { group: group.cloned(), split, dtype: None, lines: Vec::new() })
    }

    pub(super) fn add(&mut self, name: &str, result: Checked<String>) -> Checked {
        self.lines.push(format!("{name}: {}", result?));
        Ok(())
    }

    pub(super) fn checkpoint(&self, path: &Path) -> Checked<Llama> {
        let hold = |config: &Config, weights: Weights| {
            let weights = match self.dtype {
                Some(dtype) => weights.converted_to(dtype)?,
                None => weights,
            };
            match &self.split {
                Some(split) => split.hold(config, weights),
                None => Ok(weights),
            }
        };
        Ok(Llama::load_part(path, hold, |_| {})?)
    }

    pub(super) fn demo(&self) -> Checked<Checkpoint> {
        Ok(match &self.split {
            Some(split) => Checkpoint::demo_part(|config, weights| split.hold(config, weights))?,
            None => Checkpoint::demo()?,
        })
    }

    /// Adds the results of a checkpoint fixture: the logits of a prompt, and the tokens with every
    /// kind of cache.
    pub fn fixture(&mut self, name: &str) -> Checked {
        let llama = self.checkpoint(&path_of(name))?;
        let prompt = prompt(llama.config().vocab_size);
        let row = Array::from_slice(&prompt, [1, prompt.len() as i32])?;
        let logits = llama.forward(&row, &mut llama.new_cache())?;
        self.add(&format!("{name} logits"), bits(&logits))?;
        for (kind, cache) in KINDS {
            let packed = matches!(cache, CacheKind::Quantized { .. });
            if packed && llama.config().head_dim() % 32 != 0 {
                continue;
            }
            let options = Options { max_tokens: 6, cache, ..Options::default() };
            self.add(&format!("{name} {kind}"), tokens(&llama, &prompt, &options))?;
        }
        Ok(())
    }

    /// Loads the demo model and encodes the prompts. Also returns options for a few tokens.
    pub(super) fn demo_texts(&self) -> Checked<(Checkpoint, Vec<Vec<u32>>, Options)> {
        let demo = self.demo()?;
        let texts = PROMPTS.map(|text| demo.tokenizer.encode(text));
        let texts = texts.into_iter().collect::<Result<_, _>>()?;
        Ok((demo, texts, Options { max_tokens: 12, ..Options::default() }))
    }

    /// Adds the tokens of a batch, and the tokens of a generation with a draft model.
    pub(super) fn batch_and_draft(
        &mut self,
        demo: &Checkpoint,
        texts: &[Vec<u32>],
        options: &Options,
        draft: &Llama,
    ) -> Checked {
        let mut steps = Vec::new();
        for step in demo.generate_batch(texts, options)? {
            steps.push(format!("{:?}", step?));
        }
        self.add("batch", Ok(steps.join(" ")))?;
        let drafted = demo.llama.generate(&texts[2], options)?.with_draft(draft, 3)?;
        let drafted: Vec<u32> = drafted.collect::<Result<_, _>>()?;
        self.add("draft", Ok(format!("{drafted:?}")))
    }

    /// Adds the results of the demo model: with adapters, with packed weights, for a batch, with a
    /// draft model, and with random draws.
    pub fn demo_model(&mut self) -> Checked {
        let (demo, texts, options) = self.demo_texts()?;
        let packed = demo.llama.quantized(Quantization::affine(32, 4))?;
        self.add("packed", tokens(&packed, &texts[0], &options))?;
        let sampling = Sampling { temp: 0.9, top_p: 0.95, seed: 3, ..Sampling::default() };
        let drawn = Options { sampling, ..options.clone() };
        self.add("drawn", tokens(&demo.llama, &texts[0], &drawn))?;
        let logprobs = Options { logprobs: Some(3), ..options.clone() };
        let mut generation = demo.llama.generate(&texts[1], &logprobs)?;
        let mut with_logprobs = Vec::new();
        while let Some(token) = generation.next_token()? {
            with_logprobs.push(format!("{token:?}"));
        }
        self.add("log probabilities", Ok(with_logprobs.join(" ")))?;

        let draft = Checkpoint::demo()?.llama.quantized(Quantization::affine(32, 2))?;
        self.batch_and_draft(&demo, &texts, &options, &draft)?;
        let score = demo.llama.score(&texts[2], |_| {})?;
        self.add("perplexity", Ok(format!("{:?}", score.perplexity())))?;
        let vectors = demo.llama.embeddings(&texts, Default::default())?;
        self.add("embeddings", bits(&vectors))?;

        let adapters = Adapters::load(ADAPTERS, &demo.llama)?;
        let merged = demo.llama.merged(&adapters)?;
        self.add("merged", tokens(&merged, &texts[0], &options))?;
        let beside = self.demo()?.llama.adapted(&adapters)?;
        let row = Array::from_slice(&texts[0], [1, texts[0].len() as i32])?;
        self.add("beside", bits(&beside.forward(&row, &mut beside.new_cache())?))?;
        let beside = packed.adapted(&adapters)?;
        self.add("beside packed", tokens(&beside, &texts[0], &options))
    }

    /// Adds the results of a model with random weights. Ranks split the rows of its matrices where
    /// blocks of the kernels begin.
    pub fn random(&mut self) -> Checked {
        let config = || {
            Config::parse(
                r#"{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2,
                    "intermediate_size": 1088, "num_attention_heads": 8, "num_key_value_heads": 2,
                    "rms_norm_eps": 1e-5, "vocab_size": 1001, "tie_word_embeddings": false}"#,
            )
        };
        for (name, dtype, to) in [
            ("random f32", Dtype::Float32, None),
            ("random 8 bits", Dtype::Float16, Some(Quantization::affine(64, 8))),
            ("random 4 bits", Dtype::Bfloat16, Some(Quantization::affine(64, 4))),
        ] {
            let llama = match &self.split {
                Some(split) => split.random(config()?, dtype, to, 5)?,
                None => Llama::random(config()?, dtype, to, 5)?,
            };
            let prompt = prompt(1001);
            let row = Array::from_slice(&prompt, [1, prompt.len() as i32])?;
            self.add(name, bits(&llama.forward(&row, &mut llama.new_cache())?))?;
            let options = Options { max_tokens: 4, ..Options::default() };
            self.add(name, tokens(&llama, &prompt, &options))?;
        }
        Ok(())
    }

    /// Writes a prompt cache of each kind into the folder, and adds a hash of the file.
    pub fn save_caches(&mut self, folder: &Path) -> Checked {
        let demo = self.demo()?;
        for (name, cache) in KINDS {
            let prompt = demo.tokenizer.encode(PROMPTS[2])?;
            let options = Options { max_tokens: 3, cache, ..Options::default() };
            let mut generation = demo.llama.generate(&prompt, &options)?;
            generation.by_ref().try_for_each(|token| token.map(drop))?;
            let path = folder.join(format!("{name}.safetensors"));
            generation.into_prompt_cache()?.save(&path)?;
            if let Some(group) = &self.group {
                // Rank 0 sends this after it has written the file, so the other ranks wait until
                // the file exists.
                group.broadcast(b"written")?;
            }
            let hash = fs::read(&path)?
                .iter()
                .fold(0u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
            self.add(name, Ok(format!("{hash:016x}")))?;
        }
        Ok(())
    }

    /// Continues from the prompt caches in the folder. Adds the generated tokens and the number of
    /// cached ones.
    pub fn load_caches(&mut self, folder: &Path) -> Checked {
        let demo = self.demo()?;
        for (name, cache) in KINDS {
            let path = folder.join(format!("{name}.safetensors"));
            let cached = PromptCache::load(&path, &demo.llama)?;
            let text = format!("{} {}", PROMPTS[2], "in the garden.");
            let prompt = demo.tokenizer.encode(&text)?;
            let options = Options { max_tokens: 6, cache, ..Options::default() };
            let mut generation = demo.llama.generate(&prompt, &options)?.with_cache(cached)?;
            let tokens: Vec<u32> = generation.by_ref().collect::<Result<_, _>>()?;
            let cached = generation.statistics().cached_tokens;
            self.add(name, Ok(format!("{tokens:?} after {cached} cached ones")))?;
        }
        Ok(())
    }

    /// Adds four numbers of bytes: how many this process reads to load a model; the size of this
    /// rank's part; the size of the file; and the growth of the process's peak memory when it loads
    /// the model and runs a token.
    #[cfg(target_os = "linux")]
    pub fn bytes_read(&mut self, folder: &Path) -> Checked {
        let read = || -> Checked<u64> {
            let counts = fs::read_to_string("/proc/self/io")?;
            let line = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
            Ok(line.context("a count of bytes")?.parse()?)
        };
        let memory = |name: &str| -> Checked<u64> {
            let status = fs::read_to_string("/proc/self/status")?;
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.split_whitespace().next());
            Ok(1024 * kilobytes.context("kilobytes")?.parse::<u64>()?)
        };
        Array::full([1], 1.0f32)?.exp()?.eval()?; // MLX takes memory for a GPU at its first use
        let (before, held) = (read()?, memory("VmRSS:")?);
        let llama = self.checkpoint(folder)?;
        let bytes = read()? - before;
        llama.forward(&Array::from_slice(&[1u32], [1, 1])?, &mut llama.new_cache())?.eval()?;
        let grown = memory("VmHWM:")?.saturating_sub(held);
        let whole = fs::metadata(folder.join("model.safetensors"))?.len();
        self.lines.push(format!("{bytes} {} {whole} {grown}", llama.nbytes()));
        Ok(())
    }
}

/// Writes a model of 13 MB.
#[cfg(target_os = "linux")]
pub fn write_model(folder: &Path) -> Checked {
    let config = r#"{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2,
        "intermediate_size": 1536, "num_attention_heads": 8, "rms_norm_eps": 1e-5,
        "vocab_size": 2048, "tie_word_embeddings": true}"#;
    fs::write(folder.join("config.json"), config)?;
    let mut shapes = vec![
        ("model.embed_tokens".to_owned(), vec![2048, 512]),
        ("model.norm".to_owned(), vec![512]),
    ];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[i32]| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), &[512, 512]);
        }
        add("mlp.gate_proj", &[1536, 512]);
        add("mlp.up_proj", &[1536, 512]);
        add("mlp.down_proj", &[512, 1536]);
        add("input_layernorm", &[512]);
        add("post_attention_layernorm", &[512]);
    }
    let arrays = shapes.iter().map(|(name, shape)| {
        Ok((format!("{name}.weight"), Array::zeros_of(shape.as_slice(), Dtype::Float16)?))
    });
    let arrays = arrays.collect::<Checked<Vec<_>>>()?;
    let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
    Ok(mlx_primitives::io::save_safetensors(folder.join("model.safetensors"), arrays, [])?)
}
