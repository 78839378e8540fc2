// Matrices of 8 by 8 elements. Each lane holds two neighboring elements of a row. A source that
// uses these matrices is compiled with MSL_MATRIX_LANES. This makes each lane hold the elements
// that it has in the accumulator of CUDA's mma instruction.
#pragma once

#include "msl/simdgroup.h"

#ifdef MSL_MATRIX_LANES

namespace metal {

template <typename T, int ROWS, int COLUMNS>
struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal has matrices of 8 by 8 elements");
  typedef T elements[2];
  T own[2];
  METAL_FUNC elements& thread_elements() {
    return own;
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int ROWS, int COLUMNS>
METAL_FUNC simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, ROWS, COLUMNS> made;
  made.own[0] = made.own[1] = value;
  return made;
}

} // namespace metal

namespace msl {

METAL_FUNC unsigned matrix_row() {
  return (cuda_index() & 31) / 4;
}
METAL_FUNC unsigned matrix_column() {
  return cuda_index() % 4 * 2;
}

/** Packs the two elements of a lane into a register. */
template <typename T>
METAL_FUNC unsigned both(::metal::simdgroup_matrix<T, 8, 8> matrix) {
  unsigned word;
  memcpy(&word, matrix.own, sizeof(word));
  return word;
}

/** The lane's elements of the transposed matrix. mma reads its second operand by columns. */
METAL_FUNC unsigned transposed(unsigned matrix) {
  unsigned result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(matrix));
  return result;
}

// Multiplies a 16 by 8 matrix by an 8 by 8 matrix. The last eight rows of the first matrix are
// zeros.
#define MSL_MMA(TYPE)                                                    \
  float unused[2];                                                       \
  asm volatile(                                                          \
      "mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE              \
      ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %9};"         \
      : "=f"(d.own[0]), "=f"(d.own[1]), "=f"(unused[0]), "=f"(unused[1]) \
      : "r"(both(a)), "r"(0u), "r"(transposed(both(b))), "f"(c.own[0]), "f"(c.own[1]), "f"(0.0f))

/** Each lane computes its two elements in float32. */
template <typename T>
METAL_FUNC void multiply_by_lanes(
    ::metal::simdgroup_float8x8& d,
    ::metal::simdgroup_matrix<T, 8, 8> a,
    ::metal::simdgroup_matrix<T, 8, 8> b,
    ::metal::simdgroup_float8x8 c) {
  const unsigned own_row = matrix_row() * 4;
  const unsigned own_column = cuda_index() % 4;
  float sums[2] = {c.own[0], c.own[1]};
#pragma unroll
  for (unsigned k = 0; k < 8; k++) {
    const float left = of_lane(float(a.own[k % 2]), own_row + k / 2);
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
      sums[i] = fmaf(left, of_lane(float(b.own[i]), k * 4 + own_column), sums[i]);
    }
  }
  d.own[0] = sums[0];
  d.own[1] = sums[1];
}

} // namespace msl

namespace metal {

template <typename T>
METAL_FUNC void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& matrix,
    const T* from,
    ulong elements_per_row = 8,
    vec<ulong, 2> origin = vec<ulong, 2>(0ul),
    bool transpose = false) {
  from += origin.y * elements_per_row + origin.x;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint row = ::msl::matrix_row(), column = ::msl::matrix_column() + i;
    matrix.own[i] =
        transpose ? from[column * elements_per_row + row] : from[row * elements_per_row + column];
  }
}

template <typename T>
METAL_FUNC void simdgroup_store(
    simdgroup_matrix<T, 8, 8> matrix,
    T* to,
    ulong elements_per_row = 8,
    vec<ulong, 2> origin = vec<ulong, 2>(0ul),
    bool transpose = false) {
  to += origin.y * elements_per_row + origin.x;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint row = ::msl::matrix_row(), column = ::msl::matrix_column() + i;
    (transpose ? to[column * elements_per_row + row] : to[row * elements_per_row + column]) =
        matrix.own[i];
  }
}

METAL_FUNC void simdgroup_multiply_accumulate(
    simdgroup_float8x8& d, simdgroup_float8x8 a, simdgroup_float8x8 b, simdgroup_float8x8 c) {
  ::msl::multiply_by_lanes(d, a, b, c);
}
METAL_FUNC void simdgroup_multiply_accumulate(
    simdgroup_float8x8& d, simdgroup_half8x8 a, simdgroup_half8x8 b, simdgroup_float8x8 c) {
  using namespace ::msl;
  MSL_MMA("f16");
}
METAL_FUNC void simdgroup_multiply_accumulate(
    simdgroup_float8x8& d, simdgroup_bfloat8x8 a, simdgroup_bfloat8x8 b, simdgroup_float8x8 c) {
#if __CUDA_ARCH__ >= 800
  using namespace ::msl;
  MSL_MMA("bf16");
#else
  ::msl::multiply_by_lanes(d, a, b, c);
#endif
}
template <typename T>
METAL_FUNC void simdgroup_multiply(
    simdgroup_float8x8& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}

} // namespace metal

#undef MSL_MMA

#endif // MSL_MATRIX_LANES
