//! The integration tests, in one binary: a module for each part of the crate.

// `#[test]` registers a test with `harness`.
#[macro_use]
extern crate test_attribute;

mod activation;
mod adapters;
mod array;
mod astype;
mod attention;
mod block;
mod build;
mod cache;
mod chat_template;
mod checkpointing;
mod checkpoints;
mod cli;
#[cfg(unix)]
mod cli_faults;
mod compile;
mod config_keys;
mod conformance;
mod conversions;
mod cross_entropy;
mod custom;
mod deep;
mod destructors;
mod dispatches;
#[cfg(unix)]
mod distributed;
mod endings;
mod environment;
mod errors;
mod every;
mod failures;
#[cfg(unix)]
mod file_faults;
mod fused_llama;
mod generation;
mod gguf;
mod gguf_models;
mod graph;
mod harness;
mod hostile;
mod hub;
mod identity;
mod indexing;
mod io;
mod jinja;
#[cfg(unix)]
mod late;
mod latencies;
mod layer_norm;
mod levels;
mod linear;
mod linear_cross_entropy;
mod llama;
mod llama_cpp;
mod logsumexp;
mod long_texts;
mod lora;
mod masked_softmax;
mod memory;
mod no_numbers;
mod nvidia;
mod one_stream;
mod operators;
mod options;
mod parameters;
mod parts_of_ops;
mod peft;
mod pipelines;
mod printing;
mod prose;
mod quantize;
mod quantized_matmul;
mod quoting;
mod random;
mod random_weights;
mod reduce;
mod refusals;
mod refused_kinds;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod rope_scaling;
mod sampling;
mod shapes;
#[cfg(target_os = "linux")]
mod simulated;
mod small_llama;
mod softmax;
mod special_tokens;
mod split;
mod support;
mod text_cli;
mod text_options;
mod threads;
mod tidy;
mod tokenizer;
mod tools;
#[cfg(target_os = "linux")]
mod traffic;
mod tune;
mod verify;
mod written_files;

use mlx_primitives_catalog as table;

fn main() -> std::process::ExitCode {
    // Tests never leave this machine: those of the hub name their own server.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("HF_HUB_OFFLINE", "1") };
    if let Err(error) = std::env::set_current_dir(tidy::root()) {
        eprintln!("{}: {error}", tidy::root().display());
        return std::process::ExitCode::FAILURE;
    }
    #[cfg(unix)]
    if let Some(code) = distributed::role() {
        return code;
    }
    endings::role().unwrap_or_else(harness::main)
}
