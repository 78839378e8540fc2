//! The integration tests, in one binary: a module for each part of the crate.

mod compile;
mod gradients;
mod cli;
mod llama;
mod rms_norm;
mod rope;
mod softmax;
mod support;
mod vmap;
mod zz;
