//! The integration tests, in one binary: a module for each part of the crate.

mod compile;
mod errors;
mod gradients;
mod graph;
mod rms_norm;
mod rope;
mod softmax;
mod support;
mod threads;
mod vmap;
