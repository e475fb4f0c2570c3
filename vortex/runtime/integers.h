/* Whole numbers: roundings, common divisors, and the grids that a thread count factorizes into. */
#ifndef VORTEX_INTEGERS_H
#define VORTEX_INTEGERS_H

#include <stdint.h>

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }
static inline int64_t quotient_up(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t rounded(int64_t count, int64_t step) { return quotient_up(count, step) * step; }

/* The longest, in whole steps, of as few parts of `count` as none is longer than `most` in, all about as long. */
static inline int64_t even_part(int64_t count, int64_t most, int64_t step) {
  return rounded(quotient_up(count, larger(quotient_up(count, most), 1)), step);
}

static inline int64_t greatest_divisor(int64_t x, int64_t y) {
  while (y) {
    int64_t rest = x % y;
    x = y;
    y = rest;
  }
  return x;
}

/* One task first, then every factorization of the thread count, tall to wide, and of its halves while they are even. */
static inline int64_t next_grid(int64_t *count, int64_t *columns) {
  for (;;) {
    if (*count <= 1) return 0;
    while (++*columns <= *count)
      if (*count % *columns == 0) return 1;
    *count /= 2;
    *columns = 0;
  }
}

#endif
