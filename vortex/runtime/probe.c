/* Measures what a virtual machine hides: clock, multiply-add rate, read bandwidths, time to hand work to a thread.
 *
 *     probe LANES[DOTS] CPU[,CPU...] DRAM_BYTES [ONE_BYTES:ALL_BYTES ...]
 *
 * LANES is 16 (AVX-512) or 8 (AVX2); DOTS, after 16, are the dot instructions there are: b for vdpbf16ps, v for
 * vpdpbusd, B and V for those of AMX's tiles; one thread is pinned to each CPU; each ONE:ALL pair gives the working set
 * of a cache for one core alone and for each core when all read. Prints lines "name one all": rates per second
 * (hand_off, walk: seconds; pages: how many, and their bytes) of one core alone and of all together, 0 where not measured.
 * Of tiles nothing is printed where Linux grants none. The vector code is assembly text, so it builds whatever the
 * compiler's own flags allow; LANES and DOTS say what may run.
 */
#define _GNU_SOURCE
#include "chains.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, ROUNDS = 4, SHORT_WINDOWS = 5, MOST_FIGURES = 16, PASSES = 4, BLOCK = 1 << 18, MIN_BYTES = 4096 };
static const double WALK = 1.5e-9;   /* seconds of a load that had its translation looked up, over those of one that had not: 2 to 20 */
static const double WINDOW = 0.0025; /* seconds of one observation: far above a clock read, far below a second in all */
/* of one that reads what is in a cache: neighbours on a core leave it for a tenth of a millisecond more often than for longer. Of reads
 * from L2 on an Emerald Rapids the best window of half a second was 0.93 of the best there was, of windows of WINDOW 0.84 */
static const double SHORT_WINDOW = 0.0001;
static const double ALIKE = 0.95; /* least share of the best of a rate that is as good */
/* seconds in which figures are taken while half of their windows are worse than that: all of this program takes at most one */
static const double LONGEST_RATES = 0.3, LONGEST_CACHES = 0.22, LONGEST_MEMORY = 0.05;

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int lanes, threads, cpus[MAX_THREADS];

#define BFLOAT16(n) "vdpbf16ps %%zmm12, %%zmm12, %%zmm" n "\n\t"
#define INT8(n) "vpdpbusd %%zmm12, %%zmm12, %%zmm" n "\n\t"
#define READ(r, n, at) "vmovups " at "(%0), %%" r n "\n\t"
#define READ8(r, a, b, c, d, e, f, g, h)                                                                         \
  READ(r, "0", a) READ(r, "1", b) READ(r, "2", c) READ(r, "3", d) READ(r, "4", e) READ(r, "5", f) READ(r, "6", g) \
  READ(r, "7", h)

typedef double (*Kernel)(const char *data, size_t bytes); /* work done by one call */

static double fma_rate(const char *data, size_t bytes) {
  (void)data, (void)bytes;
  return multiply_adds(lanes);
}

static double fma_chain(const char *data, size_t bytes) {
  (void)data, (void)bytes;
  long n = 5000;
  if (lanes == 16)
    __asm__ volatile(LOOP(REP4(ACC("zmm", "0"))));
  else
    __asm__ volatile(LOOP(REP4(ACC("ymm", "0"))));
  return 5000.0 * 4;
}

#define DOT_KERNELS(name, one)                                 \
  static double name##_rate(const char *data, size_t bytes) {  \
    (void)data, (void)bytes;                                   \
    long n = 2000;                                             \
    __asm__ volatile(LOOP(REP4(TWELVE_OF(one))));              \
    return 2000.0 * 4 * 12;                                    \
  }                                                            \
  static double name##_chain(const char *data, size_t bytes) { \
    (void)data, (void)bytes;                                   \
    long n = 5000;                                             \
    __asm__ volatile(LOOP(REP4(one("0"))));                    \
    return 5000.0 * 4;                                         \
  }
