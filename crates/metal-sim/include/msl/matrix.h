// <metal_matrix>: matrices in column-major order.
#pragma once

namespace metal {

template <class T, int C, int R>
struct matrix {
  typedef T element;
  typedef vec<T, R> column;
  column columns[C];

  matrix() = default;
  /** The identity matrix times a number. */
  METAL_FUNC explicit matrix(T diagonal) {
    for (int c = 0; c < C; c++) {
      columns[c] = column(T(0));
      if (c < R) {
        columns[c][c] = diagonal;
      }
    }
  }
  template <class... A, class = enable_if_t<(sizeof...(A) == C - 2)>>
  METAL_FUNC matrix(column first, column second, A... others)
      : columns{first, second, column(others)...} {}
  /** All elements, column by column. */
  template <class... A, class = enable_if_t<(sizeof...(A) == C * R - 2)>, int = 0>
  METAL_FUNC matrix(T first, T second, A... others) {
    const T all[C * R] = {first, second, T(others)...};
    for (int i = 0; i < C * R; i++) {
      columns[i / R][i % R] = all[i];
    }
  }
  template <class U>
  METAL_FUNC explicit matrix(const matrix<U, C, R>& other) {
    for (int c = 0; c < C; c++) {
      columns[c] = make<column>(other.columns[c]);
    }
  }
  METAL_FUNC column& operator[](int c) {
    return columns[c];
  }
  METAL_FUNC const column& operator[](int c) const {
    return columns[c];
  }
};

#define MSL_MATRIX_SUM(OP)                                                       \
  template <class T, int C, int R>                                               \
  METAL_FUNC matrix<T, C, R> operator OP(matrix<T, C, R> a, matrix<T, C, R> b) { \
    for (int c = 0; c < C; c++) {                                                \
      a.columns[c] = a.columns[c] OP b.columns[c];                               \
    }                                                                            \
    return a;                                                                    \
  }
MSL_MATRIX_SUM(+)
MSL_MATRIX_SUM(-)
#undef MSL_MATRIX_SUM

/** A product or a quotient with a number, which is converted to the type of the elements. */
#define MSL_MATRIX_SCALE(OP)                                              \
  template <class T, int C, int R>                                        \
  METAL_FUNC matrix<T, C, R> operator OP(                                 \
      matrix<T, C, R> a, typename matrix<T, C, R>::element factor) {      \
    for (int c = 0; c < C; c++) {                                         \
      a.columns[c] = a.columns[c] OP factor;                              \
    }                                                                     \
    return a;                                                             \
  }
MSL_MATRIX_SCALE(*)
MSL_MATRIX_SCALE(/)
#undef MSL_MATRIX_SCALE

#define MSL_MATRIX_ASSIGN(OP)                                                    \
  template <class T, int C, int R, class B>                                      \
  METAL_FUNC matrix<T, C, R>& operator OP##=(matrix<T, C, R>& a, const B& b) {   \
    return a = a OP b;                                                           \
  }
MSL_MATRIX_ASSIGN(+)
MSL_MATRIX_ASSIGN(-)
MSL_MATRIX_ASSIGN(*)
MSL_MATRIX_ASSIGN(/)
#undef MSL_MATRIX_ASSIGN

template <class T, int C, int R>
METAL_FUNC matrix<T, C, R> operator*(
    typename matrix<T, C, R>::element factor, matrix<T, C, R> a) {
  return a * factor;
}

template <class T, int C, int R>
METAL_FUNC matrix<T, C, R> operator-(matrix<T, C, R> a) {
  return a * T(-1);
}

template <class T, int C, int R>
METAL_FUNC vec<T, R> operator*(matrix<T, C, R> a, vec<T, C> x) {
  vec<T, R> sum = a.columns[0] * x[0];
  for (int c = 1; c < C; c++) {
    sum += a.columns[c] * x[c];
  }
  return sum;
}

/** A row vector times a matrix. */
template <class T, int C, int R>
METAL_FUNC vec<T, C> operator*(vec<T, R> x, matrix<T, C, R> a) {
  vec<T, C> product = {};
  for (int c = 0; c < C; c++) {
    for (int r = 0; r < R; r++) {
      product[c] += x[r] * a.columns[c][r];
    }
  }
  return product;
}

template <class T, int C, int R, int N>
METAL_FUNC matrix<T, N, R> operator*(matrix<T, C, R> a, matrix<T, N, C> b) {
  matrix<T, N, R> product;
  for (int n = 0; n < N; n++) {
    product.columns[n] = a * b.columns[n];
  }
  return product;
}

template <class T, int C, int R>
METAL_FUNC matrix<T, R, C> transpose(matrix<T, C, R> a) {
  matrix<T, R, C> turned;
  for (int c = 0; c < C; c++) {
    for (int r = 0; r < R; r++) {
      turned.columns[r][c] = a.columns[c][r];
    }
  }
  return turned;
}

} // namespace metal

#define MSL_MATRIX(T, C)                   \
  typedef metal::matrix<T, C, 2> T##C##x2; \
  typedef metal::matrix<T, C, 3> T##C##x3; \
  typedef metal::matrix<T, C, 4> T##C##x4;
#define MSL_MATRICES(T) MSL_MATRIX(T, 2) MSL_MATRIX(T, 3) MSL_MATRIX(T, 4)
MSL_MATRICES(float)
MSL_MATRICES(half)
#undef MSL_MATRICES
#undef MSL_MATRIX
