/* L2 and L1 of a direct convolution: rows of output pixels against panels of filters, every register tile one or few calls of L0.
 *
 * A tile's pixels are neighbours in an output row, or the same pixel of several images: their inputs are equally far apart, and L0 reads
 * them where they lie. Taps that fall into the padding are left out, not multiplied by zero: of a tile at the edge each run of filter
 * columns takes the pixels that it sees. The order of a pixel's sum is that of the filter, wherever tiles and tasks are cut.
 *
 * Pixels of one of many groups are far apart, often in a few sets of the first cache: for the tallest tiles the channels of the group are
 * brought side by side, with zeros beside the rows ("staged").
 *
 * Filters of which a panel is more than the second cache keeps beside the inputs are applied in passes, a part of their taps in each: else
 * every tile would read the panel from outside. The outputs hold the sums between them.
 *
 * A pixel of few channels is no run worth a loop. The taps of a filter row are one then ("lines"): what a tile at an edge sees is copied
 * into the CacheBuffer, with zeros beside it.
 *
 * Activations whose channels are not side by side are turned on the way: the load stage brings the rows that a block of output rows sees
 * into the CacheBuffer, the store stage takes its panel of outputs from there. A prologue is done in that load stage, for which all
 * activations pass it: to pixels, before any zeros are put beside them. */
#include "conv_panel.h"

#include <string.h>

/* `height` pixels, inputs `lda` and outputs `ldc` apart, the first one's filter at (row, column) of the input: taps [r, r_end) x [s, s_end). */
static void multiply(const panel *p, const float *image, float *out, int64_t row, int64_t column, int64_t height, int64_t lda,
                     int64_t ldc, int64_t r, int64_t r_end, int64_t s, int64_t s_end, int32_t how) {
  const vx_conv *c = p->conv;
  int64_t depth = p->work->depth, width = p->work->width, b_s = p->work->w_s, b_r = p->work->w_r;
  int64_t a_r = c->dilation_h * c->x_stride[1], a_s = c->dilation_w * c->x_stride[2];
  vx_conv_tiles[p->vectors][height](image + row * c->x_stride[1] + column * c->x_stride[2] + r * a_r + s * a_s, p->w + s * b_s + r * b_r,
                                    out, depth, s_end - s, r_end - r, a_s, a_r, b_s, b_r, lda, width, ldc, p->last, how);
}

/* The same for filters in lines, all columns of them: `a` is what the first pixel sees of filter row r, and `a_r` from row to row. */
static void multiply_lines(const panel *p, const float *a, float *out, int64_t height, int64_t a_r, int64_t ldc, int64_t r, int64_t r_end) {
  const vx_conv *c = p->conv;
  vx_conv_tiles[p->vectors][height](a, p->w + r * p->work->w_r, out, c->kernel_w * c->channels, 1, r_end - r, 0, a_r, 0, p->work->w_r,
                                    c->stride_w * c->channels, p->work->width, ldc, p->last, p->how);
}

void vx_conv_finish(const panel *p, const float *sums, int64_t apart, float *out, int64_t rows, int64_t ldc) {
  vx_epilogue stage = sums == out ? vx_store_stage : vx_store_past;
  if (!stage) return;
  const float *data[VX_EXTRAS] = {0};
  int64_t stride[VX_EXTRAS] = {0};
  for (int64_t x = 0; x < vx_operand_count; x++) {
    int per_element = vx_operands[x].per == VX_PER_ELEMENT;
    data[x] = p->extras[x] + (per_element ? out - p->y : 0);
    stride[x] = per_element ? ldc : 0;
  }
  stage(sums, out, rows, p->columns, apart, ldc, data[0], stride[0], data[1], stride[1], data[2], stride[2], data[3], stride[3]);
}

void vx_conv_clear(const panel *p, float *out, int64_t first, int64_t end, int64_t ldc) {
  for (int64_t i = first; i < end; i++) memset(out + i * ldc, 0, (size_t)p->columns * sizeof(float));
}