DOT_KERNELS(bfloat16, BFLOAT16)
DOT_KERNELS(int8, INT8)

/* Six chains cover latency over cycles of a tile's product (52 / 16); registers 6 and 7 are its operands. */
#define SIX_OF(dot)                                                                          \
  dot " %%tmm7, %%tmm6, %%tmm0\n\t" dot " %%tmm7, %%tmm6, %%tmm1\n\t" dot " %%tmm7, %%tmm6, %%tmm2\n\t" \
  dot " %%tmm7, %%tmm6, %%tmm3\n\t" dot " %%tmm7, %%tmm6, %%tmm4\n\t" dot " %%tmm7, %%tmm6, %%tmm5\n\t"
#define TILE_LOOP(body)                                                                                      \
  "ldtilecfg (%1)\n\t" ZERO("0") ZERO("1") ZERO("2") ZERO("3") ZERO("4") ZERO("5") ZERO("6") ZERO("7") "1:\n\t" \
  body "dec %0\n\tjnz 1b\n\ttilerelease" : "+r"(n) : "r"(whole) : "cc"
#define ZERO(n) "tilezero %%tmm" n "\n\t"
/* What `ldtilecfg` reads: palette 1; eight tiles of 64 bytes by 16 rows (Intel SDM vol. 1, chapter 18). */
static const uint8_t whole[64] = {
  [0] = 1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
  [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16,
};

#define TILE_KERNELS(name, dot)                                       \
  static double name##_rate(const char *data, size_t bytes) {         \
    (void)data, (void)bytes;                                          \
    long n = 500;                                                     \
    __asm__ volatile(TILE_LOOP(SIX_OF(dot)));                         \
    return 500.0 * 6;                                                 \
  }                                                                   \
  static double name##_chain(const char *data, size_t bytes) {        \
    (void)data, (void)bytes;                                          \
    long n = 500;                                                     \
    __asm__ volatile(TILE_LOOP(REP4(dot " %%tmm7, %%tmm6, %%tmm0\n\t"))); \
    return 500.0 * 4;                                                 \
  }
TILE_KERNELS(bfloat16_tiles, "tdpbf16ps")
TILE_KERNELS(int8_tiles, "tdpbssd")

static int tiles_granted(void) {
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* Linux, Documentation/arch/x86/xstate.rst */
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

/* A 64-bit multiply takes 3 cycles on every Intel core since Nehalem and every AMD core since Zen (uops.info). */
static double multiply_chain(const char *data, size_t bytes) {
  (void)data, (void)bytes;
  long n = 5000, x = 1;
  __asm__ volatile("1:\n\t" REP4("imul %1, %1\n\t") "dec %0\n\tjnz 1b" : "+r"(n), "+r"(x)::"cc");
  return 5000.0 * 4 * 3;
}

static double read_bytes(const char *data, size_t bytes) {
  const char *end = data + bytes;
  if (lanes == 16)
    __asm__ volatile("1:\n\t" READ8("zmm", "0", "64", "128", "192", "256", "320", "384", "448") "add $512, %0\n\t"
                     "cmp %1, %0\n\tjb 1b\n\tvzeroupper"
                     : "+r"(data) : "r"(end) : VECTORS, "cc", "memory");
  else
    __asm__ volatile("1:\n\t" READ8("ymm", "0", "32", "64", "96", "128", "160", "192", "224") "add $256, %0\n\t"
                     "cmp %1, %0\n\tjb 1b\n\tvzeroupper"
                     : "+r"(data) : "r"(end) : VECTORS, "cc", "memory");
  return (double)bytes;
}

/* The task that all threads take part in; the counters count turns. */
static struct { Kernel kernel; size_t bytes, slice; double least; char *data; int walks; } task;
static _Thread_local size_t reached; /* of data that is walked through: some caches keep more than one observation reads */
static atomic_long start, ready, done;
static double rates[MAX_THREADS];
static int disturbances[MAX_THREADS];

static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set); /* may be refused: then the figures are only a little noisier */
}

