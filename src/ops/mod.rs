//! Our primitives: each a node of MLX's graph that runs a Metal kernel of ours on the GPU and a
//! kernel of ours on the CPU, with `vjp`, `jvp` and `vmap`, usable inside `compile`.
//!
//! All are lazy and take float32, float16 or bfloat16 in any layout; an input that is not
//! row-contiguous is copied first. Sums are accumulated in float32.

mod layer_norm;
mod reduce;
mod residual_norm;
mod cross_entropy;
mod logsumexp;
mod masked_softmax;
mod quantize;
mod rms_norm;
mod rope;
mod rope_append;
mod softmax;

pub use layer_norm::layer_norm;
pub use reduce::{Axes, max, mean, norm, sum, sum_of_squares};
pub use residual_norm::{layer_norm_residual, rms_norm_residual};
pub use cross_entropy::{CrossEntropyOptions, cross_entropy};
pub use logsumexp::{log_softmax, logsumexp};
pub use masked_softmax::{SoftmaxOptions, masked_softmax};
pub use quantize::{dequantize, quantize};
pub use rms_norm::rms_norm;
pub use rope::{Offset, rope};
pub use rope_append::{Rotation, StateLayout, rope_append};
pub use softmax::softmax;
