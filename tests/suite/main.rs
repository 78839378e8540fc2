//! The integration tests, in one binary: a module for each part of the crate.

mod array;
mod attention;
mod build;
mod cli;
mod compile;
mod errors;
mod gguf;
mod gradients;
mod graph;
mod hostile;
mod io;
mod llama;
mod memory;
mod plan;
mod printing;
mod random;
mod rms_norm;
mod rope;
#[cfg(target_os = "linux")]
mod simulated;
mod softmax;
mod support;
mod threads;
mod tidy;
mod vmap;
