//! The Hugging Face hub's cache on disk. It has a folder `models--org--name` for each model. In
//! that folder, `refs/main` contains the name of a commit, `snapshots/COMMIT` has links to the
//! files of the commit, and `blobs` has the files.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::name::{self, Name};
use mlx_primitives::support::files;
use mlx_primitives::{Error, Result};

/// Returns the value of an environment variable; `None` if it is unset or empty.
pub(super) fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder that contains the access token and, by default, the cache.
pub(super) fn home() -> Option<PathBuf> {
    variable("HF_HOME")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("huggingface")))
        .or_else(|| env::home_dir().map(|home| home.join(".cache").join("huggingface")))
}

/// The folder of the cache.
pub(super) fn folder() -> Result<PathBuf> {
    let folder = variable("HF_HUB_CACHE").or_else(|| home().map(|home| home.join("hub")));
    folder.ok_or_else(|| {
        Error::argument("HF_HUB_CACHE", "a folder for models, since there is no home folder")
    })
}

/// Whether models are only looked up in the cache and never downloaded.
pub(super) fn is_offline() -> bool {
    let value = env::var("HF_HUB_OFFLINE").unwrap_or_default().to_ascii_lowercase();
    ["1", "on", "yes", "true"].contains(&value.as_str())
}

/// Returns the folder with the files of the revision, if it is in the cache.
pub(super) fn snapshot(folder: &Path, name: &Name) -> Option<PathBuf> {
    let repository = folder.join(name.folder());
    let reference = repository.join("refs").join(&name.revision);
    let commit = match files::read_to_string(&reference) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => name.revision.clone(),
    };
    let snapshot = repository.join("snapshots").join(&commit);
    (name::is_plain(&commit) && snapshot.is_dir()).then_some(snapshot)
}

/// Returns the folder or the `.gguf` file of a model, if all of its weights are in the cache.
pub(super) fn find(folder: &Path, name: &Name) -> Option<PathBuf> {
    let snapshot = snapshot(folder, name)?;
    let whole = |file: &str| name::all_parts(file).iter().all(|part| snapshot.join(part).exists());
    if let Some(file) = &name.file {
        return whole(file).then(|| snapshot.join(file));
    }
    let listed: BTreeSet<String> = fs::read_dir(&snapshot)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| snapshot.join(file).exists())
        .collect();
    let weights = name.wanted(&listed).ok()?;
    let mut ggufs = weights.iter().filter(|file| name::is_gguf(file));
    if let Some(gguf) = ggufs.next() {
        return whole(gguf).then(|| snapshot.join(gguf));
    }
    let configured = listed.contains("config.json") || listed.contains("adapter_config.json");
    (configured && has_all(&snapshot)).then_some(snapshot)
}

/// Whether the snapshot has all files that its `model.safetensors.index.json` names. The result is
/// true if the snapshot has no index.
fn has_all(snapshot: &Path) -> bool {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index = snapshot.join("model.safetensors.index.json");
    let Ok(text) = files::read_to_string(&index) else { return !index.exists() };
    let Ok(index) = serde_json::from_str::<Index>(&text) else {
        return true; // the loader says what is wrong with it
    };
    index.weight_map.values().all(|file| snapshot.join(file).exists())
}
