/* Winograd convolution: a block of tiles is transformed (V), multiplied with the filters point by point on the L0 kernels (M), and
 * transformed back, while V and M are in the caches. Nothing outside of x is read: the transforms take what is not there as zeros. */
#include "winograd.h"
#include "streams.h"

#include <stdatomic.h>
#include <string.h>

typedef struct {
  const vx_conv *conv;
  const vx_winograd *algorithm;
  vx_winograd_plan plan;
  int64_t down, along, tiles, tiles_per_task, panels_per_task;
  int64_t v_row, v_point, m_row, m_point, run, x_floats, y_floats;
  int streams, past; /* of lines that go past the caches (streams.h): sums do, or what the store stage makes of them */
  atomic_int out_of_memory;
} job;

/* Floats of a row that holds `count` in whole vectors: an odd number of cache lines, so that rows do not share sets. */
static int64_t spread(int64_t count) { return (quotient_up(count, 16) | 1) * 16; }

typedef void (*stage)(const job *work, int64_t image, int64_t row, int64_t tile, int64_t tiles, float *staged, float *block,
                      int64_t column, int64_t filters);

/* Runs `stage` on the pieces of `count` tiles from `first` that lie side by side, their rows of `block` `stride` floats apart. */
static void each_run(const job *work, stage run, int64_t first, int64_t count, float *staged, float *block, int64_t stride,
                     int64_t column, int64_t filters) {
  for (int64_t done = 0; done < count;) {
    int64_t tile = (first + done) % work->along, row = (first + done) / work->along;
    int64_t tiles = smaller(smaller(count - done, work->along - tile), work->run);
    run(work, row / work->down, row % work->down, tile, tiles, staged, block + done * stride, column, filters);
    done += tiles;
  }
}

/* Whether inputs pass a load stage: channels that are not side by side, and those of which a prologue makes something else. */
static int is_brought(const vx_conv *c) { return vx_conv_begin || vx_turns(c->x_stride, c->channels); }

/* Input stage of one run. What passes the load stage does so a row of the windows at a time. */
static void load_run(const job *work, int64_t image, int64_t row, int64_t tile, int64_t tiles, float *staged, float *block,
                     int64_t column, int64_t filters) {
  const vx_conv *c = work->conv;
  int64_t side = work->algorithm->tile, window = side + 2;
  int64_t top = row * side - c->pad_top, left = tile * side - c->pad_left;
  const float *x = c->x + image * c->x_stride[0];
  if (!is_brought(c)) {
    work->algorithm->input(x, block, tiles, c->channels, top, left, c->height, c->width, c->x_stride[1], c->x_stride[2],
                           work->v_row, work->v_point);
    return;
  }
  int64_t first = top < 0 ? 0 : top, end = smaller(top + window, c->height);
  int64_t from = left < 0 ? 0 : left, to = smaller(left + tiles * side + 2, c->width);
  int64_t wide = to > from ? to - from : 0, tall = end > first ? end - first : 0, pixel = rounded(c->channels, vx_lanes);
  for (int64_t r = 0; r < tall && wide; r++)
    vx_conv_load(x + (first + r) * c->x_stride[1] + from * c->x_stride[2], staged + r * wide * pixel, wide, c->channels, c->x_stride, pixel);
  work->algorithm->input(staged, block, tiles, c->channels, top - first, left - from, tall, wide, wide * pixel, pixel,
                         work->v_row, work->v_point);
}

/* The store stage on `sums` of pixels, in place or past the caches to `out`, which lie or will lie at `y`: what is added per element has the
 * strides of the output, and is turned to `staged` where that is. */
static void finish(const vx_conv *c, const float *sums, int64_t apart, float *out, const float *y, int64_t pixels, int64_t ldc, int64_t filter,
                   int64_t filters, float *staged) {
  vx_epilogue stage = sums == out ? vx_store_stage : vx_store_past;
  if (!stage) return;
  const float *data[VX_EXTRAS] = {0};
  int64_t stride[VX_EXTRAS] = {0};
  for (int64_t x = 0; x < vx_operand_count; x++) {
    int per_element = vx_operands[x].per == VX_PER_ELEMENT;
    data[x] = (const float *)c->extras[x].data + (per_element ? y - c->y : filter);
    stride[x] = per_element ? ldc : 0;
    if (!staged || !per_element) continue;
    vortex_transpose(data[x], staged, pixels, filters, c->y_stride[3], ldc);
    data[x] = staged;
    staged += pixels * ldc;
  }
  stage(sums, out, pixels, filters, apart, ldc, data[0], stride[0], data[1], stride[1], data[2], stride[2], data[3], stride[3]);
}

