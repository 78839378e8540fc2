/* From SPIR-V to what Mesa's AGX back end takes, after Mesa's own src/asahi/clc/asahi_clc.c
 * (Copyright 2023 Alyssa Rosenzweig, MIT). */
#include "lower.h"
#include <stdio.h>
#include "asahi/compiler/agx_compile.h"
#include "asahi/compiler/agx_nir.h"
#include "compiler/spirv/nir_spirv.h"
#include "nir_builder.h"

static void
say(void *data, enum nir_spirv_debug_level level, size_t offset, const char *message)
{
   if (level == NIR_SPIRV_DEBUG_LEVEL_ERROR)
      fprintf(stderr, "%s\n", message);
}

static const struct spirv_to_nir_options spirv_options = {
   .environment = NIR_SPIRV_OPENCL,
   .shared_addr_format = nir_address_format_62bit_generic,
   .global_addr_format = nir_address_format_62bit_generic,
   .temp_addr_format = nir_address_format_62bit_generic,
   .constant_addr_format = nir_address_format_64bit_global,
   .debug.func = say,
};

static void
optimize(nir_shader *nir)
{
   bool progress;
   do {
      progress = false;
      NIR_PASS(progress, nir, nir_split_var_copies);
      NIR_PASS(progress, nir, nir_split_struct_vars, nir_var_function_temp);
      NIR_PASS(progress, nir, nir_lower_var_copies);
      NIR_PASS(progress, nir, nir_lower_vars_to_ssa);
      NIR_PASS(progress, nir, nir_copy_prop);
      NIR_PASS(progress, nir, nir_opt_remove_phis);
      NIR_PASS(progress, nir, nir_lower_phis_to_scalar, true);
      NIR_PASS(progress, nir, nir_opt_dce);
      NIR_PASS(progress, nir, nir_opt_dead_cf);
      NIR_PASS(progress, nir, nir_opt_cse);
      NIR_PASS(progress, nir, nir_opt_peephole_select, 64, false, true);
      NIR_PASS(progress, nir, nir_opt_phi_precision);
      NIR_PASS(progress, nir, nir_opt_algebraic);
      NIR_PASS(progress, nir, nir_opt_constant_folding);
      NIR_PASS(progress, nir, nir_opt_deref);
      NIR_PASS(progress, nir, nir_opt_copy_prop_vars);
      NIR_PASS(progress, nir, nir_opt_undef);
      NIR_PASS(progress, nir, nir_lower_undef_to_zero);
      NIR_PASS(progress, nir, nir_opt_shrink_vectors, true);
      NIR_PASS(progress, nir, nir_opt_loop_unroll);
   } while (progress);
}

/* The uniform registers of what describes the grid. */
static unsigned
grid_place(nir_intrinsic_instr *intr)
{
   switch (intr->intrinsic) {
   case nir_intrinsic_load_num_workgroups: return GRID_AT;
   case nir_intrinsic_load_global_size: return GRID_AT + 6;
   case nir_intrinsic_load_workgroup_size: return GRID_AT + 12;
   default: return GRID_AT + 18;
   }
}

/* Arguments and the grid's size come in uniform registers, as from a driver. */
static bool
lower_input(nir_builder *b, nir_intrinsic_instr *intr, void *data)
{
   b->cursor = nir_before_instr(&intr->instr);
   unsigned bits = intr->def.bit_size;
   nir_def *def;
   switch (intr->intrinsic) {
   case nir_intrinsic_load_kernel_input: {
      if (!nir_src_is_const(intr->src[0])) {
         *(bool *)data = true;
         return false;
      }
      unsigned offset = nir_src_as_uint(intr->src[0]) + nir_intrinsic_base(intr);
      def = nir_load_preamble(b, intr->def.num_components, bits, .base = offset / 2);
      break;
   }
   case nir_intrinsic_load_num_workgroups:
   case nir_intrinsic_load_global_size:
   case nir_intrinsic_load_workgroup_size:
   case nir_intrinsic_load_num_subgroups:
      def = nir_load_preamble(b, intr->def.num_components, 32, .base = grid_place(intr));
      def = nir_u2uN(b, def, bits);
      break;
   case nir_intrinsic_load_base_global_invocation_id:
   case nir_intrinsic_load_base_workgroup_id:
      def = nir_imm_zero(b, intr->def.num_components, bits);
      break;
   case nir_intrinsic_load_work_dim:
      def = nir_imm_intN_t(b, 3, bits);
      break;
   case nir_intrinsic_load_subgroup_size:
      def = nir_imm_intN_t(b, 32, bits);
      break;
   default:
      return false;
   }
   nir_def_replace(&intr->def, def);
   return true;
}

