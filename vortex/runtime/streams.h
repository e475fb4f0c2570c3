/* Outputs that no cache has room for, and of which whole lines are written at once: they go past the caches, where they are not read before
 * they are written and drive nothing out. Where the caches have room, who reads them next finds them there. */
#ifndef VORTEX_STREAMS_H
#define VORTEX_STREAMS_H

#include "vortex_runtime.h"

/* Floats of a cache line. */
#define LINE_FLOATS 16

static inline int vx_overflows(int64_t outputs) { return outputs > vx_outer_bytes / (int64_t)sizeof(float); }

/* Whether rows of so many floats from `first` on, `stride` apart, begin and end with a line. */
static inline int vx_in_whole_lines(const void *first, int64_t floats, int64_t stride) {
  return (uintptr_t)first % (LINE_FLOATS * sizeof(float)) == 0 && floats % LINE_FLOATS == 0 && stride % LINE_FLOATS == 0;
}

/* Every so many-th of rows `stride` floats apart begins at the same place of a line. */
static inline int64_t vx_line_turns(int64_t stride) { return LINE_FLOATS / greatest_divisor(stride, LINE_FLOATS); }

/* Floats from here to the next place that is a multiple of so many, a power of two; and to the next beginning of a line. */
static inline int64_t vx_before(const float *at, int64_t floats) { return -(int64_t)((uintptr_t)at / sizeof(float)) & (floats - 1); }
static inline int64_t vx_before_line(const float *at) { return vx_before(at, LINE_FLOATS); }

/* Rows in which lines begin anywhere are taken in turns where a task has as many, and as long ones, and sums are made of no more steps of k. As
 * the cost has it (effects.py). */
#define VX_TURN_ROWS 64
#define VX_TURN_COLUMNS 256
#define VX_TURN_DEPTH 128

/* At the end of a task: x86 orders nothing else after such stores. */
static inline void vx_publish(void) {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

#endif
