/* What agxstat counts of a kernel's machine code. */
#pragma once
#include "agx_compiler.h"

#define MOST_LOOPS 64

/* One block of counts. The cycles are those that a SIMD group of 32 threads keeps a unit busy. */
struct counts {
   unsigned instructions;
   unsigned floats; /* instructions that compute floats */
   unsigned fscib; /* floats, logic, dispatch */
   unsigned ic;    /* integers and complex functions */
   unsigned spills, fills; /* accesses to the stack */
};

struct loop {
   unsigned first, last; /* blocks */
   int parent;           /* the loop around it, or -1 */
   struct counts hot;    /* without inner loops and cold arms of branches */
};

struct statistics {
   unsigned registers, threads; /* registers of 16 bits */
   unsigned spilled_bytes;
   unsigned array_bytes; /* arrays that are indexed by variables lie on the stack too */
   unsigned nr_loops;
   struct counts total, hot; /* of everything; of what is in no loop */
   struct loop loops[MOST_LOOPS];
};
extern struct statistics statistics;

/* Of Mesa's agx_performance.c, patched. */
enum alu_unit { NONE, SCIB, IC, F32, F16 };
struct alu_timing {
   enum alu_unit unit;
   unsigned latency;
   unsigned tp; /* of IC in halves */
};
extern struct alu_timing op_timings[AGX_NUM_OPCODES];

/* Called once a kernel is machine code. */
void count_kernel(agx_context *ctx);
