// <metal_simdgroup>. In each function, every lane publishes its value and, if there is one, its
// fill value. Then the lane computes its result from the values of the active lanes.
#pragma once

#define MSL_UNWATCHED __attribute__((noinline, no_sanitize("kernel-address")))

namespace metal {

template <class T>
using scalar_t = conditional_t<is_vector_v<T>, element_t<T>, T>;
/** The types that MSL allows: numbers of up to 32 bits, and vectors of such numbers. */
template <class T>
constexpr bool simd_type_v =
    is_arithmetic_v<scalar_t<T>> && !is_same_v<scalar_t<T>, bool> && sizeof(scalar_t<T>) <= 4;
template <class T>
struct __is_valid_simdgroup_type : bool_constant<simd_type_v<T>> {};
template <class T>
using if_simd = enable_if_t<simd_type_v<T>>;

constexpr uint simd_width = 32;
constexpr uint slot_bytes = 32;

/** The values of an exchange, as one lane sees them. */
template <class T>
struct Lanes {
  const uchar* slots;
  uint active;
  uint me;

  METAL_FUNC Lanes(T value) : me(msl_lane()) {
    static_assert(sizeof(T) <= slot_bytes, "a lane shows at most 32 bytes");
    slots = msl_simd_exchange(&value, sizeof(T), &active);
  }
  METAL_FUNC bool has(uint lane) const {
    return lane < simd_width && (active >> lane & 1) != 0;
  }
  MSL_UNWATCHED static T read(const uchar* slots, uint lane) {
    T value;
    __builtin_memcpy(&value, slots + slot_bytes * lane, sizeof(T));
    return value;
  }
  METAL_FUNC T at(uint lane) const {
    if (!has(lane)) {
      msl_inactive_lane(lane);
    }
    return read(slots, lane & (simd_width - 1));
  }
};

/**
 * Combines adjacent lanes, then adjacent pairs and so on. Every lane combines in the same order.
 */
template <class T, class F>
MSL_UNWATCHED T reduce_lanes(const uchar* slots, uint active) {
  T values[simd_width];
  bool present[simd_width];
  for (uint i = 0; i < simd_width; i++) {
    present[i] = active >> i & 1;
    __builtin_memcpy(&values[i], slots + slot_bytes * i, sizeof(T));
  }
  for (uint step = 1; step < simd_width; step *= 2) {
    for (uint i = 0; i < simd_width; i += 2 * step) {
      if (present[i] && present[i + step]) {
        values[i] = F::apply(values[i], values[i + step]);
      } else if (present[i + step]) {
        values[i] = values[i + step];
        present[i] = true;
      }
    }
  }
  return values[0];
}

template <class T, class F>
MSL_UNWATCHED T scan_lanes(const uchar* slots, uint active, uint count, T total) {
  for (uint i = 0; i < count; i++) {
    if (active >> i & 1) {
      T value;
      __builtin_memcpy(&value, slots + slot_bytes * i, sizeof(T));
      total = F::apply(total, value);
    }
  }
  return total;
}

template <class T, class F>
METAL_FUNC T simd_reduce(T value) {
  Lanes<T> lanes(value);
  return reduce_lanes<T, F>(lanes.slots, lanes.active);
}

#define MSL_REDUCTION(NAME, EXPRESSION)                     \
  struct Combine_##NAME {                                   \
    template <class T>                                      \
    METAL_FUNC static T apply(T a, T b) {                   \
      return T(EXPRESSION);                                 \
    }                                                       \
  };                                                        \
  template <class T, class = if_simd<T>>                    \
  METAL_FUNC T simd_##NAME(T value) {                       \
    return simd_reduce<T, Combine_##NAME>(value);           \
  }
MSL_REDUCTION(sum, a + b)
MSL_REDUCTION(product, a * b)
MSL_REDUCTION(max, metal::max(a, b))
MSL_REDUCTION(min, metal::min(a, b))
template <class T>
METAL_FUNC auto as_bits(T a) {
  if constexpr (is_floating_point_v<T>) {
    return uint(a);
  } else {
    return a;
  }
}
MSL_REDUCTION(and, as_bits(a) & as_bits(b))
MSL_REDUCTION(or, as_bits(a) | as_bits(b))
MSL_REDUCTION(xor, as_bits(a) ^ as_bits(b))
#undef MSL_REDUCTION

