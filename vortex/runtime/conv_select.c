/* The run-time choice of a convolution: its family, then the compiled cost model over walks and grids. `conv_selector` is its mirror. */
#include "conv_panel.h"
#include "integers.h"
#include "winograd.h"

/* Taps of all output positions of one side that lie inside of the input. */
static int64_t taps_seen(int64_t outputs, int64_t taps, int64_t stride, int64_t dilation, int64_t before, int64_t extent) {
  int64_t total = 0;
  for (int64_t tap = 0; tap < taps; tap++) {
    int64_t offset = tap * dilation - before, first = offset < 0 ? quotient_up(-offset, stride) : 0;
    int64_t end = offset < extent ? quotient_up(extent - offset, stride) : 0;
    if (end > outputs) end = outputs;
    if (end > first) total += end - first;
  }
  return total;
}

/* Whether pixels follow each other at one distance, so that rows of a matrix are pixels. */
static int is_matrix(const int64_t *stride, int64_t batch, int64_t height, int64_t width) {
  return stride[3] == 1 && (height == 1 || stride[1] == width * stride[2]) && (batch == 1 || stride[0] == height * width * stride[2]);
}

static int64_t family_of(const vx_conv *c) {
  if (c->groups > 1 && c->channels == c->groups && c->filters == c->groups) return VX_DEPTHWISE_FAMILY;
  if (vx_in_vectors(c->groups, c->channels, c->filters)) return VX_GROUPED_FAMILY;
  if (c->kernel_h == 1 && c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 && c->groups == 1 && c->out_h == c->height &&
      c->out_w == c->width && c->pad_top == 0 && c->pad_left == 0 && is_matrix(c->x_stride, c->batch, c->height, c->width) &&
      is_matrix(c->y_stride, c->batch, c->out_h, c->out_w))
    return VX_GEMM_FAMILY;
  return vx_in_lines(c->groups, c->channels, c->kernel_w) && c->dilation_w == 1 ? VX_LINES_FAMILY : VX_DIRECT_FAMILY;
}

vx_conv_plan vx_select_conv(const vx_conv *c, int64_t threads) {
  vx_conv_plan best = {.family = family_of(c), .grid_m = 1, .grid_n = 1};
  if (best.family == VX_GEMM_FAMILY) return best;
  int depthwise = best.family == VX_DEPTHWISE_FAMILY || best.family == VX_GROUPED_FAMILY, lines = best.family == VX_LINES_FAMILY;
  int staged = best.family == VX_DIRECT_FAMILY && vx_staged(c);
  int in_rows = depthwise || lines || staged || vx_conv_begin || c->x_stride[3] != 1 || c->y_stride[3] != 1;
  int64_t groups = depthwise ? 1 : c->groups, share = c->filters / groups, depth = c->channels / groups;
  int64_t vectors = quotient_up(share, vx_lanes), most = vx_panel / vx_lanes;
  if (vectors > most) vectors = most;
  int64_t full = share / (vectors * vx_lanes), over = share % (vectors * vx_lanes);
  if (!full) full = 1, over = 0;
  best.rows = depthwise ? 0 : vx_conv_tallest[vectors];
  int64_t seen_h = taps_seen(c->out_h, c->kernel_h, c->stride_h, c->dilation_h, c->pad_top, c->height);
  int64_t seen_w = taps_seen(c->out_w, c->kernel_w, c->stride_w, c->dilation_w, c->pad_left, c->width);
  float input_bytes = 4.0f * (float)c->batch * (float)c->height * (float)c->width * (float)c->channels;
  float tall = (float)seen_h / (float)c->out_h, seen = tall * ((float)seen_w / (float)c->out_w), least = 3e38f;
  float edges = seen_w < c->out_w * c->kernel_w && !lines && !staged ? (float)(c->kernel_w - 1) : 0.0f, totals[VX_CONV_PRICED];
  float hops = seen, moved = 0.0f, line_bytes = 4.0f * (float)(c->stride_h * c->width) * (float)c->channels;
  int64_t pass_s, pass_r;
  vx_passes(c, best.family, &pass_s, &pass_r);
  float passes = (float)(quotient_up(c->kernel_w, pass_s) * quotient_up(c->kernel_h, pass_r));
  if (lines) {
    int64_t tiles = quotient_up(c->out_w, best.rows), at_edges = seen_w == c->out_w * c->kernel_w ? 0 : tiles < 2 ? 1 : 2;
    seen = tall * (float)c->kernel_w;
    hops = tall;
    moved = (float)(at_edges * c->batch * c->out_h) * (float)(((best.rows - 1) * c->stride_w + c->kernel_w) * c->channels) * tall;
  }
  if (staged) {
    int64_t columns = (c->out_w - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1;
    hops = seen = tall * (float)c->kernel_w;
    moved = (float)(c->batch * c->height) * (float)(columns * depth);
  }
  int64_t count = threads, columns = 0, grid_m = 1, grid_n = 1;
  do {
    int64_t tasks = grid_m * grid_n;
    vortex_conv_costs(vx_conv_columns, vx_slopes, totals, 1, (float)c->batch, (float)c->out_h, (float)c->out_w, (float)depth, (float)share,
                      (float)groups, depthwise ? (float)(c->channels / c->groups) : 0.0f, input_bytes, line_bytes, seen, tall, hops,
                      (float)(lines || staged || vx_conv_begin), moved, (float)(c->kernel_h * c->kernel_w), passes, edges, (float)c->stride_w,
                      (float)vx_conv_tallest[vectors], (float)full, (float)vectors, (float)quotient_up(over, vx_lanes), (float)vx_panel,
                      (float)grid_m, (float)grid_n, (float)(tasks < threads ? tasks : threads));
    for (int walk = 0; walk < (in_rows ? 1 : 2); walk++)
      if (totals[walk] < least) {
        least = totals[walk];
        best.walk_batch = walk;
        best.grid_m = grid_m;
        best.grid_n = grid_n;
        best.seconds = least;
      }
    if (tasks == 1) best.alone = least;
    /* No call on several threads is shorter than their start. */
    if (least <= vx_least_parallel || !next_grid(&count, &columns)) break;
    grid_m = count / columns;
    grid_n = columns;
  } while (1);
  return best;
}

vx_conv_plan vx_choose_conv(const vx_conv *c, int64_t forms, int64_t unpacked, int64_t threads) {
  vx_conv_plan plan = vx_select_conv(c, threads);
  int64_t offered = forms / (2 * VX_DIRECT_FORM);
  if ((plan.family != VX_DIRECT_FAMILY && plan.family != VX_LINES_FAMILY) || !offered || !vx_winograd_suits(c)) return plan;
  vx_winograd_plan fast = vx_select_winograd(c, offered, unpacked, threads);
  if (forms & VX_DIRECT_FORM && plan.alone <= fast.alone) return plan;
  return (vx_conv_plan){VX_WINOGRAD_FAMILY, 0, 0, fast.strategy, fast.grid_tiles, fast.grid_panels, fast.alone, fast.seconds};
}