/* Pixels `first` to `first + height` of one output row, of which some see less than the whole filter. */
static void edge_tile(const panel *p, const float *image, float *out, int64_t row, int64_t first, int64_t height, int64_t ldc, int64_t r,
                      int64_t r_end) {
  const vx_conv *c = p->conv;
  int64_t lda = c->stride_w * c->x_stride[2];
  int64_t low = 0, high = 0, start = 0; /* of the run of filter columns that see pixels `low` to `high` */
  int32_t accumulate = p->begun;
  for (int64_t s = p->s; s <= p->s_end; s++) {
    int64_t from = 0, to = 0;
    if (s < p->s_end) {
      int64_t offset = s * c->dilation_w - c->pad_left;
      from = larger(offset < 0 ? quotient_up(-offset, c->stride_w) - first : 0, 0);
      to = smaller(offset < c->width ? quotient_up(c->width - offset, c->stride_w) - first : 0, height);
      if (from >= to) from = to = 0;
      if (from == low && to == high) continue;
    }
    if (low < high) {
      if (!accumulate) {
        vx_conv_clear(p, out, 0, low, ldc);
        vx_conv_clear(p, out, high, height, ldc);
      }
      multiply(p, image, out + low * ldc, row, (first + low) * c->stride_w - c->pad_left, high - low, lda, ldc, r, r_end, start, s,
               accumulate);
      accumulate = 1;
    }
    low = from;
    high = to;
    start = s;
  }
  if (!accumulate) vx_conv_clear(p, out, 0, height, ldc);
}

/* The same of filters in lines: what they see is copied with the zeros beside it. */
static void edge_lines(const panel *p, const float *image, float *out, int64_t row, int64_t first, int64_t height, int64_t ldc, int64_t r,
                       int64_t r_end) {
  const vx_conv *c = p->conv;
  int64_t column = first * c->stride_w - c->pad_left, span = (height - 1) * c->stride_w + c->kernel_w, line = span * c->channels;
  int64_t from = larger(column, 0), to = smaller(column + span, c->width);
  float *target = p->window;
  memset(target, 0, (size_t)((r_end - r) * line) * sizeof(float));
  for (int64_t i = r; i < r_end && from < to; i++, target += line)
    memcpy(target + (from - column) * c->channels, image + (row + i * c->dilation_h) * c->x_stride[1] + from * c->x_stride[2],
           (size_t)((to - from) * c->channels) * sizeof(float));
  multiply_lines(p, p->window, out, height, line, ldc, r, r_end);
}

/* What a pass takes of [*first, *end). */
static void within(int64_t *first, int64_t *end, int64_t from, int64_t to) {
  *first = larger(*first, from);
  *end = larger(*first, smaller(*end, to));
}

/* One pixel of several images. */
static void run_pixel(const panel *p, int64_t unit) {
  const vx_conv *c = p->conv;
  int64_t pixels = c->out_h * c->out_w, line = unit % pixels / c->out_w, place = unit % c->out_w, t = unit / pixels, tiles = p->work->tiles;
  int64_t low = c->batch / tiles, extra = c->batch % tiles, image = t * low + smaller(t, extra), height = low + (t < extra);
  int64_t row = line * c->stride_h - c->pad_top, column = place * c->stride_w - c->pad_left, r, r_end, s, s_end;
  float *out = p->y + image * c->y_stride[0] + line * c->y_stride[1] + place * c->y_stride[2], *sums = p->sums ? p->sums : out;
  int64_t apart = p->sums ? p->work->width : c->y_stride[0];
  taps_inside(row, c->kernel_h, c->dilation_h, c->height, &r, &r_end);
  taps_inside(column, c->kernel_w, c->dilation_w, c->width, &s, &s_end);
  within(&r, &r_end, p->r, p->r_end);
  within(&s, &s_end, p->s, p->s_end);
  if (r < r_end && s < s_end)
    multiply(p, p->x + image * c->x_stride[0], sums, row, column, height, c->x_stride[0], apart, r, r_end, s, s_end, p->how);
  else if (!p->begun)
    vx_conv_clear(p, sums, 0, height, apart);
  if (!p->more) vx_conv_finish(p, sums, apart, out, height, c->y_stride[0]);
}

