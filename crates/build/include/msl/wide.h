// Accesses to packed vectors. An access moves a whole vector at once if its address is a multiple
// of its size, and otherwise one element at a time. All threads of a warp usually take the same
// branch.
#pragma once

#include "msl/types.h"

namespace msl {

template <unsigned BYTES>
struct Word {
  typedef void type; // no access instruction has this size
};
template <>
struct Word<2> {
  typedef unsigned short type;
};
template <>
struct Word<4> {
  typedef unsigned int type;
};
template <>
struct Word<8> {
  typedef ::uint2 type;
};
template <>
struct Word<16> {
  typedef ::uint4 type;
};

template <typename T>
constexpr bool is_void = is_same<T, void>::value;

template <typename PACKED>
struct Value {
  typedef PACKED type;
};
template <typename PACKED>
struct Value<const PACKED> {
  typedef PACKED type;
};

/** Reads a packed vector that has only the alignment of its element. */
template <typename PACKED>
METAL_FUNC PACKED read_apart(const PACKED* at) {
  return *at;
}

template <typename PACKED>
METAL_FUNC void write_apart(PACKED* at, PACKED value) {
  *at = value;
}

/** A packed vector in memory. */
template <typename PACKED>
struct Place {
  typedef typename Value<PACKED>::type value_type;
  typedef typename Word<sizeof(value_type)>::type word;
  PACKED* at;

  METAL_FUNC bool is_aligned() const {
    return (reinterpret_cast<unsigned long>(at) & (sizeof(value_type) - 1)) == 0;
  }
  METAL_FUNC operator value_type() const {
    if constexpr (!is_void<word>) {
      if (is_aligned()) {
        const word all = *reinterpret_cast<const word*>(at);
        value_type value;
        memcpy(&value, &all, sizeof(value));
        return value;
      }
    }
    return read_apart(static_cast<const value_type*>(at));
  }
  METAL_FUNC Place& operator=(value_type value) {
    if constexpr (!is_void<word>) {
      if (is_aligned()) {
        word all;
        memcpy(&all, &value, sizeof(value));
        *reinterpret_cast<word*>(at) = all;
        return *this;
      }
    }
    write_apart(at, value);
    return *this;
  }
  METAL_FUNC auto operator[](unsigned i) const {
    return (*at)[i];
  }
};

/** A pointer to packed vectors. */
template <typename PACKED>
struct Wide {
  PACKED* at;

  template <typename T>
  explicit METAL_FUNC Wide(T* from) : at((PACKED*)from) {}
  METAL_FUNC Place<PACKED> operator*() const {
    return {at};
  }
  template <typename I>
  METAL_FUNC Place<PACKED> operator[](I i) const {
    return {at + i};
  }
  METAL_FUNC operator PACKED*() const {
    return at;
  }
};

} // namespace msl
