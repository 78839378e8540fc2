//! The integration tests, in one binary: a module for each part of the crate.

mod rms_norm;
mod softmax;
mod support;
