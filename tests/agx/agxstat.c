/* Prints, for each kernel of a SPIR-V module, what its machine code for Apple's G13 costs: a line of
 * JSON.
 *
 *    agxstat KERNELS.spv [KNOWN]
 *
 * KNOWN has lines `NAME KERNEL ARGUMENT OFFSET WORD`, values of 32-bit words of constant arguments.
 * For each of its names the kernel is compiled once more with those, so that the branches which they
 * decide are gone. The name of a kernel in the module ends with __c and a hexadecimal mask of the
 * arguments that point to constant memory. */
#include "agxstat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "compiler/glsl_types.h"
#include "compiler/spirv/spirv.h"
#include "lower.h"

#define MOST_WORDS 4096
#define MOST_KERNELS 1024

static struct word words[MOST_WORDS];
static unsigned nr_words;

static void
read_words(const char *path)
{
   FILE *f = fopen(path, "r");
   if (!f) {
      perror(path);
      exit(1);
   }
   char name[512], kernel[512];
   struct word w;
   while (fscanf(f, "%511s %511s %u %u %u", name, kernel, &w.argument, &w.offset, &w.value) == 5) {
      if (nr_words == MOST_WORDS) {
         fprintf(stderr, "%s: more than %u words\n", path, MOST_WORDS);
         exit(1);
      }
      w.name = strdup(name);
      w.kernel = strdup(kernel);
      words[nr_words++] = w;
   }
   fclose(f);
}

static uint32_t *
read_module(const char *path, size_t *count)
{
   FILE *f = fopen(path, "rb");
   if (!f) {
      perror(path);
      exit(1);
   }
   fseek(f, 0, SEEK_END);
   size_t size = ftell(f);
   rewind(f);
   uint32_t *module = malloc(size);
   if (fread(module, 1, size, f) != size) {
      perror(path);
      exit(1);
   }
   fclose(f);
   *count = size / 4;
   return module;
}

/* The names of the module's kernels. LLVM forbids to fuse multiplications with additions unless told
 * otherwise, which then concerns all of them: that is taken out. */
static unsigned
find_kernels(uint32_t *module, size_t count, const char **names)
{
   unsigned nr = 0;
   for (size_t i = 5; i < count && module[i] >> 16;) {
      unsigned length = module[i] >> 16, op = module[i] & 0xffff;
      if (op == SpvOpExecutionMode && module[i + 2] == SpvExecutionModeContractionOff) {
         for (unsigned k = 0; k < length; k++)
            module[i + k] = 1u << 16 | SpvOpNop;
      }
      if (op == SpvOpEntryPoint && nr < MOST_KERNELS)
         names[nr++] = (const char *)&module[i + 3];
      i += length;
   }
   return nr;
}

static void
print_counts(const char *name, const struct counts *c)
{
   printf("\"%s\":{\"instructions\":%u,\"floats\":%u,\"fscib\":%u,\"ic\":%u,\"spills\":%u,\"fills\":%u}", name,
          c->instructions, c->floats, c->fscib, c->ic, c->spills, c->fills);
}

static void
print_statistics(const char *kernel, unsigned length, const char *name, unsigned generic)
{
   const struct statistics *s = &statistics;
   printf("{\"kernel\":\"%.*s\",\"known\":\"%s\",\"generic\":%u,\"registers\":%u,\"threads\":%u,"
          "\"spilled\":%u,\"arrays\":%u,",
          length, kernel, name, generic, s->registers, s->threads, s->spilled_bytes,
          s->array_bytes);
   print_counts("total", &s->total);
   printf(",");
   print_counts("hot", &s->hot);
   printf(",\"loops\":[");
   for (unsigned i = 0; i < s->nr_loops; i++) {
      printf("%s{\"parent\":%d,", i ? "," : "", s->loops[i].parent);
      print_counts("hot", &s->loops[i].hot);
      printf("}");
   }
   printf("]}\n");
   fflush(stdout);
}

/* Compiles a kernel and prints what it costs. */
static bool
compile(const uint32_t *module, size_t count, const char *kernel, struct known known)
{
   const char *mask = strstr(kernel, "__c");
   unsigned generic = 0, length = mask ? mask - kernel : strlen(kernel);
   nir_shader *nir = lower(module, count, kernel, mask ? strtoull(mask + 3, NULL, 16) : 0, known,
                           &generic);
   if (!nir)
      return false;
   struct agx_shader_key key = {
      .promote_constants = true,
      .reserved_preamble = RESERVED_UNIFORMS,
      .has_scratch = true,
   };
   struct agx_shader_part out = {0};
   agx_compile_shader_nir(nir, &key, NULL, &out);
   print_statistics(kernel, length, known.count ? known.words[0].name : "", generic);
   free(out.binary);
   ralloc_free(nir);
   return true;
}

int
main(int argc, char **argv)
{
   if (argc < 2) {
      fprintf(stderr, "usage: agxstat KERNELS.spv [KNOWN]\n");
      return 2;
   }
   if (argc > 2)
      read_words(argv[2]);
   size_t count;
   uint32_t *module = read_module(argv[1], &count);
   const char *names[MOST_KERNELS];
   unsigned nr = find_kernels(module, count, names);
   bool all = true;
   glsl_type_singleton_init_or_ref();
   for (unsigned k = 0; k < nr; k++) {
      const char *mask = strstr(names[k], "__c");
      unsigned length = mask ? mask - names[k] : strlen(names[k]);
      all &= compile(module, count, names[k], (struct known){0});
      for (unsigned first = 0; first < nr_words;) {
         unsigned end = first + 1;
         while (end < nr_words && !strcmp(words[end].name, words[first].name) &&
                !strcmp(words[end].kernel, words[first].kernel))
            end++;
         if (strlen(words[first].kernel) == length && !strncmp(words[first].kernel, names[k], length))
            all &= compile(module, count, names[k], (struct known){end - first, words + first});
         first = end;
      }
   }
   glsl_type_singleton_decref();
   return all ? 0 : 1;
}
