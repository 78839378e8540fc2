/* Counts cycles and accesses to the stack: of the whole kernel, and for each loop of the path that
 * the kernel was written for. */
#include <stdlib.h>
#include <string.h>
#include "agxstat.h"

struct statistics statistics;

static void
count(struct counts *c, const agx_instr *I)
{
   const struct alu_timing *timing = &op_timings[I->op];
   c->instructions++;
   c->floats += timing->unit == F32 || timing->unit == F16;
   if (timing->unit == IC) {
      c->ic += 2 * timing->tp;
      c->fscib += 1; /* which dispatches it */
   } else {
      c->fscib += timing->tp;
   }
   c->spills += I->op == AGX_OPCODE_STACK_STORE;
   c->fills += I->op == AGX_OPCODE_STACK_LOAD;
}

/* What an arm of a branch is there for: floats, the slow unit, memory. */
static bool
is_work(const agx_instr *I)
{
   switch (I->op) {
   case AGX_OPCODE_DEVICE_LOAD:
   case AGX_OPCODE_DEVICE_STORE:
   case AGX_OPCODE_LOCAL_LOAD:
   case AGX_OPCODE_LOCAL_STORE:
   case AGX_OPCODE_SHUFFLE:
   case AGX_OPCODE_SIMD_REDUCE:
      return true;
   default:
      return op_timings[I->op].unit != NONE && op_timings[I->op].unit != SCIB;
   }
}

static unsigned
work_of(agx_block *block)
{
   unsigned n = 0;
   agx_foreach_instr_in_block(block, I)
      n += is_work(I);
   return n;
}

/* An arm of a branch: its blocks, what work they do, whether they loop. */
struct arm {
   unsigned first, end, work;
   bool loops;
};

static struct arm
arm_of(agx_block **blocks, const bool *cold, unsigned first, unsigned end)
{
   struct arm arm = {.first = first, .end = end};
   for (unsigned i = first; i < end; i++) {
      arm.work += cold[i] ? 0 : work_of(blocks[i]);
      agx_foreach_successor(blocks[i], successor)
         arm.loops |= successor->index <= i;
   }
   return arm;
}

/* By rule of thumb: of `if` and `else` that both work, the shorter one is what the kernel was written
 * for; an `if` alone is taken. The other arm is cold. Where only one arm loops, it is that one which
 * matters to who looks at loops, and the other to who looks at what is in none. */
static void
find_cold(agx_block **blocks, unsigned nr, bool loops_matter, bool *cold)
{
   for (int i = nr - 1; i >= 0; i--) {
      agx_block *b = blocks[i];
      if (!b->successors[0] || !b->successors[1])
         continue;
      unsigned then = b->successors[0]->index, other = b->successors[1]->index;
      if (then <= b->index || other <= then)
         continue; /* the end of a loop */
      agx_block *end = blocks[other - 1];
      if (!end->successors[0] || end->successors[1])
         continue; /* a jump */
      unsigned merge = end->successors[0]->index;
      if (merge <= other || merge >= nr || !blocks[merge - 1]->successors[0] ||
          blocks[merge - 1]->successors[0]->index != merge)
         continue;
      struct arm a = arm_of(blocks, cold, then, other);
      struct arm c = arm_of(blocks, cold, other, merge);
      if (a.work == 0 || c.work == 0)
         continue;
      bool first = a.loops != c.loops ? a.loops == loops_matter : a.work <= c.work;
      const struct arm *left = first ? &c : &a;
      memset(cold + left->first, true, left->end - left->first);
   }
}

/* A back edge closes a loop; all those to one header are one loop. */
static void
find_loops(agx_context *ctx)
{
   agx_foreach_block(ctx, b) {
      agx_foreach_successor(b, header) {
         if (header->index > b->index)
            continue;
         unsigned i = 0;
         while (i < statistics.nr_loops && statistics.loops[i].first != header->index)
            i++;
         if (i == MOST_LOOPS)
            continue;
         statistics.nr_loops = MAX2(statistics.nr_loops, i + 1);
         statistics.loops[i].first = header->index;
         statistics.loops[i].last = MAX2(statistics.loops[i].last, b->index);
      }
   }
   for (unsigned i = 0; i < statistics.nr_loops; i++) {
      struct loop *me = &statistics.loops[i];
      me->parent = -1;
      for (unsigned j = 0; j < statistics.nr_loops; j++) {
         const struct loop *other = &statistics.loops[j];
         /* Headers differ, so the loop around begins before. */
         bool around = other->first < me->first && other->last >= me->last;
         if (around && (me->parent < 0 || statistics.loops[me->parent].first < other->first))
            me->parent = j;
      }
   }
}

static struct loop *
innermost(unsigned block)
{
   struct loop *found = NULL;
   for (unsigned i = 0; i < statistics.nr_loops; i++) {
      struct loop *l = &statistics.loops[i];
      if (l->first <= block && block <= l->last && (!found || l->first > found->first))
         found = l;
   }
   return found;
}

void
count_kernel(agx_context *ctx)
{
   memset(&statistics, 0, sizeof(statistics));
   unsigned nr = 0;
   agx_foreach_block(ctx, b)
      b->index = nr++;
   agx_block **blocks = calloc(nr, sizeof(*blocks));
   bool *cold[2] = {calloc(nr, sizeof(bool)), calloc(nr, sizeof(bool))};
   agx_foreach_block(ctx, b)
      blocks[b->index] = b;
   find_loops(ctx);
   find_cold(blocks, nr, false, cold[false]);
   find_cold(blocks, nr, true, cold[true]);
   agx_foreach_block(ctx, b) {
      struct loop *loop = innermost(b->index);
      agx_foreach_instr_in_block(b, I) {
         count(&statistics.total, I);
         if (!cold[loop != NULL][b->index])
            count(loop ? &loop->hot : &statistics.hot, I);
      }
   }
   free(blocks);
   free(cold[false]);
   free(cold[true]);
   statistics.registers = ctx->max_reg + 1;
   statistics.threads = agx_occupancy_for_register_count(statistics.registers).max_threads;
   statistics.array_bytes = ctx->spill_base_B;
   statistics.spilled_bytes = ctx->scratch_size_B - ctx->spill_base_B;
}