/* One row of output pixels. */
static void run_row(const panel *p, int64_t unit) {
  const vx_conv *c = p->conv;
  int64_t line = unit % c->out_h, row = line * c->stride_h - c->pad_top, r, r_end, tiles = p->work->tiles;
  const float *image = p->x + unit / c->out_h * c->x_stride[0];
  float *out = p->y + unit / c->out_h * c->y_stride[0] + line * c->y_stride[1];
  int64_t low = c->out_w / tiles, extra = c->out_w % tiles, reach = (c->kernel_w - 1) * c->dilation_w, ldc = c->y_stride[2];
  int64_t apart = p->sums ? p->work->width : ldc;
  taps_inside(row, c->kernel_h, c->dilation_h, c->height, &r, &r_end);
  within(&r, &r_end, p->r, p->r_end);
  if (r == r_end && p->begun && p->more) return;
  for (int64_t t = 0, first = 0, height; t < tiles; t++, first += height) {
    height = low + (t < extra);
    int64_t column = first * c->stride_w - c->pad_left;
    float *place = out + first * ldc, *sums = p->sums ? p->sums : place;
    if (r == r_end) {
      if (!p->begun) vx_conv_clear(p, sums, 0, height, apart);
    } else if (p->work->lines && column >= 0 && column + (height - 1) * c->stride_w + reach < c->width)
      multiply_lines(p, image + (row + r * c->dilation_h) * c->x_stride[1] + column * c->x_stride[2], sums, height,
                     c->dilation_h * c->x_stride[1], apart, r, r_end);
    else if (p->work->lines)
      edge_lines(p, image, sums, row, first, height, apart, r, r_end);
    else if (column >= 0 && column + (height - 1) * c->stride_w + reach < c->width)
      multiply(p, image, sums, row, column, height, c->stride_w * c->x_stride[2], apart, r, r_end, p->s, p->s_end, p->how);
    else
      edge_tile(p, image, sums, row, first, height, apart, r, r_end);
    if (!p->more) vx_conv_finish(p, sums, apart, place, height, ldc);
  }
}

/* Brings `channels` from `channel` on of the rows that output rows `unit` to `end` see to `target`, which `local` then reads; where they are
 * staged, with the zeros beside them that a filter sees. Returns the end of what it has written. */
static float *bring(const job *work, vx_conv *local, int64_t unit, int64_t end, int64_t channel, int64_t channels, float *target) {
  const vx_conv *c = work->conv;
  int64_t image = unit / c->out_h, line = unit % c->out_h, pixel = work->pixel, line_floats = work->columns * pixel;
  int64_t from = larger(line * c->stride_h - c->pad_top, 0);
  int64_t to = smaller((line + end - unit - 1) * c->stride_h - c->pad_top + (c->kernel_h - 1) * c->dilation_h + 1, c->height);
  int64_t left = work->staged ? smaller(c->pad_left, work->columns) : 0, seen = smaller(c->width, work->columns - left);
  local->x = target - from * line_floats - channel;
  memcpy(local->x_stride, (int64_t[]){0, line_floats, pixel, 1}, sizeof local->x_stride);
  if (work->staged) local->width = work->columns, local->pad_left = 0;
  for (int64_t row = from; row < to; row++, target += line_floats) {
    memset(target, 0, (size_t)(left * pixel) * sizeof(float));
    memset(target + (left + seen) * pixel, 0, (size_t)((work->columns - left - seen) * pixel) * sizeof(float));
    const float *source = c->x + image * c->x_stride[0] + row * c->x_stride[1] + channel * c->x_stride[3];
    vx_conv_load(source, target + left * pixel, seen, channels, c->x_stride, pixel);
  }
  return target;
}

/* Output rows `unit` to `end` against one panel, as many taps of its filters at a time as a pass takes; the last one may go past the caches. */
static void run_passes(panel *p, void (*run)(const panel *, int64_t), int64_t unit, int64_t end, int streams) {
  const vx_conv *c = p->conv;
  for (p->s = 0; p->s < c->kernel_w; p->s = p->s_end) {
    p->s_end = smaller(p->s + p->work->pass_s, c->kernel_w);
    for (p->r = 0; p->r < c->kernel_h; p->r = p->r_end) {
      p->r_end = smaller(p->r + p->work->pass_r, c->kernel_h);
      p->more = p->s_end < c->kernel_w || p->r_end < c->kernel_h;
      p->how = p->begun | (streams && !p->more ? VX_STREAMS : 0);
      for (int64_t u = unit; u < end; u++) run(p, u);
      p->begun = VX_ADDS;
    }
  }
}

