//! Our primitives: each a node of MLX's graph that runs a Metal kernel of ours on the GPU and a
//! kernel of ours on the CPU, with `vjp`, `jvp` and `vmap`, usable inside `compile`.
//!
//! All are lazy and take float32, float16 or bfloat16 in any layout; an input that is not
//! row-contiguous is copied first, but for those of `attention`, which reads views where they
//! lie. Sums are accumulated in float32.

mod attention;
mod rms_norm;
mod rope;
mod softmax;

pub use attention::{AttentionOptions, QuantizedRows, attention, attention_quantized};
pub use rms_norm::rms_norm;
pub use rope::{Offset, rope};
pub use softmax::softmax;
