#include "attention_matrix.h"
#include "attention_vector.h"

// vector: few rows, their number in registers; matrix: any number, the most fragments of eight
// features. q4 and q8 read quantized keys and values.
#define ATTENTION_KERNELS(DTYPE, T)                                              \
  MLXP_KERNEL("mlxp_attention_vector_1_" DTYPE, attention_vector<T, 0, 1>)       \
  MLXP_KERNEL("mlxp_attention_vector_4_" DTYPE, attention_vector<T, 0, 4>)       \
  MLXP_KERNEL("mlxp_attention_vector_8_" DTYPE, attention_vector<T, 0, 8>)       \
  MLXP_KERNEL("mlxp_attention_vector_1_q4_" DTYPE, attention_vector<T, 4, 1>)    \
  MLXP_KERNEL("mlxp_attention_vector_4_q4_" DTYPE, attention_vector<T, 4, 4>)    \
  MLXP_KERNEL("mlxp_attention_vector_8_q4_" DTYPE, attention_vector<T, 4, 8>)    \
  MLXP_KERNEL("mlxp_attention_vector_1_q8_" DTYPE, attention_vector<T, 8, 1>)    \
  MLXP_KERNEL("mlxp_attention_vector_4_q8_" DTYPE, attention_vector<T, 8, 4>)    \
  MLXP_KERNEL("mlxp_attention_vector_8_q8_" DTYPE, attention_vector<T, 8, 8>)    \
  MLXP_KERNEL("mlxp_attention_matrix_64_" DTYPE, attention_matrix<T, 0, 8>)      \
  MLXP_KERNEL("mlxp_attention_matrix_128_" DTYPE, attention_matrix<T, 0, 16>)    \
  MLXP_KERNEL("mlxp_attention_matrix_256_" DTYPE, attention_matrix<T, 0, 32>)    \
  MLXP_KERNEL("mlxp_attention_matrix_64_q4_" DTYPE, attention_matrix<T, 4, 8>)   \
  MLXP_KERNEL("mlxp_attention_matrix_128_q4_" DTYPE, attention_matrix<T, 4, 16>) \
  MLXP_KERNEL("mlxp_attention_matrix_256_q4_" DTYPE, attention_matrix<T, 4, 32>) \
  MLXP_KERNEL("mlxp_attention_matrix_64_q8_" DTYPE, attention_matrix<T, 8, 8>)   \
  MLXP_KERNEL("mlxp_attention_matrix_128_q8_" DTYPE, attention_matrix<T, 8, 16>) \
  MLXP_KERNEL("mlxp_attention_matrix_256_q8_" DTYPE, attention_matrix<T, 8, 32>) \
  MLXP_KERNEL("mlxp_attention_combine_" DTYPE, attention_combine<T>)

MLXP_EACH_DTYPE(ATTENTION_KERNELS)
