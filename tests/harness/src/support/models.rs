//! Models that tests load, and copies of the demo model.

use std::fs;
use std::path::PathBuf;

use mlx_primitives::{Dtype, io};
use serde_json::Value;

/// The demo model's directory.
pub const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/llama/assets/demo");

/// The texts that mlx-lm generates from prompts with the demo model.
pub fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/cli/assets/greedy.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The tokens in a JSON list.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A copy of the demo model's directory.
pub fn demo_copy() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for entry in fs::read_dir(DEMO)? {
        let entry = entry?;
        fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
    }
    Ok(folder)
}

/// Writes the demo model with another type of weights and edited JSON files.
pub fn variant(dtype: Dtype, edit: impl Fn(&str, &mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        let mut json: Value =
            serde_json::from_str(&fs::read_to_string(format!("{DEMO}/{name}")).unwrap()).unwrap();
        edit(name, &mut json);
        fs::write(path.join(name), json.to_string()).unwrap();
    }
    let tensors = io::load_safetensors(format!("{DEMO}/model.safetensors")).unwrap();
    let cast: Vec<_> =
        tensors.arrays.iter().map(|(name, a)| (name, a.astype(dtype).unwrap())).collect();
    let named = cast.iter().map(|(name, a)| (name.as_str(), a));
    io::save_safetensors(path.join("model.safetensors"), named, []).unwrap();
    directory
}

/// The folder of the small checkpoints that tests load.
pub fn checkpoints() -> PathBuf {
    super::root().join("tests/fixtures/checkpoints")
}

/// The names of the small checkpoints.
pub fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(checkpoints())? {
        let entry = entry?;
        if entry.path().join("expected.json").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The results of mlx-lm for conversions of the demo model.
pub fn conversions() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/conversions.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
