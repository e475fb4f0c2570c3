/* Rows of a depthwise convolution, or of one of groups that share a vector: vectors run along channels, tiles across pixels. */
#include "conv_panel.h"

/* One row of output pixels, a channel to a filter: tiles of the pixels that see the whole filter, the others one by one. */
void vx_conv_depthwise(const panel *p, int64_t unit) {
  const vx_conv *c = p->conv;
  int64_t line = unit % c->out_h, row = line * c->stride_h - c->pad_top, r, r_end, s, s_end;
  const float *image = p->x + unit / c->out_h * c->x_stride[0];
  float *out = p->y + unit / c->out_h * c->y_stride[0] + line * c->y_stride[1];
  int64_t reach = (c->kernel_w - 1) * c->dilation_w, w_s = c->channels, w_c = c->kernel_w * w_s, w_r = p->work->group * w_c;
  int64_t first = smaller(quotient_up(c->pad_left, c->stride_w), c->out_w), apart = p->sums ? p->work->width : c->y_stride[2];
  int64_t room = c->width + c->pad_left - reach, end = larger(room > 0 ? smaller(quotient_up(room, c->stride_w), c->out_w) : 0, first);
  taps_inside(row, c->kernel_h, c->dilation_h, c->height, &r, &r_end);
  int64_t tiles = quotient_up(end - first, VX_DEPTHWISE), low = tiles ? (end - first) / tiles : 0, extra = tiles ? (end - first) % tiles : 0;
  for (int64_t i = 0, pixels; i < c->out_w; i += pixels) {
    int64_t column = i * c->stride_w - c->pad_left;
    pixels = i >= first && i < end ? low + ((i - first) < extra * (low + 1)) : 1;
    taps_inside(column, c->kernel_w, c->dilation_w, c->width, &s, &s_end);
    int64_t down = row + r * c->dilation_h, along = column + s * c->dilation_w;
    float *place = out + i * c->y_stride[2], *sums = p->sums ? p->sums : place;
    if (r < r_end && s < s_end)
      vx_depthwise_tiles[p->work->group > 1][pixels](image + down * c->x_stride[1] + along * c->x_stride[2], p->w + r * w_r + s * w_s, sums,
                                 p->columns, r_end - r, s_end - s, c->dilation_h * c->x_stride[1], c->dilation_w * c->x_stride[2], w_r, w_s,
                                 c->stride_w * c->x_stride[2], apart, p->work->group, w_c);
    else
      vx_conv_clear(p, sums, 0, pixels, apart);
    vx_conv_finish(p, sums, apart, place, pixels, c->y_stride[2]);
  }
}

int vx_conv_slides(const vx_conv *c) {
  return c->kernel_w < VX_SLIDING && c->stride_w < 3 && c->dilation_w == 1 &&
         vx_sliding_tiles[c->groups < c->channels][c->kernel_w][c->stride_w][1];
}

/* A row of output pixels of a usual depthwise filter: its place in the output, filter rows [r, r_end) of input rows from `image` on. */
typedef struct {
  const float *image;
  float *out;
  int64_t r, r_end;
} sliding_row;

static sliding_row row_of(const panel *p, int64_t unit) {
  const vx_conv *c = p->conv;
  int64_t image = unit / c->out_h, line = unit - image * c->out_h, row = line * c->stride_h - c->pad_top;
  sliding_row found = {.out = p->y + image * c->y_stride[0] + line * c->y_stride[1]};
  taps_inside(row, c->kernel_h, c->dilation_h, c->height, &found.r, &found.r_end);
  found.image = p->x + image * c->x_stride[0] + (row + found.r * c->dilation_h) * c->x_stride[1];
  return found;
}

/* Pixels of the widest tile that fits at `first`. */
static VX_ALWAYS_INLINE int64_t sliding_pixels(const vx_conv *c, const vx_depthwise_tile *tiles, int64_t first) {
  int64_t pixels = c->out_w % 7 ? VX_DEPTHWISE : 7;
  while (pixels > c->out_w - first || !tiles[pixels]) pixels--;
  return pixels;
}

/* `pixels` of a row from `first` on. */
static VX_ALWAYS_INLINE void slide(const panel *p, const vx_depthwise_tile *tiles, const sliding_row *row, int64_t first, int64_t pixels) {
  const vx_conv *c = p->conv;
  int64_t column = first * c->stride_w - c->pad_left, w_s = c->channels, w_c = c->kernel_w * w_s, group = p->work->group, w_r = group * w_c;
  float *out = row->out + first * c->y_stride[2], *sums = p->sums ? p->sums : out;
  int64_t apart = p->sums ? p->work->width : c->y_stride[2];
  tiles[pixels](row->image + column * c->x_stride[2], p->w + row->r * w_r, sums, p->columns, row->r_end - row->r, -column, c->width - column,
                c->dilation_h * c->x_stride[1], w_r, w_s, c->x_stride[2], apart, group, w_c);
  vx_conv_finish(p, sums, apart, out, pixels, c->y_stride[2]);
}

/* What a tile reads that the row above has not read, and where it writes. */
static VX_ALWAYS_INLINE void fetch_sliding(const panel *p, const sliding_row *row, int64_t first, int64_t pixels) {
  const vx_conv *c = p->conv;
  int64_t column = first * c->stride_w - c->pad_left, from = larger(column, 0);
  int64_t span = smaller(column + (pixels - 1) * c->stride_w + c->kernel_w, c->width) - from, rows = row->r_end - row->r;
  for (int64_t r = larger(rows - c->stride_h, 0); r < rows; r++)
    vx_fetch_pixels(row->image + r * c->dilation_h * c->x_stride[1] + from * c->x_stride[2], span, c->x_stride[2], p->columns);
  if (!p->sums) vx_fetch_pixels(row->out + first * c->y_stride[2], pixels, c->y_stride[2], p->columns);
}

/* A row of output pixels of a usual depthwise filter. */
void vx_conv_sliding(const panel *p, int64_t unit) {
  const vx_conv *c = p->conv;
  const vx_depthwise_tile *tiles = vx_sliding_tiles[p->work->group > 1][c->kernel_w][c->stride_w];
  sliding_row row = row_of(p, unit);
  for (int64_t i = 0, pixels; i < c->out_w; i += pixels) {
    pixels = sliding_pixels(c, tiles, i);
    if (p->work->far && i + pixels < c->out_w) fetch_sliding(p, &row, i + pixels, sliding_pixels(c, tiles, i + pixels));
    slide(p, tiles, &row, i, pixels);
  }
}
