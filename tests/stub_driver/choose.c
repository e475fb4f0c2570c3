/* A selector for tests: the first kernel that serves the operands; reductions of 4096 and more in two pieces. */
#include "gpu_door.h"

extern const int32_t stub_kernels[][5]; /* transpose_a, transpose_b, vector_bytes, tile_k, splits */
extern const int32_t stub_kernel_count;

void vx_gpu_choose(const vx_gpu_shape *s, int64_t workspace, vx_gpu_plan *plan) {
  for (int32_t i = 0; i < stub_kernel_count; i++) {
    const int32_t *k = stub_kernels[i];
    if (k[0] != s->transpose_a || k[1] != s->transpose_b || k[2] > s->alignment) continue;
    *plan = (vx_gpu_plan){i, 1, (int32_t)s->k, 1, 1e-6f};
    if (k[4] && s->k >= 4096 && 2 * s->m * s->n * 4 <= workspace) {
      plan->splits = 2;
      plan->chunk = (int32_t)(((s->k + 1) / 2 + k[3] - 1) / k[3] * k[3]);
    }
    return;
  }
}

/* Rows past the first 512, else columns, are a region of their own, by the same plan. */
void vx_gpu_divide(const vx_gpu_shape *s, int64_t workspace, int32_t may_cut, vx_gpu_regions *regions) {
  *regions = (vx_gpu_regions){.count = 1};
  vx_gpu_choose(s, workspace, &regions->plans[0]);
  if (!may_cut || s->batch != 1 || (s->m <= 512 && s->n <= 512)) return;
  regions->count = 2;
  regions->along_n = s->m <= 512;
  regions->at = 512;
  regions->plans[1] = regions->plans[0];
}
