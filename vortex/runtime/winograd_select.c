/* The run-time choice among the algorithms and grids of a Winograd convolution: the compiled cost model, then the least.
 * `winograd_selector.WinogradSelector` is its mirror. */
#include "winograd.h"
#include "integers.h"

/* Of winograd_cost.py, where they are explained. A strategy is an algorithm and a height of blocks. */
#define PANELS 8
#define HEIGHTS 2
#define STRATEGIES (2 * HEIGHTS)
static const int64_t STACKS[HEIGHTS] = {2, 8};

int vx_winograd_suits(const vx_conv *c) {
  return c->kernel_h == 3 && c->kernel_w == 3 && c->stride_h == 1 && c->stride_w == 1 && c->dilation_h == 1 && c->dilation_w == 1 &&
         c->groups == 1 && c->batch > 0 && c->out_h > 0 && c->out_w > 0 && c->channels > 0 && c->filters > 0;
}

vx_winograd_plan vx_winograd_planned(int64_t strategy, int64_t grid_tiles, int64_t grid_panels) {
  return (vx_winograd_plan){strategy, strategy / HEIGHTS, STACKS[strategy % HEIGHTS] * vx_winograd_rows, PANELS, grid_tiles, grid_panels,
                            3e38f, 3e38f};
}

int64_t vx_winograd_floats(int64_t filters, int64_t channels, int64_t algorithm) {
  return rounded(filters, vx_winograd_width) * vx_winograds[algorithm].points * channels;
}

vx_winograd_plan vx_select_winograd(const vx_conv *c, int64_t offered, int64_t unpacked, int64_t threads) {
  vx_winograd_plan best = vx_winograd_planned(0, 1, 1);
  int64_t full = c->filters / vx_winograd_width, rest = (c->filters % vx_winograd_width + vx_lanes - 1) / vx_lanes;
  float input_bytes = 4.0f * (float)c->batch * (float)c->height * (float)c->width * (float)c->channels;
  float totals[VX_WINOGRAD_PRICED];
  int64_t count = threads, columns = 0, grid_m = 1, grid_n = 1;
  do {
    int64_t tasks = grid_m * grid_n;
    vortex_winograd_costs(vx_winograd_columns, vx_slopes, totals, 1, (float)c->batch, (float)c->out_h, (float)c->out_w, (float)c->channels,
                          (float)c->filters, input_bytes, (float)full, (float)rest, (float)(vx_winograd_width / vx_lanes),
                          (float)vx_winograd_rows, (float)vx_turns(c->x_stride, c->channels), (float)vx_turns(c->y_stride, c->filters),
                          (float)unpacked, (float)grid_m, (float)grid_n, (float)(tasks < threads ? tasks : threads));
    float alone = best.alone;
    for (int64_t i = 0; i < STRATEGIES; i++)
      if (totals[i] < best.seconds && offered >> i / HEIGHTS & 1 && (tasks == 1 || i / HEIGHTS == best.algorithm)) {
        best = vx_winograd_planned(i, grid_m, grid_n);
        best.alone = alone;
        best.seconds = totals[i];
      }
    if (tasks == 1) best.alone = best.seconds;
    if (!next_grid(&count, &columns)) break;
    grid_m = count / columns;
    grid_n = columns;
  } while (1);
  return best;
}
