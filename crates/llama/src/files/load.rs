use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use mlx_primitives::support::files::{read_if_present, read_to_string};
use mlx_primitives::{Error, Result, io};

use super::gguf;
use super::model_path;
use crate::base::{Config, Progress, Weights};
use crate::model::Llama;

impl Llama {
    /// Loads a model without its tokenizer from a directory with `config.json` and
    /// `model*.safetensors`, or from a `.gguf` file. Weights are read layer by layer, so that apart
    /// from the model only a copy of the current layer or matrix takes memory.
    ///
    /// If there is a `model.safetensors.index.json`, the files that it lists are read. Each file
    /// must contain the tensors that the index assigns to it. The architecture of a GGUF file must
    /// be llama, qwen2 or qwen3. Its packed weights stay packed: those of Q4_K, Q5_K and Q6_K in
    /// the formats that [`load_gguf_with`](mlx_primitives::io::load_gguf_with) lists, the others in
    /// the formats that [`load_gguf`](mlx_primitives::io::load_gguf) lists.
    ///
    /// # Errors
    ///
    /// Returns an error for missing or truncated files, and for an architecture that
    /// [`ModelType`](crate::base::ModelType) does not have. It is also an error if a tensor is
    /// missing, unknown or in two files, or if its shape or type does not match the configuration.
    /// It is an error too if a path is a named pipe, a device or a directory instead of a file. The
    /// error names the file and, if a tensor is at fault, the tensor.
    ///
    /// # Files that change during loading
    ///
    /// The loader reads elements with system calls. If another process truncates a file before its
    /// elements are read, loading or the first evaluation fails with an error. The header of a file
    /// is mapped into memory while it is checked. If another process truncates the file at that
    /// time, the system ends this process with the signal SIGBUS, which this function cannot turn
    /// into an error. No file is mapped after this function returns. It is always safe to replace a
    /// file by renaming another file to its name.
    ///
    /// ```
    /// use mlx_primitives_llama::Llama;
    ///
    /// let llama = Llama::load(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"))?;
    /// assert_eq!(llama.config().num_hidden_layers, 4);
    /// let error = Llama::load("/nowhere").err().unwrap();
    /// assert!(error.to_string().starts_with("/nowhere: there is no such folder"));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, |_| {})
    }

    /// Loads a model like [`load`](Self::load), and calls `progress` before the first layer and
    /// after each layer.
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses.
    ///
    /// ```
    /// use mlx_primitives_llama::{Llama, base::Progress};
    ///
    /// let mut seen = Progress::default();
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    /// let llama = Llama::load_with(demo, |progress| seen = progress)?;
    /// assert!(seen.done == seen.total && seen.total == llama.nbytes() as u64);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn load_with(path: impl AsRef<Path>, progress: impl FnMut(Progress)) -> Result<Self> {
        Self::load_part(path, |_, weights| Ok(weights), progress)
    }

    /// Loads only this process's part of a model, and calls `progress` like
    /// [`load_with`](Self::load_with). `hold` limits the weights to this part with
    /// [`Weights::held_by`]. It can also convert them with [`Weights::converted_to`].
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses, or if `hold` returns an error.
    pub fn load_part(
        path: impl AsRef<Path>,
        hold: impl FnOnce(&Config, Weights) -> Result<Weights>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self> {
        let path = path.as_ref();
        let (config, weights) = files(path)?;
        hold(&config, weights)
            .and_then(|weights| Self::assemble(config, weights, Some(&mut progress)))
            .map_err(|e| in_file(path, e))
    }

    /// Loads a model like [`load`](Self::load), but reads only the headers. Each tensor is read
    /// when it is first used.
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses. If a tensor cannot be read
    /// later, the evaluation that uses it fails.
    pub fn load_lazily(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_part_lazily(path, |_, weights| Ok(weights))
    }

    /// Loads only this process's part of a model, like [`load_part`](Self::load_part). Each tensor
    /// is read when it is first used, as in [`load_lazily`](Self::load_lazily).
    ///
    /// # Errors
    ///
    /// Returns an error for files that [`load`](Self::load) refuses, or if `hold` returns an error.
    pub fn load_part_lazily(
        path: impl AsRef<Path>,
        hold: impl FnOnce(&Config, Weights) -> Result<Weights>,
    ) -> Result<Self> {
        let path = path.as_ref();
        let (config, weights) = files(path)?;
        hold(&config, weights)
            .and_then(|weights| Self::assemble(config, weights, None))
            .map_err(|e| in_file(path, e))
    }
}

/// Adds `path` to an error that does not name a file.
pub(crate) fn in_file(path: &Path, error: Error) -> Error {
    match error.path() {
        Some(_) => error,
        None => Error::file(path, error),
    }
}

/// Reads the configuration and the tensors of a directory or a GGUF file. The elements of a tensor
/// are read when it is first used.
fn files(path: &Path) -> Result<(Config, Weights)> {
    model_path::check(path)?;
    if gguf::is_gguf(path) {
        return gguf::load(path);
    }
    let file = path.join("config.json");
    let json = read_to_string(&file)?;
    let config = Config::parse(&json).map_err(|e| Error::file(&file, e))?;
    Ok((config, safetensors(path)?))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn safetensors(directory: &Path) -> Result<Weights> {
    let index_file = directory.join("model.safetensors.index.json");
    let index = match read_if_present(&index_file)? {
        Some(json) => {
            let index: Index = serde_json::from_str(&json).map_err(|e| {
                Error::file(&index_file, format_args!("expected an object weight_map, got {e}"))
            })?;
            Some(index.weight_map)
        }
        None => None,
    };
    let files = match &index {
        Some(map) => listed_files(directory, &index_file, map)?,
        None => safetensors_files(directory)?,
    };
    let mut weights = Weights::of(match files.as_slice() {
        [file] => file,
        _ => directory,
    });
    let mut names: BTreeMap<&Path, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let arrays = io::load_safetensors(file)?.arrays;
        names.insert(file, arrays.keys().cloned().collect());
        weights.add(file, arrays)?;
    }
    for (name, file) in index.iter().flatten() {
        let file = directory.join(file);
        if !names.get(&*file).is_some_and(|names| names.contains(name)) {
            let expected = format_args!("a tensor {name}, as {} says", index_file.display());
            return Err(Error::file(file, format_args!("expected {expected}, got none")));
        }
    }
    Ok(weights)
}

fn listed_files(
    directory: &Path,
    index: &Path,
    map: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>> {
    let names: BTreeSet<&String> = map.values().collect();
    let outside = |name: &str| Path::new(name).file_name() != Some(name.as_ref());
    if let Some(name) = names.iter().find(|name| outside(name)) {
        return Err(Error::file(index, format_args!("expected files beside it, got {name:?}")));
    }
    if names.is_empty() {
        return Err(Error::file(index, "expected files in weight_map, got none"));
    }
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

/// Returns the files `model*.safetensors`, in the order of their names.
pub(crate) fn safetensors_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|e| Error::io(directory, e))?;
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
