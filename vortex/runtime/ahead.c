/* What a nest asks for before it needs it. Not in the nests: what they would keep for it in each turn takes 1 % of short tiles. */
#include "vortex_runtime.h"

#define LINE_BYTES 64

static void ask(const char *first, int64_t rows, int64_t bytes, int64_t stride, int32_t is_near) {
  for (int64_t row = 0; row < rows; row++) {
    const char *at = first + row * stride, *end = at + bytes;
    for (at -= (uintptr_t)at % LINE_BYTES; at < end; at += LINE_BYTES)
      if (is_near)
        __builtin_prefetch(at, 0, 3);
      else
        __builtin_prefetch(at, 0, 2);
  }
}

int32_t vortex_ask(const float *first, int64_t rows, int64_t columns, int64_t stride, int32_t is_near) {
  int64_t item = (int64_t)sizeof(float);
  ask((const char *)first, rows, columns * item, stride * item, is_near);
  return 0;
}

int32_t vortex_ask_stored(const vx_store *store, int64_t row, int64_t column, int64_t rows, int64_t columns, int32_t is_near) {
  int64_t item = vx_out.bits / 8, stride = store->row_stride * item;
  if (!store->past) ask((const char *)store->out + row * stride + column * item, rows, columns * item, stride, is_near);
  return 0;
}
