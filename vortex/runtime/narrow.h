/* Register tiles of products that have fewer columns than one. */
#ifndef VORTEX_NARROW_H
#define VORTEX_NARROW_H

#include "integers.h"
#include "vortex_runtime.h"

/* Rows of its register tiles for so many columns: fewer vectors than a tile has leave registers for more rows. As the cost has it. */
static inline int64_t tile_rows(const vx_strategy *s, int64_t columns) {
  int64_t vectors = quotient_up(columns, vx_lanes);
  if (s->held || s->streamed || vectors >= s->vectors) return s->rows;
  int64_t registers = s->rows * s->vectors + smaller(s->rows, s->vectors);
  int64_t few = registers / vectors - 1, many = registers / (vectors + 1), rows = smaller(few > many ? few : many, vx_narrow_rows);
  return rows > s->rows ? rows : s->rows;
}

#endif