/* An address that is an argument plus something: the argument, or -1. `offset` gets what is added
 * if that is constant, else -1. */
static int
argument_of(nir_scalar s, int64_t *offset, unsigned depth)
{
   if (nir_scalar_is_intrinsic(s)) {
      nir_intrinsic_instr *intr = nir_instr_as_intrinsic(s.def->parent_instr);
      bool argument =
         intr->intrinsic == nir_intrinsic_load_preamble && intr->def.bit_size == 64;
      return argument ? (int)(nir_intrinsic_base(intr) / 4 + s.comp) : -1;
   }
   if (depth == 0 || !nir_scalar_is_alu(s))
      return -1;
   switch (nir_scalar_alu_op(s)) {
   case nir_op_iadd: case nir_op_isub: case nir_op_mov: case nir_op_ior: case nir_op_iand:
   case nir_op_pack_64_2x32_split: case nir_op_unpack_64_2x32_split_x:
   case nir_op_unpack_64_2x32_split_y: case nir_op_vec2: case nir_op_vec4:
      break;
   default:
      return -1;
   }
   unsigned inputs = nir_op_infos[nir_scalar_alu_op(s)].num_inputs;
   for (unsigned i = 0; i < inputs; i++) {
      int argument = argument_of(nir_scalar_chase_alu_src(s, i), offset, depth - 1);
      if (argument < 0)
         continue;
      bool sum = nir_scalar_alu_op(s) == nir_op_iadd;
      nir_scalar other = nir_scalar_chase_alu_src(s, sum ? 1 - i : i);
      if (sum && *offset >= 0 && nir_scalar_is_const(other))
         *offset += nir_scalar_as_uint(other);
      else if (nir_scalar_alu_op(s) != nir_op_mov)
         *offset = -1;
      return argument;
   }
   return -1;
}

struct constants {
   uint64_t arguments;
   struct known known;
};

static bool
find_word(const struct known *known, unsigned argument, int64_t offset, uint32_t *value)
{
   for (unsigned i = 0; i < known->count; i++) {
      if (known->words[i].argument == argument && known->words[i].offset == offset) {
         *value = known->words[i].value;
         return true;
      }
   }
   return false;
}

/* Loads of constant memory may be made early, which moves them to the preamble as on Apple's own
 * compiler; known words need no load. */
static bool
lower_constant_load(nir_builder *b, nir_intrinsic_instr *intr, void *data)
{
   const struct constants *constants = data;
   int64_t offset = 0;
   if (intr->intrinsic != nir_intrinsic_load_global)
      return false;
   int argument = argument_of(nir_get_scalar(intr->src[0].ssa, 0), &offset, 24);
   if (argument < 0 || argument > 63 || !(constants->arguments >> argument & 1))
      return false;
   b->cursor = nir_before_instr(&intr->instr);
   unsigned bits = intr->def.bit_size;
   nir_def *def = nir_build_load_global_constant(
      b, intr->def.num_components, bits, intr->src[0].ssa,
      .align_mul = nir_intrinsic_align_mul(intr), .align_offset = nir_intrinsic_align_offset(intr),
      .access = ACCESS_NON_WRITEABLE | ACCESS_CAN_REORDER | ACCESS_CAN_SPECULATE);
   nir_def *parts[NIR_MAX_VEC_COMPONENTS];
   for (unsigned i = 0; i < intr->def.num_components; i++) {
      uint32_t low = 0, high = 0;
      parts[i] = nir_channel(b, def, i);
      if (offset >= 0 && bits >= 32 && find_word(&constants->known, argument, offset, &low) &&
          (bits == 32 || find_word(&constants->known, argument, offset + 4, &high)))
         parts[i] = nir_imm_intN_t(b, (uint64_t)high << 32 | low, bits);
      offset += offset >= 0 ? bits / 8 : 0;
   }
   nir_def_replace(&intr->def, nir_vec(b, parts, intr->def.num_components));
   return true;
}

static bool
count_generic(nir_builder *b, nir_intrinsic_instr *intr, void *data)
{
   if (intr->intrinsic == nir_intrinsic_load_deref || intr->intrinsic == nir_intrinsic_store_deref)
      *(unsigned *)data += util_bitcount(nir_src_as_deref(intr->src[0])->modes) > 1;
   return false;
}

/* Whether all that is called has a body: Mesa would crash otherwise. */
static bool
calls_are_known(nir_shader *nir, const char *kernel)
{
   nir_foreach_function_impl(impl, nir) {
      nir_foreach_block(block, impl) {
         nir_foreach_instr(instr, block) {
            if (instr->type == nir_instr_type_call && !nir_instr_as_call(instr)->callee->impl) {
               fprintf(stderr, "%s: no definition of %s\n", kernel,
                       nir_instr_as_call(instr)->callee->name);
               return false;
            }
         }
      }
   }
   return true;
}