#define MSL_SCAN(NAME, COMBINE, SELF, NEUTRAL)                                             \
  template <class T, class = if_simd<T>>                                                   \
  METAL_FUNC T simd_prefix_##NAME(T value) {                                               \
    Lanes<T> lanes(value);                                                                 \
    return scan_lanes<T, COMBINE>(lanes.slots, lanes.active, lanes.me + SELF, T(NEUTRAL)); \
  }
MSL_SCAN(inclusive_sum, Combine_sum, 1, 0)
MSL_SCAN(exclusive_sum, Combine_sum, 0, 0)
MSL_SCAN(inclusive_product, Combine_product, 1, 1)
MSL_SCAN(exclusive_product, Combine_product, 0, 1)
#undef MSL_SCAN

template <class T, class = if_simd<T>>
METAL_FUNC T simd_broadcast(T value, ushort lane) {
  return Lanes<T>(value).at(lane);
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_broadcast_first(T value) {
  Lanes<T> lanes(value);
  return lanes.at(uint(__builtin_ctz(lanes.active)));
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle(T value, ushort lane) {
  return Lanes<T>(value).at(lane);
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_xor(T value, ushort mask) {
  Lanes<T> lanes(value);
  return lanes.at(lanes.me ^ mask);
}
/** A lane keeps its value if the lane that it would read is outside the SIMD group. */
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_down(T value, ushort delta) {
  Lanes<T> lanes(value);
  return lanes.me + delta < simd_width ? lanes.at(lanes.me + delta) : value;
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_up(T value, ushort delta) {
  Lanes<T> lanes(value);
  return lanes.me >= delta ? lanes.at(lanes.me - delta) : value;
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_rotate_down(T value, ushort delta) {
  Lanes<T> lanes(value);
  return lanes.at((lanes.me + delta) % simd_width);
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_rotate_up(T value, ushort delta) {
  Lanes<T> lanes(value);
  return lanes.at((lanes.me + simd_width - delta % simd_width) % simd_width);
}
/**
 * Shuffles within blocks of `modulo` lanes. A lane that would read outside its block wraps around
 * in the block, and takes the `fill` of the lane that it reaches.
 */
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_and_fill_down(T value, T fill, ushort delta, ushort modulo = 32) {
  Lanes<T> lanes(value);
  Lanes<T> fills(fill);
  const uint place = lanes.me % modulo;
  const uint block = lanes.me - place;
  return place + delta < modulo ? lanes.at(block + place + delta)
                                : fills.at(block + (place + delta) % modulo);
}
template <class T, class = if_simd<T>>
METAL_FUNC T simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo = 32) {
  Lanes<T> lanes(value);
  Lanes<T> fills(fill);
  const uint place = lanes.me % modulo;
  const uint block = lanes.me - place;
  return place >= delta ? lanes.at(block + place - delta)
                        : fills.at(block + (place + modulo - delta) % modulo);
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  uint active;
  METAL_FUNC explicit simd_vote(vote_t v = 0, uint there = ~0u) : votes(v), active(there) {}
  METAL_FUNC explicit operator vote_t() const {
    return votes;
  }
  METAL_FUNC bool all() const {
    return (votes & active) == active;
  }
  METAL_FUNC bool any() const {
    return (votes & active) != 0;
  }
};

METAL_FUNC simd_vote simd_ballot(bool vote) {
  Lanes<uint> lanes(vote ? 1u << msl_lane() : 0u);
  return simd_vote(reduce_lanes<uint, Combine_or>(lanes.slots, lanes.active), lanes.active);
}
METAL_FUNC simd_vote simd_active_threads_mask() {
  Lanes<uint> lanes(0u);
  return simd_vote(lanes.active, lanes.active);
}
METAL_FUNC bool simd_any(bool vote) {
  return simd_ballot(vote).any();
}
METAL_FUNC bool simd_all(bool vote) {
  return simd_ballot(vote).all();
}
METAL_FUNC bool simd_is_first() {
  Lanes<uint> lanes(0u);
  return lanes.me == uint(__builtin_ctz(lanes.active));
}

} // namespace metal
