/* The cost of many calls, for the analyzer, which chooses what a library keeps. */
#include <stdint.h>

/* Compiled from the cost model: predicted seconds of blocks of strategies, a vector of them each. */
void vortex_costs(const float *strategies, const float *slopes, float *totals, int32_t blocks, float m, float n, float k, float a_is_col,
                  float plain, float transposed, float prepacked, float spacing_a, float spacing_b, float drift_a,
                  float drift_b, float grid_m, float grid_n, float splits, float active, float batch,
                  float items_a, float items_b, float others);

/* totals[call][strategy]; a call has the fields of `problem.Problem`. */
void vx_prices(const float *columns, const float *slopes, const float *calls, float *totals, int64_t blocks, int64_t lanes, int64_t count) {
  enum { FIELDS = 19 };
  for (int64_t i = 0; i < count; i++) {
    const float *x = calls + i * FIELDS;
    vortex_costs(columns, slopes, totals + i * blocks * lanes, (int32_t)blocks, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9],
                 x[10], x[11], x[12], x[13], x[14], x[15], x[16], x[17], x[18]);
  }
}
