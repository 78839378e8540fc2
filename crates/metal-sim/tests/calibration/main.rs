//! Compares MLX's kernels as Apple compiled them, from MLX's macOS wheel, with the same kernels
//! compiled with the shim (this crate's Metal headers), and with the kernels of `mlx-primitives`.
//! scripts/calibrate.sh fetches the wheel and sets the environment variables.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod counts;
mod equal;
mod launch;
mod ours;
mod sources;
mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use metal_sim::air::{Library, Metallib};
use metal_sim::{Constants, Kernel};

/// Returns a path that scripts/calibrate.sh passes in an environment variable. These tests fail if
/// it is not set.
fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is not set; run scripts/calibrate.sh")).into()
}

fn metallib() -> &'static Metallib {
    static METALLIB: OnceLock<Metallib> = OnceLock::new();
    METALLIB.get_or_init(|| Metallib::open(variable("METAL_SIM_METALLIB")).unwrap())
}

/// Reads these kernels of MLX's wheel, as Apple compiled them.
fn apple(names: &[impl AsRef<str>]) -> Library {
    Library::read(metallib(), names, common::compiler(), common::cache()).unwrap()
}

/// Compiles these kernels of MLX's wheel for the executor.
fn apple_kernels(names: &[impl AsRef<str>], constants: &Constants) -> BTreeMap<String, Kernel> {
    apple(names).compile(common::compiler(), constants).unwrap()
}

/// Prints a count and a text. scripts/calibrate.sh sums the counts for its last line, and prints
/// the text before that line.
fn result(kind: &str, count: usize, text: &str) {
    println!("count: {kind} {count}");
    println!("result: {text}");
}
