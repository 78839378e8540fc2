/* From SPIR-V to what Mesa's AGX back end takes. */
#pragma once
#include "nir.h"

/* A 32-bit word of a kernel's constant argument that has a known value. */
struct word {
   const char *name, *kernel; /* of the parameters, and whose they are */
   unsigned argument, offset;
   uint32_t value;
};

struct known {
   unsigned count;
   const struct word *words;
};

/* Registers that are not the kernel's own: arguments, then the grid. */
#define GRID_AT 160
#define RESERVED_UNIFORMS (GRID_AT + 20)

/* The shader, or NULL after a message. Bit n of `constant` says that argument n points to constant
 * memory. `generic` gets the number of accesses whose address space stayed unknown. */
nir_shader *lower(const uint32_t *spirv, size_t count, const char *kernel, uint64_t constant,
                  struct known known, unsigned *generic);
