use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use mlx_primitives::ops::CpuActivations;
use mlx_primitives::support::files;
use mlx_primitives::{Array, Error, Result, io};

use super::gguf;
use super::load::in_file;
use super::model_path;
use crate::base::{Config, Progress, TokenIds, Weights};
use crate::model::Llama;
use crate::text::Tokenizer;

/// A model and its tokenizer, as Hugging Face and mlx-lm store them in a directory.
///
/// Only the thread that loaded a checkpoint can use it, since its arrays cannot go to another
/// thread, even in an `Arc` or a `RwLock`. A server starts an [`Engine`](crate::decode::Engine), a
/// thread that loads the checkpoint and generates text for all other threads.
pub struct Checkpoint {
    /// The model.
    pub llama: Llama,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The tokens at which generation stops: the `eos_token` of the tokenizer, and the
    /// `eos_token_id` of `generation_config.json` or, without such an entry, of `config.json`.
    pub eos: Vec<u32>,
}

#[derive(Deserialize, Default)]
struct GenerationConfig {
    #[serde(default)]
    eos_token_id: TokenIds,
}

/// The entry of `config.json` that gives the size of the model's vocabulary.
#[derive(Deserialize)]
struct Rows {
    vocab_size: u32,
}

impl Checkpoint {
    /// Loads a directory or a `.gguf` file. A directory has `config.json`, `tokenizer.json`,
    /// `model*.safetensors` and, optionally, `generation_config.json` and the other files that
    /// [`Tokenizer::load`] reads. The tokenizer of a GGUF file is the `tokenizer.json` in its
    /// folder or, if there is none, the tokenizer that the GGUF file describes. For a GGUF file,
    /// the list of end tokens combines the tokens in the GGUF file with the tokens of a
    /// `generation_config.json` in the same folder.
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`Llama::load`] or [`Tokenizer::parse`] refuses. The error
    /// names the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, |_| {})
    }

    /// Loads a checkpoint like [`load`](Self::load), and calls `progress` as [`Llama::load_with`]
    /// does.
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses.
    pub fn load_with(path: impl AsRef<Path>, progress: impl FnMut(Progress)) -> Result<Self> {
        Self::load_part(path, |_, weights| Ok(weights), progress)
    }

    /// Loads a checkpoint with only this process's part of the model. `hold` selects the part as in
    /// [`Llama::load_part`]; `progress` is called as in [`load_with`](Self::load_with).
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses, or if `hold` returns an error.
    pub fn load_part(
        path: impl AsRef<Path>,
        hold: impl FnOnce(&Config, Weights) -> Result<Weights>,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        let path = path.as_ref();
        model_path::check(path)?;
        let directory = gguf::folder(path);
        let tokenizer = match gguf::is_gguf(path) {
            true if !directory.join("tokenizer.json").exists() => {
                Tokenizer::made_by(|| gguf::tokenizer(path)).map_err(|e| in_file(path, e))?
            }
            gguf => {
                let mut rows = None;
                if !gguf {
                    // `config.json` is read first, so that the error for an empty directory names
                    // this file.
                    let config = files::read_to_string(&directory.join("config.json"))?;
                    rows = serde_json::from_str(&config).ok().map(|Rows { vocab_size }| vocab_size);
                    model_path::check_tokenizer(path)?;
                }
                Tokenizer::load_for(directory, rows)?
            }
        };
        let llama = Llama::load_part(path, hold, progress)?;
        let file = directory.join("generation_config.json");
        let generation = files::read_if_present(&file)?;
        let mut eos =
            eos_tokens(&llama.config, generation.as_deref()).map_err(|e| in_file(&file, e))?;
        if gguf::is_gguf(path) {
            let own = llama.config.eos_token_id.to_vec();
            eos.extend(own.into_iter().filter(|id| !eos.contains(id)).collect::<Vec<_>>());
        }
        eos.extend(tokenizer.eos().filter(|own| !eos.contains(own)));
        Ok(Self { llama, tokenizer, eos })
    }

    /// Returns the checkpoint with a model that rounds activations as [`Llama::with_activations`]
    /// describes.
    #[must_use]
    pub fn with_activations(self, activations: CpuActivations) -> Self {
        Self { llama: self.llama.with_activations(activations), ..self }
    }

    /// The small model that comes with the crate, which writes stories in simple words.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot hold the weights, for example because memory is short.
    pub fn demo() -> Result<Self> {
        Self::demo_part(|_, weights| Ok(weights))
    }

    /// The small model that comes with the crate, with the weights that `hold` returns. `hold` can
    /// select this process's part or convert the weights, as in [`Llama::load_part`].
    ///
    /// # Errors
    ///
    /// Returns an error if [`demo`](Self::demo) would return one, or if `hold` returns one.
    pub fn demo_part(hold: impl FnOnce(&Config, Weights) -> Result<Weights>) -> Result<Self> {
        let config = Config::parse(include_str!("../../assets/demo/config.json"))?;
        let tokenizer = Tokenizer::parse(include_bytes!("../../assets/demo/tokenizer.json"))?;
        let generation = include_str!("../../assets/demo/generation_config.json");
        let eos = eos_tokens(&config, Some(generation))?;
        let weights = include_bytes!("../../assets/demo/model.safetensors");
        let arrays: HashMap<String, Array> = io::load_safetensors_bytes(weights)?.arrays;
        let weights = hold(&config, Weights::new(arrays))?;
        let llama = Llama::assemble(config, weights, None)?;
        Ok(Self { llama, tokenizer, eos })
    }
}

fn eos_tokens(config: &Config, generation: Option<&str>) -> Result<Vec<u32>> {
    let generation: GenerationConfig = match generation {
        Some(json) => serde_json::from_str(json).map_err(|e| {
            Error::argument("generation_config", format_args!("a JSON object, got {e}"))
        })?,
        None => GenerationConfig::default(),
    };
    let own = generation.eos_token_id.to_vec();
    Ok(if own.is_empty() { config.eos_token_id.to_vec() } else { own })
}
