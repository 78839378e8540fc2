//! Reads models in GGUF files. Converts llama.cpp's tensor names, configuration and tokenizer to
//! the form that Hugging Face checkpoints use.

mod config;
mod keys;
mod parts;
mod pre_tokenizer;
mod spm;
mod tensors;
mod tokenizer;
mod vocabulary;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use mlx_primitives::io::KQuants;
use mlx_primitives::io::gguf::Entries;
use mlx_primitives::support::files;
use mlx_primitives::{Array, Error, Result, io};

use crate::base::{Config, Weights};

/// Whether the path is a GGUF file, by its extension. Some caches name files by their hash. So a
/// file without an extension is a GGUF file if it begins with the bytes `GGUF`.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let begins = |mut file: File| {
        let mut magic = [0; 4];
        file.read_exact(&mut magic).is_ok() && &magic == b"GGUF"
    };
    named || path.extension().is_none() && path.is_file() && files::open(path).is_ok_and(begins)
}

/// The folder with a checkpoint's other files: the parent of a GGUF file, or the directory itself.
pub(crate) fn folder(path: &Path) -> &Path {
    if is_gguf(path) { files::parent(path) } else { path }
}

/// The contents of a GGUF file, converted to the configuration and tensors of a checkpoint.
pub(crate) struct Model {
    /// The contents of `config.json`.
    pub config: Map<String, Value>,
    /// The path of each file, and its tensors by their names in checkpoints.
    pub files: Vec<(PathBuf, HashMap<String, Array>)>,
    /// The names of the biases of packed weights that the scales determine.
    pub centered: Vec<String>,
}

/// Reads the configuration and the tensors of a GGUF file, and of all its other parts if it is
/// split. The elements of a tensor are read when it is first used.
pub(crate) fn read(path: &Path, k_quants: KQuants) -> Result<Model> {
    let (mut files, mut centered) = (Vec::new(), Vec::new());
    let mut entries = None;
    for part in parts::of(path)? {
        let own = io::gguf_tensors(&part, k_quants)?;
        entries.get_or_insert(own.entries);
        centered.extend(own.centered.iter().map(|name| tensors::translate(name)));
        files.push((part, own.arrays));
    }
    let entries = entries.unwrap_or_default();
    parts::check(path, &entries, &files)?;
    let in_file = |error| Error::file(path, error);
    let factors = files.iter_mut().find_map(|(_, arrays)| arrays.remove("rope_freqs.weight"));
    for (_, arrays) in &mut files {
        *arrays = tensors::translated(std::mem::take(arrays));
    }
    let config = config::of(&entries, &files, factors.as_ref()).map_err(in_file)?;
    tensors::complete_biases(&mut files, &config).map_err(in_file)?;
    if config.get("model_type").is_some_and(|kind| kind == "llama") {
        tensors::reorder_heads(&mut files, &config).map_err(in_file)?;
    }
    Ok(Model { config, files, centered })
}

/// Reads the configuration and the tensors of a model. Tensors get the names that they have in
/// checkpoints.
pub(crate) fn load(path: &Path) -> Result<(Config, Weights)> {
    let Model { config, files, centered } = read(path, KQuants::of_models())?;
    let config = Config::parse(&Value::Object(config).to_string())
        .map_err(|error| Error::file(path, error))?;
    let mut weights = Weights::of(path);
    for (file, arrays) in files {
        weights.add(&file, arrays)?;
    }
    Ok((config, weights.with_centered(centered)))
}

/// Makes the tokenizer that the entries of a file describe.
pub(crate) fn tokenizer(path: &Path) -> Result<tokenizers::Tokenizer> {
    tokenizer::of(&entries(path)?).map_err(|error| Error::file(path, error))
}

/// Makes the contents of a `tokenizer_config.json` from the chat templates and the special tokens
/// in a GGUF file.
pub(crate) fn tokenizer_config(path: &Path) -> Result<Value> {
    let entries = entries(path)?;
    vocabulary::tokenizer_config(&entries).map_err(|error| Error::file(path, error))
}

/// Returns the contents of the files that a checkpoint has beside its weights, by file name. They
/// are read from the folder of the GGUF file. A missing `tokenizer.json` or `tokenizer_config.json`
/// is made from the entries of the GGUF file.
pub(crate) fn companions(path: &Path) -> Result<BTreeMap<String, String>> {
    let folder = folder(path);
    let mut companions = BTreeMap::new();
    for name in
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
    {
        if let Some(text) = files::read_if_present(&folder.join(name))? {
            companions.insert(name.to_owned(), text);
        }
    }
    if !companions.contains_key("tokenizer.json") {
        let json = tokenizer(path)?.to_string(false).map_err(|e| Error::file(path, e))?;
        companions.insert("tokenizer.json".to_owned(), json);
    }
    if !companions.contains_key("tokenizer_config.json") {
        let mut config = tokenizer_config(path)?;
        config["tokenizer_class"] = Value::from("PreTrainedTokenizerFast");
        companions.insert("tokenizer_config.json".to_owned(), format!("{config:#}\n"));
    }
    Ok(companions)
}

/// Reads the entries of a file. In a split model, these are the entries of the first part.
fn entries(path: &Path) -> Result<Entries> {
    let parts = parts::of(path)?;
    io::gguf_entries(parts.first().map_or(path, |part| part))
}
