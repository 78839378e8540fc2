//! Tests of the command `mlx-primitives`.

// The harness replaces Rust's `#[test]`: the attribute registers a test with the harness.
#[macro_use]
extern crate harness;

mod cli;
#[cfg(unix)]
mod cli_faults;
mod command;
#[cfg(target_os = "linux")]
mod endings;
mod environment;
#[cfg(unix)]
mod file_faults;
mod gguf_models;
mod hub;
mod latencies;
mod long_texts;
mod lora;
mod metallib;
mod options;
#[cfg(target_os = "linux")]
mod pages;
mod quoting;
mod refused_kinds;
#[cfg(target_os = "linux")]
mod simulated;
#[cfg(unix)]
mod split;
mod text_cli;
mod text_options;
mod tools;
mod tune;
mod verify;
mod written_files;

use harness::support;

fn main() -> std::process::ExitCode {
    harness::main(|role| anyhow::bail!("there is no role {role}"), Vec::new())
}