/* Output stage of one run, of `filters` from `column` on: those that follow may be another task's. */
static void store_run(const job *work, int64_t image, int64_t row, int64_t tile, int64_t tiles, float *staged, float *block,
                      int64_t column, int64_t filters) {
  const vx_conv *c = work->conv;
  int64_t side = work->algorithm->tile, top = row * side, left = tile * side;
  int64_t rows = smaller(side, c->out_h - top), columns = smaller(tiles * side, c->out_w - left);
  float *y = c->y + image * c->y_stride[0] + top * c->y_stride[1] + left * c->y_stride[2] + column * c->y_stride[3];
  int64_t pixel = rounded(filters, vx_lanes), ldc = c->y_stride[2];
  if (!vx_turns(c->y_stride, c->filters)) {
    int lines = vx_in_whole_lines(y, filters, ldc), past = work->past && lines;
    float *sums = past ? staged : y;
    int64_t apart = past ? pixel : ldc, row_apart = past ? columns * pixel : c->y_stride[1];
    work->algorithm->output(block, sums, tiles, filters, rows, columns, row_apart, apart, work->m_row, work->m_point,
                            work->streams && lines ? VX_STREAMS : 0);
    for (int64_t r = 0; r < rows; r++)
      finish(c, sums + r * row_apart, apart, y + r * c->y_stride[1], y + r * c->y_stride[1], columns, ldc, column, filters, 0);
    return;
  }
  work->algorithm->output(block, staged, tiles, filters, rows, columns, columns * pixel, pixel, work->m_row, work->m_point, 0);
  for (int64_t r = 0; r < rows; r++) {
    float *turned = staged + r * columns * pixel;
    finish(c, turned, pixel, turned, y + r * c->y_stride[1], columns, pixel, column, filters, staged + rows * columns * pixel);
    vortex_transpose(turned, y + r * c->y_stride[1], filters, columns, pixel, c->y_stride[3]);
  }
}

/* M = V U of `tiles` tiles and `panels` panels of filters from `panel`, for every point. Filters are used once in a pass, and those of a
 * network come from memory each time: the row tiles of a panel ask for the next one between them. */
static void multiply(const job *work, const float *v, float *m, int64_t tiles, int64_t panel, int64_t panels) {
  const vx_conv *c = work->conv;
  int64_t width = vx_winograd_width, points = work->algorithm->points, depth = c->channels, floats = depth * width;
  int64_t blocks = quotient_up(tiles, vx_winograd_rows), low = tiles / blocks, extra = tiles % blocks, asked = depth / blocks;
  const float *filters = c->w + panel * points * floats;
  for (int64_t p = 0; p < points; p++)
    for (int64_t j = 0; j < panels; j++) {
      int64_t wide = smaller(width, c->filters - (panel + j) * width), vectors = quotient_up(wide, vx_lanes);
      const float *u = filters + (j * points + p) * floats;
      const float *next = j + 1 < panels ? u + points * floats : p + 1 < points ? filters + (p + 1) * floats : filters;
      for (int64_t b = 0, i = 0; b < blocks; b++) {
        int64_t height = low + (b < extra), share = b * asked + smaller(b, depth - asked * blocks);
        vortex_l0_row(v + p * work->v_point + i * work->v_row, u, m + p * work->m_point + i * work->m_row + j * width, depth,
                      work->v_row, width, work->m_row, (int32_t)(wide - (vectors - 1) * vx_lanes), 0, next + share * width,
                      VX_STEP * blocks, width, NULL, (int32_t)height, (int32_t)vectors);
        i += height;
      }
    }
}

