// <metal_pack>
#pragma once

namespace metal {

#define MSL_PACK(NAME, N, BITS, WORD, LOW, SCALE, SIGNED)                          \
  METAL_FUNC WORD pack_float_to_##NAME(float##N v) {                               \
    WORD word = 0;                                                                 \
    for (int i = 0; i < N; i++) {                                                  \
      const float unit = min(max(float(v[i]), LOW), 1.0f);                         \
      const WORD field = WORD(WORD(int(rint(unit * SCALE))) & ((1u << BITS) - 1)); \
      word = WORD(word | WORD(field << (BITS * i)));                               \
    }                                                                              \
    return word;                                                                   \
  }                                                                                \
  METAL_FUNC float##N unpack_##NAME##_to_float(WORD word) {                        \
    float##N v;                                                                    \
    for (int i = 0; i < N; i++) {                                                  \
      const uint field = (uint(word) >> (BITS * i)) & ((1u << BITS) - 1);          \
      const int value = SIGNED ? int(field << (32 - BITS)) >> (32 - BITS) : int(field); \
      v[i] = max(float(value) / SCALE, LOW);                                       \
    }                                                                              \
    return v;                                                                      \
  }
MSL_PACK(unorm4x8, 4, 8, uint, 0.0f, 255.0f, false)
MSL_PACK(snorm4x8, 4, 8, uint, -1.0f, 127.0f, true)
MSL_PACK(unorm2x16, 2, 16, uint, 0.0f, 65535.0f, false)
MSL_PACK(snorm2x16, 2, 16, uint, -1.0f, 32767.0f, true)
#undef MSL_PACK

} // namespace metal