/* Over `least` seconds, and more until all of the data has been passed PASSES times, or WINDOW is over. */
static double observe(Kernel kernel, const char *data, size_t bytes, double least, int *disturbed) {
  double work = 0, cpu = seconds(CLOCK_THREAD_CPUTIME_ID), begin = seconds(CLOCK_MONOTONIC), end;
  size_t at = task.walks ? reached : 0, passed = 0;
  do {
    for (size_t seen = 0; seen < BLOCK;) { /* a clock read costs as much as a pass over a small cache: amortize it */
      size_t step = bytes - at < BLOCK ? bytes - at : BLOCK;
      work += kernel(data + at, step);
      at = at + step < bytes ? at + step : 0;
      seen += step, passed += step;
    }
    end = seconds(CLOCK_MONOTONIC);
  } while (end - begin < (passed < PASSES * bytes ? WINDOW : least));
  reached = at;
  *disturbed = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu < 0.97 * (end - begin); /* another process had the core */
  return work / (end - begin);
}

static void wait_until(atomic_long *counter, long value) {
  for (long spins = 0; atomic_load_explicit(counter, memory_order_acquire) < value; spins++) {
    __asm__ volatile("pause");
    if (spins > 2000) sched_yield();
  }
}

static void take_part(int id, long turn) {
  char *data = task.data + (size_t)id * task.slice;
  atomic_fetch_add_explicit(&ready, 1, memory_order_acq_rel);
  wait_until(&ready, turn * threads); /* all windows open together */
  if (task.kernel)
    rates[id] = observe(task.kernel, data, task.bytes, task.least, &disturbances[id]);
  else
    memset(data, 0, task.slice); /* the first touch places the page near the thread */
}

/* Idle threads sleep, or the figures of one core alone would be those of a busy machine. */
static void *worker(void *argument) {
  int id = (int)(intptr_t)argument;
  const struct timespec nap = {0, 20000};
  pin(cpus[id]);
  for (long turn = 1;; turn++) {
    while (atomic_load_explicit(&start, memory_order_acquire) < turn) nanosleep(&nap, NULL);
    take_part(id, turn);
    atomic_fetch_add_explicit(&done, 1, memory_order_acq_rel);
  }
  return NULL;
}

static double together(Kernel kernel, size_t bytes, double least, int *disturbed) {
  static long turn;
  double sum = 0;
  task.kernel = kernel;
  task.bytes = bytes;
  task.least = least;
  atomic_store_explicit(&start, ++turn, memory_order_release);
  take_part(0, turn);
  wait_until(&done, turn * (threads - 1));
  *disturbed = 0;
  for (int id = 0; id < threads; id++) sum += rates[id], *disturbed |= disturbances[id];
  return sum;
}

typedef struct {
  const char *name;
  Kernel kernel;
  size_t bytes[2]; /* for one core, and for each of all together, or 0 */
  double least;    /* seconds of an observation */
  double best[2];
  int tries[2], clean[2], alike[2]; /* observations, those in which no process had the core, those as good as the best */
} figure;

static void try_once(figure *f, int all) {
  int disturbed;
  double rate = all ? together(f->kernel, f->bytes[1], f->least, &disturbed)
                    : observe(f->kernel, task.data, f->bytes[0], f->least, &disturbed);
  f->tries[all]++;
  f->clean[all] += !disturbed;
  if (f->best[all] < ALIKE * rate) f->alike[all] = 0;
  if (f->best[all] < rate) f->best[all] = rate;
  f->alike[all] += rate >= ALIKE * f->best[all];
}

static int windows_a_turn(const figure *f) { return f->least < WINDOW ? SHORT_WINDOWS : 1; }

/* Whatever disturbs a measurement only slows it: the best is what counts, once half of all are about as good. */
static int settled(const figure *f, int all) {
  return f->clean[all] >= ROUNDS * windows_a_turn(f) && 2 * f->alike[all] >= f->tries[all];
}

