"""The ops of mlx-primitives on `mx.array`.

Each builds a node of MLX's graph and computes nothing. They take float32, float16 and bfloat16 in any
layout, add in float32, and work in `mx.grad`, `mx.vjp`, `mx.jvp`, `mx.vmap` and `mx.compile`. Arguments have
the names of `mlx.core.fast` or `mlx.core` where it has the op. `stream` is a stream or a device; without it
an op goes to MLX's default ones. A wrong type raises TypeError, and a shape or a number that an op refuses
raises ValueError.

A packed weight is what `mx.quantize` returns: codes, scales and biases, which only the mode "affine" has.
"""

from ._attention import (
    KvLayout,
    attention,
    attention_quantized,
    rope,
    rope_append,
    rope_append_attention,
    scaled_dot_product_attention,
)
from ._elements import (
    add_relu,
    affine,
    geglu,
    geglu_tanh,
    gelu,
    gelu_tanh,
    max,
    mean,
    mul_relu,
    norm,
    relu,
    silu,
    sum,
    sum_of_squares,
    swiglu,
)
from ._norms import (
    cross_entropy,
    layer_norm,
    layer_norm_residual,
    linear_cross_entropy,
    log_softmax,
    logsumexp,
    masked_softmax,
    rms_norm,
    rms_norm_residual,
    softmax,
)
from ._order import row_order
from ._products import (
    dequantize,
    linear,
    lora_linear,
    matmul,
    matmul_nt,
    quantize,
    quantized_embedding,
    quantized_linear,
    quantized_linears,
    quantized_matmul,
    quantized_swiglu,
)

__all__ = [
    "KvLayout",
    "add_relu",
    "affine",
    "attention",
    "attention_quantized",
    "cross_entropy",
    "dequantize",
    "geglu",
    "geglu_tanh",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "layer_norm_residual",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "lora_linear",
    "masked_softmax",
    "matmul",
    "matmul_nt",
    "max",
    "mean",
    "mul_relu",
    "norm",
    "quantize",
    "quantized_embedding",
    "quantized_linear",
    "quantized_linears",
    "quantized_matmul",
    "quantized_swiglu",
    "relu",
    "rms_norm",
    "rms_norm_residual",
    "rope",
    "rope_append",
    "rope_append_attention",
    "row_order",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "sum",
    "sum_of_squares",
    "swiglu",
]
