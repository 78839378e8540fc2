#include "attention_matrix.h"
#include "attention_vector.h"

// The names of kernels. vector: for blocks of up to 1, 4 or 8 rows, and up to 64, 128 or 256
// features. matrix: for any number of rows with exactly this number of contiguous features, and no
// mask. matrix_any: for up to this number of features with any stride, with or without a mask. q4
// and q8 read quantized keys and values.
#define ATTENTION_VECTOR_KERNELS(NAME, DTYPE, T, BITS)                                   \
  MLXP_KERNEL("mlxp_attention_vector_64_1" NAME DTYPE, attention_vector<T, BITS, 1, 2>)  \
  MLXP_KERNEL("mlxp_attention_vector_64_4" NAME DTYPE, attention_vector<T, BITS, 4, 2>)  \
  MLXP_KERNEL("mlxp_attention_vector_64_8" NAME DTYPE, attention_vector<T, BITS, 8, 2>)  \
  MLXP_KERNEL("mlxp_attention_vector_128_1" NAME DTYPE, attention_vector<T, BITS, 1, 4>) \
  MLXP_KERNEL("mlxp_attention_vector_128_4" NAME DTYPE, attention_vector<T, BITS, 4, 4>) \
  MLXP_KERNEL("mlxp_attention_vector_128_8" NAME DTYPE, attention_vector<T, BITS, 8, 4>) \
  MLXP_KERNEL("mlxp_attention_vector_256_1" NAME DTYPE, attention_vector<T, BITS, 1, 8>) \
  MLXP_KERNEL("mlxp_attention_vector_256_4" NAME DTYPE, attention_vector<T, BITS, 4, 8>) \
  MLXP_KERNEL("mlxp_attention_vector_256_8" NAME DTYPE, attention_vector<T, BITS, 8, 8>)
#define ATTENTION_KERNELS(DTYPE, T)                                                          \
  ATTENTION_VECTOR_KERNELS("_", DTYPE, T, 0)                                                 \
  ATTENTION_VECTOR_KERNELS("_q4_", DTYPE, T, 4)                                              \
  ATTENTION_VECTOR_KERNELS("_q8_", DTYPE, T, 8)                                              \
  MLXP_KERNEL("mlxp_attention_matrix_64_" DTYPE, attention_matrix<T, 0, 64, true>)           \
  MLXP_KERNEL("mlxp_attention_matrix_80_" DTYPE, attention_matrix<T, 0, 80, true>)           \
  MLXP_KERNEL("mlxp_attention_matrix_96_" DTYPE, attention_matrix<T, 0, 96, true>)           \
  MLXP_KERNEL("mlxp_attention_matrix_128_" DTYPE, attention_matrix<T, 0, 128, true>)         \
  MLXP_KERNEL("mlxp_attention_matrix_256_" DTYPE, attention_matrix<T, 0, 256, true>)         \
  MLXP_KERNEL("mlxp_attention_matrix_any_64_" DTYPE, attention_matrix<T, 0, 64, false>)      \
  MLXP_KERNEL("mlxp_attention_matrix_any_128_" DTYPE, attention_matrix<T, 0, 128, false>)    \
  MLXP_KERNEL("mlxp_attention_matrix_any_256_" DTYPE, attention_matrix<T, 0, 256, false>)    \
  MLXP_KERNEL("mlxp_attention_matrix_any_64_q4_" DTYPE, attention_matrix<T, 4, 64, false>)   \
  MLXP_KERNEL("mlxp_attention_matrix_any_128_q4_" DTYPE, attention_matrix<T, 4, 128, false>) \
  MLXP_KERNEL("mlxp_attention_matrix_any_256_q4_" DTYPE, attention_matrix<T, 4, 256, false>) \
  MLXP_KERNEL("mlxp_attention_matrix_any_64_q8_" DTYPE, attention_matrix<T, 8, 64, false>)   \
  MLXP_KERNEL("mlxp_attention_matrix_any_128_q8_" DTYPE, attention_matrix<T, 8, 128, false>) \
  MLXP_KERNEL("mlxp_attention_matrix_any_256_q8_" DTYPE, attention_matrix<T, 8, 256, false>) \
  MLXP_KERNEL("mlxp_attention_combine_" DTYPE, attention_combine<T>)

MLXP_EACH_DTYPE(ATTENTION_KERNELS)
