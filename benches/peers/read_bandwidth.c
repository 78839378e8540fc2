// Measures how fast threads can read memory: `read_bandwidth THREADS MEGABYTES SECONDS`.
//
// Each thread reads a separate share, as one run or as several interleaved streams, with or without
// software prefetch, in small pages or, if the system grants them, 2 MB pages. The best form
// differs by machine, so all are measured. Prints one JSON object of GB/s to stdout; if SECONDS is 0,
// it never ends, and prints a line for each reading, "GB/s FORM".
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t vec __attribute__((vector_size(64)));

enum { VECS = 16, AHEAD = 4096 / sizeof(vec), MOST_THREADS = 1024 };

static int threads;
static size_t share; // the number of vectors that each thread reads
static const vec *memory;
vec sums[MOST_THREADS]; // global, so that the compiler cannot drop the loads

struct task {
    pthread_t thread;
    int index;
    void (*read)(const vec *, int);
};

// Always inlined, so that each form has its own loop without branches.
static inline __attribute__((always_inline)) void sweep(const vec *from, int index, size_t streams,
                                                        int prefetch) {
    vec sum[4] = {{0}};
    size_t length = share / streams;
    for (size_t i = 0; i < length; i += VECS) {
        for (size_t s = 0; s < streams; s++) {
            const vec *at = from + s * length + i;
            if (prefetch)
                for (size_t v = 0; v < VECS; v++) __builtin_prefetch(at + AHEAD + v, 0, 3);
            for (size_t v = 0; v < VECS; v++) sum[v % 4] ^= at[v];
        }
    }
    sums[index] = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

#define FORM(name, streams, prefetch) \
    static void name(const vec *from, int index) { sweep(from, index, streams, prefetch); }
FORM(plain_1, 1, 0)
FORM(plain_2, 2, 0)
FORM(plain_4, 4, 0)
FORM(plain_8, 8, 0)
FORM(prefetch_1, 1, 1)
FORM(prefetch_2, 2, 1)
FORM(prefetch_4, 4, 1)
FORM(prefetch_8, 8, 1)

static const struct {
    const char *name;
    void (*read)(const vec *, int);
} forms[] = {
    {"1 stream", plain_1},
    {"2 streams", plain_2},
    {"4 streams", plain_4},
    {"8 streams", plain_8},
    {"1 stream, prefetch", prefetch_1},
    {"2 streams, prefetch", prefetch_2},
    {"4 streams, prefetch", prefetch_4},
    {"8 streams, prefetch", prefetch_8},
};

enum { FORMS = sizeof forms / sizeof *forms };
static const char *const pages[] = {"small pages", "2 MB pages"};

static void *run(void *argument) {
    struct task *task = argument;
    task->read(memory + task->index * share, task->index);
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double pass(void (*read)(const vec *, int)) {
    static struct task tasks[MOST_THREADS];
    double start = now();
    for (int i = 0; i < threads; i++) {
        tasks[i].index = i;
        tasks[i].read = read;
        if (i && pthread_create(&tasks[i].thread, NULL, run, &tasks[i])) {
            perror("read_bandwidth: pthread_create");
            exit(1);
        }
    }
    run(&tasks[0]);
    for (int i = 1; i < threads; i++) pthread_join(tasks[i].thread, NULL);
    return now() - start;
}

// Memory for all shares, in pages of one size, which stays allocated.
static const vec *filled(size_t bytes, int huge) {
    size_t align = 2 << 20, mapped = bytes + 2 * align; // prefetch may look past the end
    char *area = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        perror("read_bandwidth: mmap");
        exit(1);
    }
    char *start = (char *)(((uintptr_t)area + align - 1) / align * align);
#ifdef MADV_HUGEPAGE
    madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    memset(start, 1, bytes);
    return (const vec *)start;
}

int main(int argc, char **argv) {
    if (argc != 4 || (threads = atoi(argv[1])) < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: read_bandwidth THREADS MEGABYTES SECONDS\n");
        return 2;
    }
    size_t unit = 8 * VECS; // enough for the most streams, each in whole steps
    share = (size_t)atoll(argv[2]) * 1000000 / sizeof(vec) / threads / unit * unit;
    size_t bytes = share * threads * sizeof(vec);
    double seconds = atof(argv[3]) / (2 * FORMS);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (seconds <= 0) {
        const vec *areas[2] = {filled(bytes, 0), filled(bytes, 1)};
        for (size_t i = 0;; i = (i + 1) % (2 * FORMS)) {
            memory = areas[i / FORMS];
            double took = pass(forms[i % FORMS].read);
            printf("%.2f %s, %s\n", bytes / took * 1e-9, forms[i % FORMS].name, pages[i / FORMS]);
        }
    }
    printf("{");
    for (int huge = 0; huge < 2; huge++) {
        memory = filled(bytes, huge);
        for (size_t f = 0; f < FORMS; f++) {
            double best = 1e9, until = now() + seconds;
            do {
                double took = pass(forms[f].read);
                if (took < best) best = took;
            } while (now() < until);
            const char *comma = huge || f ? ", " : "";
            printf("%s\"%s, %s\": %.2f", comma, forms[f].name, pages[huge], bytes / best * 1e-9);
        }
    }
    printf("}\n");
    return 0;
}
