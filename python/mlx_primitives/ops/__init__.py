"""The ops of mlx-primitives on `mx.array`.

Each op adds a node to MLX's graph, and computes nothing until the result is evaluated. Ops take float32, float16
and bfloat16 in any layout, and add in float32. They work in `mx.grad`, `mx.vjp`, `mx.jvp`, `mx.vmap` and
`mx.compile`. If `mlx.core.fast` or `mlx.core` has the op, the arguments have the same names. `stream` is a stream
or a device; the default is MLX's default stream. An argument of a wrong type raises TypeError. A shape or a number
that an op does not support raises ValueError.

A packed weight is a weight that `mx.quantize` has quantized: codes, scales and, with the mode "affine", biases.
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
