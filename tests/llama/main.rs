//! The tests of the Llama model.

// `#[test]` in these files is an attribute of the crate `harness`, which registers the test.
#[macro_use]
extern crate harness;

mod adapters;
mod backward;
mod cache;
mod chat_template;
mod checkpoints;
mod config_keys;
mod conversions;
mod converted_weights;
mod endings;
mod fused_llama;
mod generation;
mod gguf_models;
mod identity;
mod jinja;
mod levels;
mod llama;
mod llama_cpp;
mod memory;
mod no_numbers;
mod one_stream;
mod optimizers;
mod peft;
mod random_weights;
mod reference;
mod rope_scaling;
mod sampling;
#[cfg(unix)]
mod serve;
#[cfg(target_os = "linux")]
mod simulated;
mod small_llama;
mod special_tokens;
mod tokenizer;
mod training;
mod training_data;
mod training_memory;
mod tune;

use harness::{support, table};

fn main() -> std::process::ExitCode {
    harness::main(endings::play, Vec::new())
}
