use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::io;

use super::config::{Config, TokenIds};
use super::generate::{Generation, Options};
use super::model::Llama;
use super::tokenizer::Tokenizer;
use super::weights::Weights;

/// A model and its tokenizer, as a directory of Hugging Face or mlx-lm holds them.
pub struct Checkpoint {
    /// The model.
    pub llama: Llama,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

#[derive(Deserialize, Default)]
struct GenerationConfig {
    #[serde(default)]
    eos_token_id: TokenIds,
}

impl Checkpoint {
    /// Loads `config.json`, `tokenizer.json`, `model*.safetensors` and, if there,
    /// `generation_config.json`. Errors name the file.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(|e| Error::file(&path, e))
        };
        let config = Config::parse(&read("config.json")?).map_err(|e| in_file(directory, e))?;
        let tokenizer = Tokenizer::parse(read("tokenizer.json")?.as_bytes())
            .map_err(|e| in_file(directory, e))?;
        let generation = match directory.join("generation_config.json").exists() {
            true => Some(read("generation_config.json")?),
            false => None,
        };
        let eos = eos_tokens(&config, generation.as_deref()).map_err(|e| in_file(directory, e))?;
        let mut arrays = HashMap::new();
        for file in safetensors_files(directory)? {
            arrays.extend(io::load_safetensors(file)?.arrays);
        }
        let llama = Llama::new(config, Weights::new(arrays)).map_err(|e| in_file(directory, e))?;
        Ok(Self { llama, tokenizer, eos })
    }

    /// The small model that comes with the crate: stories in plain words.
    pub fn demo() -> Result<Self> {
        let config = Config::parse(include_str!("../../assets/demo/config.json"))?;
        let tokenizer = Tokenizer::parse(include_bytes!("../../assets/demo/tokenizer.json"))?;
        let generation = include_str!("../../assets/demo/generation_config.json");
        let eos = eos_tokens(&config, Some(generation))?;
        let weights = include_bytes!("../../assets/demo/model.safetensors");
        let arrays: HashMap<String, Array> = io::load_safetensors_bytes(weights)?.arrays;
        Ok(Self { llama: Llama::new(config, Weights::new(arrays))?, tokenizer, eos })
    }

    /// Runs the prompt's tokens and yields those that follow, up to one of the checkpoint's end
    /// tokens or of the options'.
    pub fn generate(&self, prompt: &[u32], options: &Options) -> Result<Generation<'_>> {
        let mut options = options.clone();
        options.eos.extend(&self.eos);
        self.llama.generate(prompt, &options)
    }
}

fn in_file(path: &Path, error: Error) -> Error {
    Error::file(path, error)
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

pub(super) fn safetensors_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|e| Error::file(directory, e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            name.starts_with("model") && name.ends_with(".safetensors")
        })
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::file(directory, "expected model*.safetensors, got none"));
    }
    Ok(files)
}