/* Output rows `unit` to `end`, of one image if anything is turned, against panels `first` to `stop`. */
static void run_block(const job *work, int64_t unit, int64_t end, int64_t first, int64_t stop, float *scratch) {
  const vx_conv *c = work->conv;
  vx_conv local = *c;
  int64_t image = unit / c->out_h, line = unit % c->out_h, group = first / work->panels;
  int64_t channel = work->by_channel ? first * work->width : group * work->depth;
  int64_t channels = smaller(c->channels, work->by_channel ? stop * work->width : quotient_up(stop, work->panels) * work->depth) - channel;
  float *window = scratch;
  scratch += work->window;
  float *staged = scratch;
  if (work->staged)
    scratch += work->turned_floats;
  else if (work->turn_x)
    scratch = bring(work, &local, unit, end, channel, channels, scratch);
  if (work->turn_y) memcpy(local.y_stride, (int64_t[]){0, c->out_w * work->width, work->width, 1}, sizeof local.y_stride);
  int64_t panel_floats = c->kernel_h * c->kernel_w * work->depth * work->width;
  _Alignas(64) float sums[SUMS];
  for (int64_t i = first; i < stop; i++) {
    if (work->staged) bring(work, &local, unit, end, i * work->depth, work->depth, staged);
    panel p = {.work = work, .conv = &local, .window = window};
    int64_t filter = i % work->panels * work->width, output;
    p.columns = smaller(work->width, work->share - filter);
    p.vectors = quotient_up(p.columns, vx_lanes);
    p.last = (int32_t)(p.columns - (p.vectors - 1) * vx_lanes);
    if (work->by_channel) {
      p.x = local.x + filter * local.x_stride[3];
      p.w = c->w + filter;
      output = filter;
    } else {
      p.x = local.x + i / work->panels * work->depth * local.x_stride[3];
      p.w = c->w + i * panel_floats;
      output = i / work->panels * work->share + filter;
    }
    p.y = work->turn_y ? scratch - line * local.y_stride[1] : local.y + output * c->y_stride[3];
    float *turned = scratch;
    for (int64_t x = 0; x < vx_operand_count; x++) {
      const float *data = c->extras[x].data;
      if (vx_operands[x].per == VX_PER_COLUMN)
        p.extras[x] = data + output;
      else if (!work->turn_y)
        p.extras[x] = data + (p.y - c->y);
      else {
        turned += work->block * local.y_stride[1];
        p.extras[x] = turned - line * local.y_stride[1];
        for (int64_t u = 0; u < end - unit; u++)
          vortex_transpose(data + image * c->y_stride[0] + (line + u) * c->y_stride[1] + output * c->y_stride[3],
                           turned + u * local.y_stride[1], c->out_w, p.columns, c->y_stride[3], work->width);
      }
    }
    void (*run)(const panel *, int64_t) = work->plan->walk_batch ? run_pixel : run_row;
    if (work->by_channel) run = vx_conv_slides(c) ? vx_conv_sliding : vx_conv_depthwise;
    int streams = work->streams && vx_in_whole_lines(p.y, p.columns, LINE_FLOATS);
    if (streams && vx_store_past && work->sums_floats <= SUMS) p.sums = sums;
    if (work->blocks && p.columns >= work->blocks->least)
      vx_conv_blocks(&p, unit, end);
    else if (work->by_channel && vx_conv_falls(&p, smaller(end - unit, c->out_h)))
      vx_conv_falling(&p, unit, end);
    else
      run_passes(&p, run, unit, end, streams && !vx_store_stage);
    for (int64_t u = 0; work->turn_y && u < end - unit; u++)
      vortex_transpose(scratch + u * local.y_stride[1],
                       c->y + image * c->y_stride[0] + (line + u) * c->y_stride[1] + output * c->y_stride[3], p.columns, c->out_w,
                       work->width, c->y_stride[3]);
  }
}

static void run_task(void *context, int64_t index) {
  job *work = context;
  const vx_conv *c = work->conv;
  int64_t unit = index % work->plan->grid_m * work->units_per_task, end = smaller(unit + work->units_per_task, work->units);
  int64_t first = index / work->plan->grid_m * work->panels_per_task;
  int64_t stop = smaller(first + work->panels_per_task, work->sets);
  if (unit >= end || first >= stop) return;
  float *scratch = NULL;
  int turned = work->turn_x || work->turn_y;
  if (turned || work->window) {
    int64_t floats = work->turned_floats + work->turn_y * (1 + work->turned_extras) * work->block * c->out_w * work->width;
    floats += work->window;
    scratch = vx_scratch((size_t)floats * sizeof(float));
    if (!scratch) {
      atomic_store(&work->out_of_memory, 1);
      return;
    }
  }
  while (unit < end) {
    int64_t next = smaller(unit + work->block, end);
    if (turned) next = smaller(next, (unit / c->out_h + 1) * c->out_h);
    run_block(work, unit, next, first, stop, scratch);
    unit = next;
  }
  if (work->streams) vx_publish();
}

/* A panel of a depthwise convolution, in elements: few enough that the rows under a filter stay in the first cache, and the filters of
 * groups beside them. */