static figure in_turns[MOST_FIGURES];
static int figures;

static void later(const char *name, Kernel kernel, size_t one_bytes, size_t all_bytes, double least) {
  in_turns[figures++] = (figure){.name = name, .kernel = kernel, .bytes = {one_bytes, all_bytes}, .least = least};
}

/* All that are to be reported, in turns, until all are settled: another guest that holds a core for tens of milliseconds slows some rounds
 * of each, not all of one, and one that holds it longer is seen at some of them. */
static void report_in_turns(double longest) {
  double end = seconds(CLOCK_MONOTONIC) + longest;
  int left;
  do {
    left = 0;
    for (int i = 0; i < figures; i++)
      for (int all = 0; all < (in_turns[i].bytes[1] ? 2 : 1); all++) {
        for (int windows = windows_a_turn(&in_turns[i]); windows; windows--) try_once(&in_turns[i], all);
        left |= !settled(&in_turns[i], all);
      }
  } while (left && seconds(CLOCK_MONOTONIC) < end);
  for (int i = 0; i < figures; i++) printf("%s %.6e %.6e\n", in_turns[i].name, in_turns[i].best[0], in_turns[i].best[1]);
  figures = 0;
}

/* Of arithmetic, by one core or by all as well. */
static void compute_later(const char *name, Kernel kernel, int all) {
  later(name, kernel, BLOCK, all ? BLOCK : 0, WINDOW / SHORT_WINDOWS);
}

/* Seconds of a load, the best of a few passes over `count` lines `apart` bytes apart in an order no prefetcher follows, each load without
 * the one before. Lines are spread over the sets of L1. */
static double touched(const char *data, uint32_t *order, uint32_t count, uint32_t apart) {
  uint32_t shuffled = 12345, sum = 0;
  for (uint32_t i = 0; i < count; i++) order[i] = i * apart + (apart > 64 ? i * 7 % 64 * 64 : 0);
  for (uint32_t i = count - 1; i > 0; i--) {
    shuffled = shuffled * 1664525u + 1013904223u;
    uint32_t j = (uint32_t)((uint64_t)shuffled * (i + 1) >> 32), held = order[i];
    order[i] = order[j], order[j] = held;
  }
  double best = 1;
  for (int pass = 0; pass < 24; pass++) {
    double begin = seconds(CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < count; i++) sum += *(const volatile char *)(data + order[i]);
    double each = (seconds(CLOCK_MONOTONIC) - begin) / count;
    if (each < best) best = each;
  }
  return best;
}

/* Pages, of those whose number was tried, of which a core finds all translations again, though huge pages are asked for: a host may have
 * small ones. Of more, each load waits for a walk through the page tables of guest and host: how long, where the most are read. */
static void report_pages(size_t bytes) {
  enum { PAGE = 4096, LEAST = 512, TRIES = 11 };
  static uint32_t order[LEAST << TRIES / 2];
  uint32_t kept = 0;
  double walk = 0;
  for (int i = 0; i < TRIES; i++) {
    uint32_t count = (LEAST << i / 2) / 2 * (uint32_t)(2 + i % 2);
    if ((size_t)count * PAGE > bytes) break;
    double longer = touched(task.data, order, count, PAGE) - touched(task.data, order, count, 64);
    if (walk == 0 && longer <= WALK) kept = count;
    else walk = longer;
  }
  printf("pages %.6e %.6e\nwalk %.6e 0\n", (double)kept, (double)PAGE, walk);
}

static atomic_long ball;

static void *partner(void *argument) {
  pin(cpus[threads > 1 ? 1 : 0]);
  for (long turn = 1; turn > 0; turn += 2) {
    wait_until(&ball, turn);
    if (atomic_load(&ball) == INT64_MAX) break;
    atomic_store_explicit(&ball, turn + 1, memory_order_release);
  }
  return argument;
}

