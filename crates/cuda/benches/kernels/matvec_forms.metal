// Products of one row with 2, 4 or 8 rows of packed weights for each SIMD group, which the bench
// `kernels` times.
#include "quantized_matmul.metal"

#define FORM(NAME, ROWS)                          \
  MLXP_KERNEL(                                    \
      "mlxp_quantized_matmul_" NAME "_bfloat16", \
      quantized_matvec<bfloat, 4, INTEGERS, 1, ROWS>)

FORM("of2", 2)
FORM("of8", 8)