static int64_t channels_at_once(const vx_conv *c, const vx_block *blocks) {
  if (blocks) return even_part(c->channels, VX_BLOCK_WIDTH, vx_lanes);
  int64_t columns = vx_conv_slides(c) ? (VX_DEPTHWISE - 1) * c->stride_w + c->kernel_w : c->width;
  int64_t depth = c->channels / c->groups, seen = c->kernel_h * (columns + (depth > 1 ? depth * c->kernel_w : 0));
  int64_t room = vx_conv_near / (seen * (int64_t)sizeof(float)) / vx_lanes * vx_lanes;
  return smaller(larger(room, 4 * vx_lanes), rounded(c->channels, vx_lanes));
}

int vx_execute_conv(const vx_conv *conv, const vx_conv_plan *plan) {
  int depthwise = plan->family == VX_DEPTHWISE_FAMILY || plan->family == VX_GROUPED_FAMILY;
  int64_t groups = depthwise ? 1 : conv->groups;
  job work = {.conv = conv, .plan = plan, .depth = conv->channels / groups, .share = conv->filters / groups,
              .by_channel = depthwise, .group = conv->channels / conv->groups};
  if (depthwise) work.blocks = vx_conv_block(conv);
  work.width = depthwise ? channels_at_once(conv, work.blocks) : vx_panel;
  work.panels = quotient_up(work.share, work.width);
  work.sets = groups * work.panels;
  work.lines = plan->family == VX_LINES_FAMILY;
  work.staged = plan->family == VX_DIRECT_FAMILY && !plan->walk_batch && vx_staged(conv);
  work.turn_x = work.staged || (vx_conv_begin && conv->channels) || conv->x_stride[3] != 1 || (work.lines && conv->x_stride[2] != conv->channels);
  work.turn_y = conv->y_stride[3] != 1;
  for (int64_t x = 0; x < vx_operand_count; x++) work.turned_extras += vx_operands[x].per == VX_PER_ELEMENT;
  work.pixel = work.lines ? conv->channels : rounded(work.staged ? work.depth : conv->channels, vx_lanes);
  work.columns = work.staged ? (conv->out_w - 1) * conv->stride_w + (conv->kernel_w - 1) * conv->dilation_w + 1 : conv->width;
  if (work.lines) work.window = conv->kernel_h * ((plan->rows - 1) * conv->stride_w + conv->kernel_w) * conv->channels;
  int by_rows = vx_in_lines(conv->groups, conv->channels, conv->kernel_w);
  work.w_s = (by_rows ? 1 : conv->kernel_h) * work.depth * work.width;
  work.w_r = (by_rows ? conv->kernel_w : 1) * work.depth * work.width;
  work.tiles = quotient_up(plan->walk_batch ? conv->batch : conv->out_w, depthwise ? VX_DEPTHWISE : plan->rows);
  work.units = plan->walk_batch ? work.tiles * conv->out_h * conv->out_w : conv->batch * conv->out_h;
  work.units_per_task = quotient_up(work.units, plan->grid_m);
  work.panels_per_task = quotient_up(work.sets, plan->grid_n);
  vx_passes(conv, plan->family, &work.pass_s, &work.pass_r);
  int whole = work.pass_s == conv->kernel_w && work.pass_r == conv->kernel_h;
  work.sums_floats = whole ? (depthwise ? VX_DEPTHWISE : VX_CONV_ROWS) * work.width : INT64_MAX;
  /* Rows whose input stays in the second cache while all panels pass over it. */
  int64_t unit_bytes = 4 * conv->channels * (plan->walk_batch ? plan->rows : conv->stride_h * conv->width);
  work.block = larger(1, smaller(vx_conv_far / larger(1, unit_bytes), work.units_per_task));
  int64_t tall = smaller((work.block - 1) * conv->stride_h + (conv->kernel_h - 1) * conv->dilation_h + 1, conv->height);
  if (work.turn_x) work.turned_floats = tall * work.columns * work.pixel;
  work.far = 4 * conv->batch * (conv->height * conv->width * conv->channels + conv->out_h * conv->out_w * conv->filters) > vx_conv_memory;
  work.streams = vx_overflows(conv->batch * conv->out_h * conv->out_w * conv->filters) && !work.turn_y;
  for (int axis = 0; axis < 3; axis++) work.streams &= conv->y_stride[axis] % LINE_FLOATS == 0;
  vx_parallel(run_task, &work, plan->grid_m * plan->grid_n);
  return work.out_of_memory;
}
