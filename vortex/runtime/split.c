/* A reduction in parts: each is a product over its own stretch of k, and they are added up in the order of the parts. */
#include "vortex_runtime.h"

#if VX_FLIPS
typedef uint32_t sum; /* of bytes, modulo 2^32 */
#else
typedef float sum;
#endif

#define LINE 16
#define IN_C (vx_apart ? 0 : 1) /* parts that go to C */

/* Parts start on cache lines of a row of k, if the row does. */
int64_t vx_part_depth(int64_t k, int64_t splits) {
  return splits > 1 ? rounded(quotient_up(k, splits), LINE) : k;
}

float *vx_parts(const vx_call *call, int64_t splits) {
  return vx_shared_scratch((size_t)((splits - IN_C) * call->m * call->n) * sizeof(float));
}

vx_part vx_part_of(const vx_call *call, float *parts, int64_t splits, int64_t index) {
  int64_t depth = vx_part_depth(call->k, splits), first = index * depth;
  if (first > call->k) first = call->k; /* a part may be empty: its sums are zeros */
  vx_part part = {first, call->k - first < depth ? call->k - first : depth, call->c, call->ldc, call->accumulate};
  if (index >= IN_C && parts) {
    part.c = parts + (index - IN_C) * call->m * call->n;
    part.ldc = call->n;
    part.accumulate = 0;
  }
  return part;
}

void vx_add_parts(const vx_call *call, float *parts, int64_t splits) {
  if (splits < 2) return;
  vx_store store = vx_store_of(call);
  for (int64_t i = 0; i < call->m; i++) {
    sum *restrict row = (sum *)(vx_apart ? parts + i * call->n : call->c + i * call->ldc);
    for (int64_t index = 1; index < splits; index++) {
      const sum *restrict part = (const sum *)parts + ((index - IN_C) * call->m + i) * call->n;
      for (int64_t j = 0; j < call->n; j++) row[j] += part[j];
    }
    if (vx_store_stage) vortex_store(&store, row, call->n, i, 0, 1, call->n);
  }
}
