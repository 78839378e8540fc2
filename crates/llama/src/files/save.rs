use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use mlx_primitives::support::files::{self, NewFolders, partial};
use mlx_primitives::{Array, Error, Result, io};

use super::model_files::ModelFiles;

/// The maximum size of a file's tensors in bytes. A larger tensor gets a separate file. mlx-lm has
/// the same limit.
const SHARD: u64 = 5 << 30;

/// The prefixes of the names of files that belong to the tokenizer or configure generation.
const COMPANIONS: [&str; 8] = [
    "tokenizer",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.",
    "merges.txt",
    "generation_config.json",
    "chat_template",
    "tiktoken",
];

impl ModelFiles {
    /// Writes the model as mlx-lm does: `config.json`, `model.safetensors` or shards of 5 GiB, an
    /// index of the shards, and copies of the tokenizer's files, `chat_template.jinja` and
    /// `generation_config.json`. The directory appears only when all files are complete. If saving
    /// fails, no files remain. If the process is killed, a directory whose name begins with
    /// `.partial-` remains in the parent folder. The next save to a directory in this parent folder
    /// removes it.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory exists and is not empty, or if a file cannot be written.
    /// The error names the file.
    pub fn save(self, directory: impl AsRef<Path>) -> Result<()> {
        self.save_sharded(directory, SHARD)
    }

    /// Writes the model like [`save`](Self::save), in shards of up to `shard_bytes` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if [`save`](Self::save) would return one.
    pub fn save_sharded(self, directory: impl AsRef<Path>, shard_bytes: u64) -> Result<()> {
        let directory = directory.as_ref();
        refuse_existing(directory)?;
        let partial = Partial::of(directory)?;
        let place = partial.directory.path();
        self.write(place, shard_bytes).map_err(|error| {
            match error.path().and_then(|path| path.strip_prefix(place).ok()) {
                Some(file) => unwritten(&directory.join(file), files::reason(&error)),
                None => error,
            }
        })?;
        sync(place).map_err(|e| unwritten(directory, e))?;
        refuse_existing(directory)?;
        fs::rename(place, directory).map_err(|e| unwritten(directory, e))?;
        partial.keep();
        files::sync_folder(files::parent(directory));
        Ok(())
    }

    /// Checks whether [`save`](Self::save) could write the directory.
    ///
    /// # Errors
    ///
    /// Returns the error that `save` would return if the directory has files or is in a read-only
    /// folder.
    pub fn check_path(directory: impl AsRef<Path>) -> Result<()> {
        refuse_existing(directory.as_ref())?;
        Partial::of(directory.as_ref()).map(drop)
    }

