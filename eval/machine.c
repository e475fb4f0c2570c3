/* What this machine can do: FMA peak and bandwidths; and how to empty its caches. Called by eval/machine.py. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
enum { LANES = 16, CHAINS = 20 };
#elif defined(__AVX__)
enum { LANES = 8, CHAINS = 12 };
#else
enum { LANES = 4, CHAINS = 12 };
#endif
typedef float vec __attribute__((vector_size(LANES * 4)));
enum { MAX_THREADS = 256, LINE = 64, PAGE = 4096, CHUNK_PAGES = 4096 };
enum work { FMA, READ, COPY, COPY_PAST_CACHES };

struct task {
    enum work work;
    int cpu;
    long repeats;
    char *buffer;
    size_t bytes;
    pthread_barrier_t *start;
    double seconds, result;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double fma_chains(long repeats) {
    vec acc[CHAINS], x, y;
    for (int lane = 0; lane < LANES; lane++) x[lane] = 0.999f, y[lane] = 1e-3f;
    for (int i = 0; i < CHAINS; i++) acc[i] = x * (float)i;
    for (long r = 0; r < repeats; r++) {
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++) acc[i] = acc[i] * x + y;
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    double sum = 0;
    for (int i = 0; i < CHAINS; i++) sum += acc[i][0];
    return sum;
}

static double read_all(const char *buffer, size_t bytes, long repeats) {
    typedef int64_t word __attribute__((vector_size(LANES * 4)));
    enum { STREAMS = 8 };
    word acc[STREAMS];
    memset(acc, 0, sizeof acc);
    for (long r = 0; r < repeats; r++) {
        const word *p = (const word *)buffer, *end = (const word *)(buffer + bytes);
        for (; p + STREAMS <= end; p += STREAMS)
#pragma GCC unroll 8
            for (int i = 0; i < STREAMS; i++) acc[i] |= p[i];
        __asm__ volatile("" ::: "memory");
    }
    double sum = 0;
    for (int i = 0; i < STREAMS; i++) sum += (double)acc[i][0];
    return sum;
}

/* Half of the buffer is copied to the other half: plain stores in caches; past them stores that bypass the caches. */
static void copy_half(char *buffer, size_t bytes, long repeats, int bypass) {
    size_t half = bytes / 2 / sizeof(vec);
    vec *from = (vec *)buffer, *to = from + half;
    for (long r = 0; r < repeats; r++) {
        if (bypass) {
#if defined(__AVX512F__)
            for (size_t i = 0; i < half; i++) __builtin_ia32_movntps512((float *)(to + i), from[i]);
#elif defined(__AVX__)
            for (size_t i = 0; i < half; i++) __builtin_ia32_movntps256((float *)(to + i), from[i]);
#else
            for (size_t i = 0; i < half; i++) to[i] = from[i];
#endif
            __sync_synchronize();
        } else {
            for (size_t i = 0; i + 4 <= half; i += 4)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) to[i + j] = from[i + j];
        }
        __asm__ volatile("" ::: "memory");
    }
}

static void *run(void *argument) {
    struct task *task = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(task->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    pthread_barrier_wait(task->start);
    double begin = now();
    switch (task->work) {
    case FMA: task->result = fma_chains(task->repeats); break;
    case READ: task->result = read_all(task->buffer, task->bytes, task->repeats); break;
    case COPY:
    case COPY_PAST_CACHES: copy_half(task->buffer, task->bytes, task->repeats, task->work == COPY_PAST_CACHES); break;
    }
    task->seconds = now() - begin;
    return NULL;
}

static double together(struct task *tasks, int threads) {
    pthread_t ids[MAX_THREADS];
    pthread_barrier_t start;
    double slowest = 0;
    pthread_barrier_init(&start, NULL, threads);
    for (int i = 0; i < threads; i++) {
        tasks[i].start = &start;
        if (pthread_create(&ids[i], NULL, run, &tasks[i])) abort();
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (tasks[i].seconds > slowest) slowest = tasks[i].seconds;
    }
    pthread_barrier_destroy(&start);
    return slowest;
}

double machine_fma(const int *cpus, int threads, long repeats) {
    struct task tasks[MAX_THREADS];
    for (int i = 0; i < threads; i++) tasks[i] = (struct task){.work = FMA, .cpu = cpus[i], .repeats = repeats};
    return 2.0 * LANES * CHAINS * repeats * threads / together(tasks, threads);
}

/* The same of the core that calls this, at the clock that it has just now. */
double machine_fma_here(long repeats) {
    double begin = now();
    volatile double done = fma_chains(repeats);
    (void)done;
    return 2.0 * LANES * CHAINS * repeats / (now() - begin);
}

/* Bytes per second (read and written) over `bytes` split among the threads; `mode`: 0 read, 1 copy, 2 copy past caches. */
double machine_stream(const int *cpus, int threads, char *buffer, size_t bytes, long repeats, int mode) {
    struct task tasks[MAX_THREADS];
    size_t part = bytes / threads / 4096 * 4096;
    for (int i = 0; i < threads; i++)
        tasks[i] = (struct task){.work = READ + mode, .cpu = cpus[i], .repeats = repeats,
                                 .buffer = buffer + i * part, .bytes = part};
    return (double)part * threads * repeats / together(tasks, threads);
}

static void flush_line(char *line) {
#if defined(__CLFLUSHOPT__)
    __builtin_ia32_clflushopt(line);
#elif defined(__SSE2__)
    __builtin_ia32_clflush(line);
#elif defined(__aarch64__)
    __asm__ volatile("dc civac, %0" ::"r"(line) : "memory");
#else
#error "no instruction is known here that writes a cache line back and drops it"
#endif
}

/* Drops every line of this process's own data (anonymous memory that is present) from all caches of all cores. */
int machine_flush(void) {
    static unsigned char present[CHUNK_PAGES];
    char text[512], rights[8];
    unsigned long begin, end, offset, inode;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return -1;
    while (fgets(text, sizeof text, maps)) {
        if (sscanf(text, "%lx-%lx %7s %lx %*s %lu", &begin, &end, rights, &offset, &inode) != 5) continue;
        if (inode || rights[0] != 'r' || rights[1] != 'w') continue;
        for (unsigned long at = begin; at < end; at += (unsigned long)CHUNK_PAGES * PAGE) {
            unsigned long bytes = end - at < (unsigned long)CHUNK_PAGES * PAGE ? end - at : (unsigned long)CHUNK_PAGES * PAGE;
            if (mincore((void *)at, bytes, present)) continue;
            for (unsigned long page = 0; page < bytes / PAGE; page++)
                if (present[page] & 1)
                    for (unsigned long line = 0; line < PAGE; line += LINE) flush_line((char *)at + page * PAGE + line);
        }
    }
    fclose(maps);
    __sync_synchronize();
    return 0;
}
