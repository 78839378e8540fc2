//! Steps of the build that tests run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, ensure};

use super::root;

/// The CMake command that build.rs would use.
pub fn cmake() -> Command {
    let brought = root().join(".mlx/python/cmake/data/bin/cmake");
    match std::env::var_os("CMAKE") {
        Some(path) => Command::new(path),
        None if brought.exists() => Command::new(brought),
        None => Command::new("cmake"),
    }
}

/// Embeds the kernels of a folder: writes the C++ file that contains their sources.
pub fn embed(metal: &Path, embedded: &Path) -> std::io::Result<Output> {
    cmake()
        .arg(format!("-DMETAL_DIR={}", metal.display()))
        .arg(format!("-DOUTPUT={}", embedded.display()))
        .arg("-P")
        .arg(root().join("cmake/embed_metal.cmake"))
        .output()
}

/// The marker of a folder's kernels. A metallib contains the marker, so that a program can check
/// from which sources the metallib was built.
pub fn marker(metal: &Path) -> anyhow::Result<String> {
    let directory = tempfile::tempdir()?;
    let embedded = directory.path().join("embedded.cpp");
    ensure!(embed(metal, &embedded)?.status.success());
    let text = fs::read_to_string(embedded)?;
    let (_, hash) = text.split_once("  return \"").context("a hash")?;
    Ok(format!("mlxp_sources_{}", &hash[..64]))
}
