//! Our primitives: each a node of MLX's graph that runs a Metal kernel of ours on the GPU and a
//! kernel of ours on the CPU, with `vjp`, `jvp` and `vmap`, usable inside `compile`.
//!
//! All are lazy and take float32, float16 or bfloat16 in any layout; an input that is not
//! row-contiguous is copied first. Sums are accumulated in float32.

mod activation;
mod linear;
mod lora;
mod quantized_matmul;
mod rms_norm;
mod rope;
mod softmax;

pub use activation::{
    Activation, add_relu, affine, geglu, geglu_tanh, gelu, gelu_tanh, mul_relu, relu, silu, swiglu,
};
pub use linear::{LinearOptions, linear, matmul};
pub use lora::{LinearWeight, Lora, lora_linear};
pub use quantized_matmul::{
    QuantizedMode, QuantizedOptions, QuantizedWeight, quantized_linear, quantized_linears,
    quantized_swiglu,
};
pub use rms_norm::rms_norm;
pub use rope::{Offset, rope};
pub use softmax::softmax;
