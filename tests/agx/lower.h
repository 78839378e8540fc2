/* Translates SPIR-V to the NIR that Mesa's AGX back end accepts. */
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

/* Registers that the kernel does not allocate: its arguments, then the grid. */
#define GRID_AT 160
#define RESERVED_UNIFORMS (GRID_AT + 20)

/* Returns the shader, or prints a message and returns NULL. Bit n of `constant` says that argument
 * n points to constant memory. `generic` counts the accesses in an unknown address space. */
nir_shader *lower(const uint32_t *spirv, size_t count, const char *kernel, uint64_t constant,
                  struct known known, unsigned *generic);
