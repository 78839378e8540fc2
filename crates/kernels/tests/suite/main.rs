//! Compares the kernels with plain references, on every instruction set of this machine.

// The reference functions of the conformance tests. They are included by path, because their crate
// needs MLX and so cannot be a dependency.
#[path = "../../../../tests/catalog/src/reference.rs"]
#[allow(dead_code, reason = "the table uses all of it")]
mod reference;

#[path = "../../../../tests/catalog/src/reference_loops.rs"]
#[allow(dead_code, reason = "the table uses all of it")]
mod reference_loops;

#[macro_use]
mod testing;

mod activation;
mod attention;
mod bytes;
mod copy;
mod cross_entropy;
mod element;
mod ggml_blocks;
mod gradients;
mod layer_norm;
mod level;
mod linear;
mod logsumexp;
mod masked_softmax;
mod math;
mod output;
mod pool;
mod quantize;
mod quantized_matmul;
mod reduce;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod softmax;
mod take_grad;
