//! The ops of this crate. Each op is a primitive of MLX's graph, except [`linear_cross_entropy`],
//! which consists of other ops. An op runs this crate's Metal kernel on the GPU and this crate's
//! CPU kernel on the CPU, unless [`tune`](crate::tune) chooses MLX's own ops. It supports `vjp`,
//! `jvp` and `vmap`, and works inside `compile`.
//!
//! All ops are lazy and take float32, float16 or bfloat16 in any layout. An input that is not
//! row-contiguous is copied first, unless the op can read it in place: `attention` reads queries,
//! keys, values and masks in place, `masked_softmax` reads its mask, and `matmul` reads most
//! transposed matrices. Sums are accumulated in float32.
//!
//! The section "Cost" of an op states how many kernels a GPU launches; a CPU calls one kernel for
//! each node. It also states how many elements the kernels move to and from memory, in the result's
//! type, unless the section names another type. An input or result counts once, and a temporary
//! counts twice. The section counts the arithmetic operations of the op's formula. If a gradient
//! keeps an array, the array stays in memory after the forward pass.

mod activation;
pub(crate) mod attention;
mod cross_entropy;
mod layer_norm;
pub(crate) mod linear;
mod linear_cross_entropy;
mod logsumexp;
mod lora;
mod masked_softmax;
mod quantize;
mod quantized_matmul;
mod quantized_weight;
mod reduce;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod rope_append_heads;
pub(crate) mod row_order;
mod softmax;

pub use activation::{
    Activation, add_relu, affine, geglu, geglu_tanh, gelu, gelu_tanh, mul_relu, relu, silu, swiglu,
};
pub use attention::{Attention, QuantizedRows, attention, attention_quantized};
pub use cross_entropy::{CrossEntropy, cross_entropy};
pub use layer_norm::layer_norm;
pub use linear::{Linear, linear, matmul, matmul_nt};
pub use linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
pub use logsumexp::{log_softmax, logsumexp, logsumexp_keepdims};
pub use lora::{LinearWeight, Lora, lora_linear};
pub use masked_softmax::{MaskedSoftmax, masked_softmax};
pub use quantize::{CpuActivations, QuantizedMode, dequantize, quantize};
pub use quantized_matmul::{
    QuantizedLinear, quantized_linear, quantized_linears, quantized_swiglu,
};
pub use quantized_weight::QuantizedWeight;
pub use reduce::{
    max, max_keepdims, mean, mean_keepdims, norm, norm_keepdims, sum, sum_keepdims, sum_of_squares,
    sum_of_squares_keepdims,
};
pub use residual_norm::{layer_norm_residual, rms_norm_residual};
pub use rms_norm::rms_norm;
pub use rope::{Offset, Rope, rope};
pub use rope_append::{KvLayout, RopeAppend, rope_append, rope_append_attention};
pub use rope_append_heads::rope_heads;
pub use row_order::{RowOrder, row_order, with_row_order};
pub use softmax::softmax;