nir_shader *
lower(const uint32_t *spirv, size_t count, const char *kernel, uint64_t constant,
      struct known known, unsigned *generic)
{
   nir_variable_mode memory = nir_var_shader_temp | nir_var_function_temp | nir_var_mem_global;
   /* LLVM has unrolled loops of a constant number of turns. The others stay: a turn is what is
    * looked at, and known words must not change what it is. */
   static nir_shader_compiler_options options;
   options = agx_nir_options;
   options.max_unroll_iterations = options.max_unroll_iterations_aggressive = 0;
   nir_shader *nir = spirv_to_nir(spirv, count, NULL, 0, MESA_SHADER_KERNEL, kernel,
                                  &spirv_options, &options);
   if (!nir) {
      fprintf(stderr, "%s: Mesa refuses its SPIR-V\n", kernel);
      return NULL;
   }
   nir->info.workgroup_size_variable = true;
   NIR_PASS(_, nir, nir_lower_system_values);
   nir_lower_compute_system_values_options values = {.global_id_is_32bit = true};
   NIR_PASS(_, nir, nir_lower_compute_system_values, &values);
   NIR_PASS(_, nir, nir_lower_variable_initializers, nir_var_function_temp);
   NIR_PASS(_, nir, nir_lower_returns);
   NIR_PASS(_, nir, nir_inline_functions);
   if (!calls_are_known(nir, kernel))
      return NULL;
   nir_remove_non_entrypoints(nir);
   NIR_PASS(_, nir, nir_copy_prop);
   NIR_PASS(_, nir, nir_opt_deref);
   nir_lower_constant_to_temp(nir);
   NIR_PASS(_, nir, nir_lower_variable_initializers, ~0);
   NIR_PASS(_, nir, nir_lower_vec3_to_vec4, memory | nir_var_mem_shared | nir_var_mem_constant);
   NIR_PASS(_, nir, nir_lower_vars_to_explicit_types, memory | nir_var_uniform | nir_var_mem_shared,
            glsl_get_cl_type_size_align);
   optimize(nir);
   NIR_PASS(_, nir, nir_remove_dead_variables,
            nir_var_all & ~(nir_var_uniform | nir_var_mem_shared), NULL);
   NIR_PASS(_, nir, nir_lower_vars_to_explicit_types, memory | nir_var_mem_constant,
            glsl_get_cl_type_size_align);
   NIR_PASS(_, nir, nir_lower_memcpy);
   NIR_PASS(_, nir, nir_lower_explicit_io, nir_var_mem_constant, nir_address_format_64bit_global);
   NIR_PASS(_, nir, nir_lower_explicit_io, nir_var_uniform,
            nir_address_format_32bit_offset_as_64bit);
   NIR_PASS(_, nir, nir_lower_convert_alu_types, NULL);
   NIR_PASS(_, nir, nir_opt_if, 0);
   NIR_PASS(_, nir, nir_opt_idiv_const, 16);
   optimize(nir);
   *generic = 0;
   nir_shader_intrinsics_pass(nir, count_generic, nir_metadata_all, generic);
   NIR_PASS(_, nir, nir_lower_explicit_io, nir_var_mem_shared | nir_var_mem_global,
            nir_address_format_62bit_generic);
   NIR_PASS(_, nir, nir_opt_constant_folding);
   bool indirect = false;
   NIR_PASS(_, nir, nir_shader_intrinsics_pass, lower_input, nir_metadata_control_flow, &indirect);
   if (indirect) {
      fprintf(stderr, "%s: an argument is indexed\n", kernel);
      return NULL;
   }
   optimize(nir);
   struct constants constants = {constant, known};
   NIR_PASS(_, nir, nir_shader_intrinsics_pass, lower_constant_load, nir_metadata_control_flow,
            &constants);
   optimize(nir);
   nir->info.stage = MESA_SHADER_COMPUTE;

   bool progress;
   do {
      progress = false;
      NIR_PASS(progress, nir, nir_opt_loop);
   } while (progress);
   agx_preprocess_nir(nir, NULL);
   return nir;
}

/* Mesa's own need libagx, which takes an OpenCL compiler to build; kernels have no textures. */
bool agx_nir_lower_texture_early(nir_shader *nir, bool b) { return false; }
bool agx_nir_lower_texture(nir_shader *nir) { return false; }
bool agx_nir_lower_multisampled_image_store(nir_shader *nir) { return false; }
bool agx_nir_needs_texture_crawl(nir_instr *instr) { return false; }
