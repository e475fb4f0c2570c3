/* What a nest asks for before it needs it. Not in the nests: what they would keep for it in each turn takes 1 % of short tiles. */
#include "vortex_runtime.h"

#define LINE_BYTES 64

int32_t vortex_ask(const float *first, int64_t rows, int64_t columns, int64_t stride, int32_t is_near) {
  for (int64_t row = 0; row < rows; row++) {
    const char *at = (const char *)(first + row * stride), *end = (const char *)(first + row * stride + columns);
    for (at -= (uintptr_t)at % LINE_BYTES; at < end; at += LINE_BYTES)
      if (is_near)
        __builtin_prefetch(at, 0, 3);
      else
        __builtin_prefetch(at, 0, 2);
  }
  return 0;
}
