// <metal_simdgroup_matrix>: 8x8 matrices. Each lane stores two adjacent elements of a row. MSL does
// not define the layout, but some kernels rely on the layout of Apple GPUs, which this file uses.
#pragma once

namespace metal {

#ifdef MSL_GPU
typedef uint matrix_index; // Apple's compiler has an instruction for this type
#else
typedef ulong matrix_index; // does not wrap around, so accesses out of bounds are found
#endif

METAL_FUNC uint matrix_row(uint lane) {
  return (lane / 4 & 4) + lane / 2 % 4;
}
METAL_FUNC uint matrix_column(uint lane) {
  return (lane / 4 & 2) * 2 + lane % 2 * 2;
}

template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  typedef vec<T, 2> storage_type;
  storage_type elements;

  simdgroup_matrix() = default;
  /** In MSL, this constructor puts the value on the diagonal and zeros elsewhere. */
  METAL_FUNC explicit simdgroup_matrix(T diagonal) {
    const uint row = matrix_row(msl_lane());
    const uint column = matrix_column(msl_lane());
    elements[0] = row == column ? diagonal : T(0);
    elements[1] = row == column + 1 ? diagonal : T(0);
  }
  METAL_FUNC storage_type& thread_elements() {
    return elements;
  }
  METAL_FUNC const storage_type& thread_elements() const {
    return elements;
  }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R = C>
METAL_FUNC simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> filled;
  filled.elements[0] = value;
  filled.elements[1] = value;
  return filled;
}

template <class T, int C, int R, class Pointer>
METAL_FUNC void simdgroup_load(
    simdgroup_matrix<T, C, R>& matrix,
    Pointer from,
    ulong per_row = 8,
    ulong2 origin = ulong2(0),
    bool transposed = false) {
  const matrix_index row = matrix_row(msl_lane());
  for (uint i = 0; i < 2; i++) {
    const matrix_index column = matrix_column(msl_lane()) + i;
    const matrix_index y = matrix_index(origin.y) + (transposed ? column : row);
    const matrix_index x = matrix_index(origin.x) + (transposed ? row : column);
    matrix.elements[i] = from[y * matrix_index(per_row) + x];
  }
}

template <class T, int C, int R, class Pointer>
METAL_FUNC void simdgroup_store(
    simdgroup_matrix<T, C, R> matrix,
    Pointer to,
    ulong per_row = 8,
    ulong2 origin = ulong2(0),
    bool transposed = false) {
  const matrix_index row = matrix_row(msl_lane());
  for (uint i = 0; i < 2; i++) {
    const matrix_index column = matrix_column(msl_lane()) + i;
    const matrix_index y = matrix_index(origin.y) + (transposed ? column : row);
    const matrix_index x = matrix_index(origin.x) + (transposed ? row : column);
    to[y * matrix_index(per_row) + x] = matrix.elements[i];
  }
}

#ifdef MSL_GPU
/**
 * Has the cost of the hardware's matrix product, but does not compute the product. The product
 * keeps a SIMD group's float unit busy for 16 cycles. Two polynomials with 16 steps in all take the
 * same time and registers, and no optimizer folds them.
 */
template <class D, class A, class B, class S>
METAL_FUNC void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<S, 8, 8> start) {
  float x = float(start.elements[0]);
  float y = float(start.elements[1]);
  for (uint k = 0; k < 8; k++) {
    x = __builtin_fmaf(x, float(a.elements[k & 1]), float(b.elements[0]));
    y = __builtin_fmaf(y, float(a.elements[k & 1]), float(b.elements[1]));
  }
  d.elements[0] = D(x);
  d.elements[1] = D(y);
}
#else
/** The lane that holds element (row, column): the inverse of `matrix_row` and `matrix_column`. */
METAL_FUNC uint matrix_lane(uint row, uint column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + column / 2 % 2;
}

/** Element (row, column), read from the values that the lanes published. */
template <class T>
MSL_UNWATCHED T matrix_at(const uchar* slots, uint row, uint column) {
  T value;
  const uint at = slot_bytes * matrix_lane(row, column) + sizeof(T) * (column % 2);
  __builtin_memcpy(&value, slots + at, sizeof(T));
  return value;
}

template <class A, class B>
MSL_UNWATCHED float matrix_dot(const uchar* a, const uchar* b, uint row, uint column, float sum) {
  for (uint k = 0; k < 8; k++) {
    sum += float(matrix_at<A>(a, row, k)) * float(matrix_at<B>(b, k, column));
  }
  return sum;
}

/** Products are summed in float in the order of k; the GPU's own order is not documented. */
template <class D, class A, class B, class S>
METAL_FUNC void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<S, 8, 8> start) {
  Lanes<vec<A, 2>> left(a.elements);
  Lanes<vec<B, 2>> right(b.elements);
  const uint row = matrix_row(left.me);
  for (uint i = 0; i < 2; i++) {
    const uint column = matrix_column(left.me) + i;
    d.elements[i] = D(matrix_dot<A, B>(
        left.slots, right.slots, row, column, float(start.elements[i])));
  }
}

#endif

template <class D, class A, class B>
METAL_FUNC void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)));
}

template <class T>
METAL_FUNC simdgroup_matrix<T, 8, 8> operator*(
    simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> product;
  simdgroup_multiply(product, a, b);
  return product;
}

} // namespace metal
