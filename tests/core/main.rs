//! The tests of the library: arrays, ops, transforms, streams, failures, and the files of the
//! repository.

// `#[test]` in these files is an attribute of the crate `harness`, which registers the test.
#[macro_use]
extern crate harness;

mod activation;
mod array;
mod astype;
mod attention;
mod block;
mod build;
mod checkpointing;
mod compile;
mod conformance;
mod costs;
mod cross_entropy;
mod custom;
mod deep;
mod destructors;
mod dispatches;
mod endings;
mod errors;
mod every;
mod failures;
mod gguf;
mod graph;
mod hostile;
mod indexing;
mod io;
#[cfg(unix)]
mod late;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod logsumexp;
mod lora;
mod masked_softmax;
mod memory;
mod mixed_types;
mod nvidia;
mod one_stream;
mod operators;
mod parameters;
mod parts_of_ops;
mod pipelines;
mod printing;
mod prose;
mod quantize;
mod quantized_matmul;
mod random;
mod reduce;
mod refusals;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod rows;
mod shapes;
#[cfg(target_os = "linux")]
mod simulated;
mod softmax;
mod sums;
mod take_grad;
mod threads;
mod tidy;
#[cfg(target_os = "linux")]
mod traffic;
mod tune;
mod widths;

use harness::{support, table};

fn main() -> std::process::ExitCode {
    harness::main(endings::play, rows::tests())
}
