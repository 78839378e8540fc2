//! The integration tests, in one binary: a module for each part of the crate.

mod array;
mod build;
mod cache;
mod cli;
mod compile;
mod cross_entropy;
mod errors;
mod gguf;
mod gradients;
mod graph;
mod hostile;
mod io;
mod layer_norm;
mod llama;
mod logsumexp;
mod masked_softmax;
mod memory;
mod plan;
mod printing;
mod quantize;
mod random;
mod reduce;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod rope_scaling;
#[cfg(target_os = "linux")]
mod simulated;
mod softmax;
mod support;
mod threads;
mod tidy;
mod vmap;
