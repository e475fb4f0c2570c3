/* Times L0 micro-kernels and load stages where they will run. Linked with their objects into a library of its own. */
#define _GNU_SOURCE
#include "chains.h"
#include "vortex_runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int32_t (*vx_l0)(int32_t rows, int32_t vectors, const float *a, const float *b, float *c, int64_t depth,
                         int64_t lda, int64_t ldb, int64_t ldc, int32_t last, int32_t how, const float *ahead, int64_t every,
                         int64_t beyond, float *kept);
typedef int32_t (*vx_load)(const float *source, float *target, int64_t rows, int64_t columns, int64_t source_stride,
                           int64_t target_stride);
vx_l0 const *vx_l0_layouts(void);
vx_load const *vx_load_stages(void);
int64_t vx_measured_lanes(void);

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static float *filled(size_t count) {
  float *memory = NULL;
  if (posix_memalign((void **)&memory, 4096, (count + 64) * sizeof(float)) != 0) return NULL;
  for (size_t i = 0; i < count + 64; i++) memory[i] = 1.0f;
  return memory;
}

/* Seconds of one call at `depth`, `how` of VX_ADDS and so on, operands in L1, and a single row asked for: one entry of `times` per
 * repetition. 0, or 1 when memory is out. */
int vx_time_l0(int32_t layout, int64_t rows_, int64_t vectors_, int64_t depth, int64_t how, int64_t calls, int64_t repetitions,
               double *times) {
  int32_t rows = (int32_t)rows_, vectors = (int32_t)vectors_;
  int64_t lanes = vx_measured_lanes(), width = vectors * lanes, lda = layout ? rows : depth + 16;
  float *a = filled((size_t)(rows * lda + depth * lda)), *b = filled((size_t)((depth + 16) * width)), *c = filled((size_t)(rows * width));
  int failed = !a || !b || !c;
  vx_l0 run = vx_l0_layouts()[layout];
  for (int64_t r = -1; !failed && r < repetitions; r++) {
    double start = seconds();
    for (int64_t i = 0; i < calls; i++)
      run(rows, vectors, a, b, c, depth, lda, width, width, (int32_t)lanes, (int32_t)how, b, INT64_MAX / 2, width, NULL);
    if (r >= 0) times[r] = (seconds() - start) / calls;
  }
  free(a), free(b), free(c);
  return failed;
}

/* Seconds of one multiply-add of a vector, on registers alone. */
int vx_time_multiply_add(int64_t repetitions, double *times) {
  for (int64_t r = -1; r < repetitions; r++) {
    double start = seconds(), done = multiply_adds((int)vx_measured_lanes());
    if (r >= 0) times[r] = (seconds() - start) / done;
  }
  return 0;
}

/* Seconds per element of a load stage (0 copy, 1 transpose) from rows `stride` apart into panels of `width`. */
int vx_time_load(int32_t stage, int64_t rows, int64_t width, int64_t stride, int64_t repetitions, double *times) {
  float *source = filled((size_t)((stage ? width : rows) * stride)), *target = filled((size_t)((rows + 16) * width));
  int failed = !source || !target;
  for (int64_t r = -1; !failed && r < repetitions; r++) {
    double start = seconds();
    for (int i = 0; i < 4; i++) vx_load_stages()[stage](source, target, rows, width, stride, width);
    if (r >= 0) times[r] = (seconds() - start) / (4 * rows * width);
  }
  free(source), free(target);
  return failed;
}

static void spin(void *context, int64_t index) {
  double until = seconds() + *(double *)context;
  while (seconds() < until) {
  }
}

/* Seconds that the pool adds to tasks of 5 microseconds, one for each of `threads` threads. */
int vx_time_parallel(int32_t threads, int64_t repetitions, double *times) {
  double busy = 5e-6;
  vx_set_threads(threads);
  for (int64_t r = -20; r < repetitions; r++) {
    double start = seconds();
    vx_parallel(spin, &busy, threads);
    if (r >= 0) times[r] = seconds() - start - busy;
  }
  vx_set_threads(1);
  return 0;
}