static void run_task(void *context, int64_t index) {
  job *work = context;
  int64_t first = index % work->plan.grid_tiles * work->tiles_per_task;
  int64_t end = smaller(first + work->tiles_per_task, work->tiles), every = quotient_up(work->conv->filters, vx_winograd_width);
  int64_t panel = index / work->plan.grid_tiles * work->panels_per_task, last = smaller(panel + work->panels_per_task, every);
  if (first >= end || panel >= last) return;
  int64_t points = work->algorithm->points, turned = work->x_floats > work->y_floats ? work->x_floats : work->y_floats;
  float *v = vx_scratch((size_t)(points * (work->v_point + work->m_point) + turned) * sizeof(float));
  if (!v) {
    atomic_store(&work->out_of_memory, 1);
    return;
  }
  float *m = v + points * work->v_point, *staged = m + points * work->m_point;
  int64_t blocks = quotient_up(end - first, work->plan.tiles), low = (end - first) / blocks, extra = (end - first) % blocks;
  for (int64_t b = 0; b < blocks; b++) {
    int64_t tiles = low + (b < extra);
    each_run(work, load_run, first, tiles, staged, v, work->v_row, 0, 0);
    for (int64_t j = panel; j < last; j += work->plan.panels) {
      int64_t panels = smaller(work->plan.panels, last - j), column = j * vx_winograd_width;
      multiply(work, v, m, tiles, j, panels);
      each_run(work, store_run, first, tiles, staged, m, work->m_row, column,
               smaller(panels * vx_winograd_width, work->conv->filters - column));
    }
    first += tiles;
  }
  if (work->streams || work->past) vx_publish();
}

int vx_execute_winograd(const vx_conv *conv, const vx_winograd_plan *plan) {
  job work = {.conv = conv, .algorithm = &vx_winograds[plan->algorithm], .plan = *plan};
  int64_t side = work.algorithm->tile, width = vx_winograd_width, panels = quotient_up(conv->filters, width);
  work.down = quotient_up(conv->out_h, side);
  work.along = quotient_up(conv->out_w, side);
  work.tiles = conv->batch * work.down * work.along;
  work.tiles_per_task = quotient_up(work.tiles, plan->grid_tiles);
  work.panels_per_task = quotient_up(panels, plan->grid_panels);
  work.plan.tiles = smaller(plan->tiles, work.tiles_per_task);
  work.plan.panels = smaller(plan->panels, work.panels_per_task);
  work.v_row = spread(conv->channels);
  work.m_row = spread(work.plan.panels * width);
  work.v_point = work.plan.tiles * work.v_row + 16;
  work.m_point = work.plan.tiles * work.m_row + 16;
  int brought = is_brought(conv), y_turned = vx_turns(conv->y_stride, conv->filters);
  int overflows = vx_overflows(conv->batch * conv->out_h * conv->out_w * conv->filters) && conv->y_stride[1] % LINE_FLOATS == 0 &&
                  conv->y_stride[0] % LINE_FLOATS == 0 && !y_turned;
  work.streams = overflows && !vx_store_stage;
  work.past = overflows && vx_store_past;
  work.run = brought || y_turned || work.past ? 8 : work.along;
  if (brought) work.x_floats = (side + 2) * (work.run * side + 2) * rounded(conv->channels, vx_lanes);
  int64_t rows_staged = side;
  for (int64_t x = 0; x < vx_operand_count; x++) rows_staged += vx_operands[x].per == VX_PER_ELEMENT;
  if (y_turned || work.past) work.y_floats = rows_staged * work.run * side * work.plan.panels * width;
  vx_parallel(run_task, &work, plan->grid_tiles * plan->grid_panels);
  return work.out_of_memory;
}

typedef struct {
  const float *weights;
  float *target;
  int64_t filters, channels;
  const vx_winograd *algorithm;
  atomic_int out_of_memory;
} packing;

static void pack_panel(void *context, int64_t panel) {
  packing *work = context;
  int64_t width = vx_winograd_width, taps = work->channels * 9, wide = smaller(width, work->filters - panel * width);
  float *turned = vx_scratch((size_t)(taps * width) * sizeof(float));
  if (!turned) {
    atomic_store(&work->out_of_memory, 1);
    return;
  }
  if (wide < width) memset(turned, 0, (size_t)(taps * width) * sizeof(float));
  vortex_transpose(work->weights + panel * width * taps, turned, taps, wide, taps, width);
  work->algorithm->filter(turned, work->target + panel * work->algorithm->points * work->channels * width, work->channels,
                          width);
}

int vx_pack_winograd(const float *weights, float *target, int64_t filters, int64_t channels, int64_t algorithm) {
  packing work = {weights, target, filters, channels, &vx_winograds[algorithm], 0};
  vx_parallel(pack_panel, &work, quotient_up(filters, vx_winograd_width));
  return work.out_of_memory;
}