    fn write(mut self, directory: &Path, shard_bytes: u64) -> Result<()> {
        self.copy_companions(directory)?;
        self.write_config(&directory.join("config.json"))?;
        let metadata = json!({
            "total_size": self.nbytes(),
            "total_parameters": self.parameters()?,
        });
        let shards = shards(std::mem::take(&mut self.tensors), shard_bytes);
        let count = shards.len();
        let mut weight_map = BTreeMap::new();
        for (i, shard) in shards.into_iter().enumerate() {
            let file = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
            };
            let named = shard.iter().map(|(name, array)| (name.as_str(), array));
            io::save_safetensors(directory.join(&file), named, [("format", "mlx")])?;
            weight_map.extend(shard.into_keys().map(|name| (name, file.clone())));
        }
        let index = json!({"metadata": metadata, "weight_map": weight_map});
        write_json(&directory.join("model.safetensors.index.json"), &index)
    }

    /// The number of parameters. A packed matrix counts with the number of its unpacked elements;
    /// its scales and biases do not count.
    ///
    /// # Errors
    ///
    /// Returns an error if `config.json` cannot be read as a model's configuration.
    pub fn parameters(&self) -> Result<u64> {
        let config = self.parsed()?;
        let mut total = 0;
        for (name, array) in &self.tensors {
            let (path, part) = name.rsplit_once('.').unwrap_or(("", name));
            let packed = self.tensors.contains_key(&format!("{path}.scales"));
            total += match (part, config.quantization_of(path)?) {
                ("scales" | "biases", _) if packed => 0,
                ("weight", Some(to)) if packed => {
                    array.size() as u64 * 32 / u64::from(to.bits.unsigned_abs()).max(1)
                }
                _ => array.size() as u64,
            };
        }
        Ok(total)
    }

    fn write_config(&self, path: &Path) -> Result<()> {
        let mut config: BTreeMap<&str, &Value> =
            self.config.iter().map(|(key, value)| (key.as_str(), value)).collect();
        config.remove("_name_or_path");
        // Hugging Face's libraries read the quantization under this name.
        if let Some(quantization) = self.config.get("quantization") {
            config.insert("quantization_config", quantization);
        }
        write_json(path, &json!(config))
    }

    fn copy_companions(&self, to: &Path) -> Result<()> {
        if let Some(companions) = &self.companions {
            return companions.iter().try_for_each(|(name, text)| {
                let path = to.join(name);
                fs::write(&path, text).map_err(|e| Error::io(path, e))
            });
        }
        let unreadable = |e| Error::io(&self.directory, e);
        for entry in fs::read_dir(&self.directory).map_err(unreadable)? {
            let from = entry.map_err(unreadable)?.path();
            let Some(name) = from.file_name().and_then(|name| name.to_str()) else { continue };
            let wanted = COMPANIONS.iter().any(|start| name.starts_with(start))
                || name.ends_with(".jinja")
                || name.ends_with(".tiktoken");
            if wanted && from.is_file() {
                let to = to.join(name);
                let failed = |e| format!("cannot be copied from {}: {e}", from.display());
                fs::copy(&from, &to).map_err(|e| Error::file(&to, failed(e)))?;
            }
        }
        Ok(())
    }
}

fn refuse_existing(directory: &Path) -> Result<()> {
    let empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
    if directory.exists() && !empty {
        return Err(Error::file(directory, "expected a new directory, got one with files"));
    }
    Ok(())
}

/// A temporary directory beside the final directory. When the save succeeds, the directory is
/// renamed to the final name. If a `Partial` is dropped before that, the directory and the parent
/// folders that were created for it are removed.
struct Partial {
    directory: TempDir,
    folders: NewFolders,
    _alive: partial::Alive,
}

impl Partial {
    fn of(directory: &Path) -> Result<Self> {
        if directory.file_name().is_none() {
            return Err(Error::file(directory, "expected a directory's name"));
        }
        let folder = files::parent(directory);
        let folders = NewFolders::create(folder).map_err(|e| unwritten(directory, e))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(partial::PREFIX);
        // The process's umask limits these permissions, as for any new directory.
        builder.permissions(fs::Permissions::from_mode(0o777));
        partial::remove_stale(folder);
        // The message has only the error's kind, because the full error would name the temporary
        // directory.
        let (made, alive) = partial::create(|| builder.tempdir_in(folder), |made| made.path())
            .map_err(|e| unwritten(directory, e.kind()))?;
        Ok(Self { directory: made, folders, _alive: alive })
    }

    /// Keeps the directory and its parent folders after the directory was renamed.
    fn keep(self) {
        let _ = self.directory.keep();
        self.folders.keep();
    }
}

fn unwritten(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::file(path, format_args!("cannot be written: {reason}"))
}

/// Waits until the files of a directory are on the disk.
fn sync(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        fs::File::open(entry?.path())?.sync_all()?;
    }
    files::sync_folder(directory);
    Ok(())
}

/// Divides the tensors, in order, into shards of at most `limit` bytes. A tensor that is larger
/// than `limit` gets a separate shard.
fn shards(tensors: BTreeMap<String, Array>, limit: u64) -> Vec<BTreeMap<String, Array>> {
    let mut shards: Vec<BTreeMap<String, Array>> = Vec::new();
    let mut size = 0u64;
    for (name, array) in tensors {
        let bytes = array.nbytes() as u64;
        match shards.last_mut().filter(|_| size.saturating_add(bytes) <= limit) {
            Some(shard) => {
                shard.insert(name, array);
                size += bytes;
            }
            None => {
                shards.push(BTreeMap::from([(name, array)]));
                size = bytes;
            }
        }
    }
    shards
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, format!("{value:#}\n")).map_err(|e| Error::io(path, e))
}
