//! The kernels against plain references, on every instruction set of this machine.

mod activation;
mod attention;
mod bytes;
mod copy;
mod cross_entropy;
mod element;
mod ggml_blocks;
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
mod testing;