static void report_hand_off(void) {
  enum { TURNS = 100, LEAST_ROUNDS = 20 }; /* a host that takes a core away spends the whole time in one round */
  pthread_t other;
  double best = 1, end = seconds(CLOCK_MONOTONIC) + 0.02;
  long turn = 1;
  if (pthread_create(&other, NULL, partner, NULL)) exit(4);
  for (int round = 0; round < LEAST_ROUNDS || seconds(CLOCK_MONOTONIC) < end; round++) {
    double begin = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < TURNS; i++, turn += 2) {
      atomic_store_explicit(&ball, turn, memory_order_release);
      wait_until(&ball, turn + 1);
    }
    double each = (seconds(CLOCK_MONOTONIC) - begin) / TURNS;
    if (each < best) best = each;
  }
  atomic_store(&ball, INT64_MAX);
  pthread_join(other, NULL);
  printf("hand_off %.6e %.6e\n", best, best);
}

int main(int count, char **arguments) {
  static const char *const names[] = {"cache1", "cache2", "cache3", "cache4", "cache5"};
  enum { CACHES = sizeof names / sizeof *names };
  if (count < 4) return 2;
  lanes = atoi(arguments[1]);
  for (char *word = strtok(arguments[2], ","); word && threads < MAX_THREADS; word = strtok(NULL, ","))
    cpus[threads++] = atoi(word);
  size_t total = strtoull(arguments[3], NULL, 10);
  if ((lanes != 8 && lanes != 16) || !threads || total < (size_t)threads * MIN_BYTES) return 2;
  task.slice = total / (size_t)threads / MIN_BYTES * MIN_BYTES;
  total = task.slice * (size_t)threads;
  task.data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (task.data == MAP_FAILED) return 3;
  madvise(task.data, total, MADV_HUGEPAGE);

  pin(cpus[0]);
  report_hand_off(); /* before the other threads exist, which would compete for the cores */
  for (int id = 1; id < threads; id++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)id)) return 4;
    pthread_detach(thread);
  }
  int disturbed;
  together(NULL, 0, WINDOW, &disturbed);
  compute_later("fma", fma_rate, 1);
  compute_later("fma_chain", fma_chain, 0);
  compute_later("clock", multiply_chain, 0);
  if (lanes == 16 && strchr(arguments[1], 'b')) {
    compute_later("bfloat16", bfloat16_rate, 0);
    compute_later("bfloat16_chain", bfloat16_chain, 0);
  }
  if (lanes == 16 && strchr(arguments[1], 'v')) {
    compute_later("int8", int8_rate, 0);
    compute_later("int8_chain", int8_chain, 0);
  }
  int granted = lanes == 16 && strpbrk(arguments[1], "BV") && tiles_granted();
  if (granted && strchr(arguments[1], 'B')) {
    compute_later("bfloat16_tiles", bfloat16_tiles_rate, 0);
    compute_later("bfloat16_tiles_chain", bfloat16_tiles_chain, 0);
  }
  if (granted && strchr(arguments[1], 'V')) {
    compute_later("int8_tiles", int8_tiles_rate, 0);
    compute_later("int8_tiles_chain", int8_tiles_chain, 0);
  }
  report_in_turns(LONGEST_RATES);
  for (int i = 4; i < count; i++) {
    char *rest;
    size_t one = strtoull(arguments[i], &rest, 10) / MIN_BYTES * MIN_BYTES;
    size_t all = *rest ? strtoull(rest + 1, NULL, 10) / MIN_BYTES * MIN_BYTES : 0;
    if (i - 4 >= CACHES || one < MIN_BYTES || one > total || all < MIN_BYTES || all > task.slice) return 2;
    later(names[i - 4], read_bytes, one, all, SHORT_WINDOW);
  }
  report_in_turns(LONGEST_CACHES);
  report_pages(total);
  task.walks = 1;
  later("dram", read_bytes, total, task.slice, WINDOW);
  report_in_turns(LONGEST_MEMORY);
  return 0;
}
