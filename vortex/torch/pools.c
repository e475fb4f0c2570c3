/* What networks do with pixels between convolutions, channels last, on PyTorch's threads: the largest of each window, and channels copied
 * beside others. Inductor's loops divide whole numbers for every vector where extents vary, and share images out, not rows: one image is
 * one thread's. */
#include "integers.h"
#include "tensors.h"

#include <string.h>

enum { ALONE = 16384 }; /* floats that one thread is done with before others have begun */

static vx_fork_join host;

void borrow(vx_fork_join lent) { host = lent; }

/* All tasks, which handle so many floats together. */
static void share(void (*task)(void *, int64_t), void *context, int64_t tasks, int64_t floats) {
  if (floats > ALONE && tasks > 1) {
    vx_share_out(host, 0, task, context, tasks);
    return;
  }
  for (int64_t index = 0; index < tasks; index++) task(context, index);
}

/* Whether channels lie side by side: else they do in `copy`, which `x` shows then; 0 where there is no room for one. */
static int channels_beside(tensor given, DLTensor *x, tensor *copy) {
  int64_t strides[4];
  *copy = NULL;
  if (x->shape[1] <= 1 || x->strides[1] == 1) return 1;
  channels_last(x->shape, strides);
  return (*copy = copied(given, x, strides)) != NULL;
}

typedef struct {
  const float *from;
  float *to;
  int64_t height, width, channels, rows, columns; /* of x, and of the result */
  int64_t tall, wide, down, across, above, before; /* windows, what is between them, and padding */
  int64_t image, row, pixel;                       /* elements from one to the next, of x */
} pool;

/* Compilers settle what becomes of operations on vectors before they make copies of a function for other processors (target_clones), and keep
 * vectors that are longer than a processor's in memory. */
#define POOL_ROW pool_row_in_lines
#define POOL_LANES 16
#define POOL_ISA "avx512f"
#include "pool_row.h"
#define POOL_ROW pool_row_in_halves
#define POOL_LANES 8
#define POOL_ISA "avx2"
#include "pool_row.h"
#define POOL_ROW pool_row_in_quarters
#define POOL_LANES 4
#define POOL_ISA "sse2"
#include "pool_row.h"

static void (*pool_row(void))(void *, int64_t) {
  return __builtin_cpu_supports("avx512f") ? pool_row_in_lines : __builtin_cpu_supports("avx2") ? pool_row_in_halves : pool_row_in_quarters;
}

/* max_pool of x [batch, channels, height, width], channels last; each window sees some of x. */
EXPORT int32_t aoti_torch_cpu_pool(tensor x, int64_t tall, int64_t wide, int64_t down, int64_t across, int64_t above, int64_t before,
                                   tensor *result) {
  DLTensor in, out;
  int64_t strides[4];
  tensor copy;
  *result = NULL;
  if (!view(x, &in) || in.ndim != 4 || !channels_beside(x, &in, &copy)) return 1;
  const int64_t shape[] = {in.shape[0], in.shape[1], (in.shape[2] + 2 * above - tall) / down + 1, (in.shape[3] + 2 * before - wide) / across + 1};
  channels_last(shape, strides);
  if ((*result = made(4, shape, strides, &out))) {
    pool p = {in.data, out.data, in.shape[2], in.shape[3], in.shape[1], shape[2], shape[3], tall, wide, down, across, above, before,
                    in.strides[0], in.strides[2], in.strides[3]};
    share(pool_row(), &p, shape[0] * shape[2], shape[0] * shape[1] * shape[2] * shape[3] * 4);
  }
  drop(copy);
  return *result == NULL;
}

typedef struct {
  const DLTensor *from, *to;
} copying;

static void copy_row(void *context, int64_t unit) {
  const copying *c = context;
  const int64_t *shape = c->to->shape, *of = c->from->strides, *at = c->to->strides, image = unit / shape[2], row = unit % shape[2];
  const float *from = (const float *)c->from->data + image * of[0] + row * of[2];
  float *to = (float *)c->to->data + image * at[0] + row * at[2];
  for (int64_t x = 0; x < shape[3]; x++) memcpy(to + x * at[3], from + x * of[3], (size_t)shape[1] * sizeof(float));
}

int copy_pixels(tensor given, DLTensor *from, const DLTensor *to) {
  tensor copy;
  if (!channels_beside(given, from, &copy)) return 0;
  copying c = {from, to};
  share(copy_row, &c, to->shape[0] * to->shape[2], to->shape[0] * to->shape[1] * to->shape[2] * to->shape[3]);
  drop(copy);
  return 1;
}
