/* Depthwise convolutions whose tiles walk down the rows of a block, if the store stage finds its sums in place. */
#include "conv_panel.h"

/* Rows from which on what a walk computes in vain, above its first row and below its last, is less than what it saves. */
#define SHORTEST_WALK 4
#define TAPS 3
/* Bytes: what loads and stores are compared by, and how far apart they must begin for enough of them to meet. */
#define PAGE 4096
#define FEW_PLACES 2048
#define LINE_BYTES 64
/* Rows whose sums wait in the first cache. */
#define MOST_LATE 28

int vx_conv_falls(const panel *p, int64_t rows) {
  const vx_conv *c = p->conv;
  int is_usual = c->kernel_w == TAPS && c->kernel_h == TAPS && c->stride_w == c->stride_h && c->dilation_h == 1;
  return is_usual && vx_conv_slides(c) && p->work->group == 1 && vx_falling_tiles[c->stride_w][1] && !p->sums && rows >= SHORTEST_WALK;
}

/* Pixels of the widest tile that fits into so many. */
static int64_t widest(const vx_falling_tile *tiles, int64_t left) {
  int64_t pixels = smaller(left, VX_DEPTHWISE);
  while (!tiles[pixels]) pixels--;
  return pixels;
}

/* Whether loads and stores of one vector of channels have the same last bits of their addresses, or nearly so: pixels of 512 channels, in
 * arrays that begin at the same place of a page, as large ones do. On a Zen 4, with sums that wait, 14 x 14 x 512 go from 40 to 65 GFLOP/s; of
 * 256, 384 or 768 channels, where it is one load in two to four, eight images go from 50 to 32. */
static int collide(const vx_conv *c) {
  int64_t strides = c->x_stride[1] | c->x_stride[2] | c->y_stride[1] | c->y_stride[2], apart = greatest_divisor(4 * strides, PAGE);
  int64_t missing = ((uintptr_t)c->y - (uintptr_t)c->x) % apart;
  return apart >= FEW_PLACES && (missing < LINE_BYTES || missing > apart - LINE_BYTES);
}

void vx_conv_falling(const panel *p, int64_t unit, int64_t end) {
  const vx_conv *c = p->conv;
  const vx_falling_tile *tiles = vx_falling_tiles[c->stride_w];
  _Alignas(64) float room[MOST_LATE * VX_DEPTHWISE * LINE_FLOATS];
  int late = c->stride_w == 1 && collide(c);
  for (int64_t rows; unit < end; unit += rows) {
    int64_t image = unit / c->out_h, line = unit % c->out_h, row = line * c->stride_h - c->pad_top;
    rows = smaller(end - unit, c->out_h - line);
    const float *x = p->x + image * c->x_stride[0] + row * c->x_stride[1];
    float *y = p->y + image * c->y_stride[0] + line * c->y_stride[1];
    for (int64_t i = 0, pixels; i < c->out_w; i += pixels) {
      int64_t column = i * c->stride_w - c->pad_left;
      float *place = y + i * c->y_stride[2];
      pixels = widest(tiles, c->out_w - i);
      tiles[pixels](x + column * c->x_stride[2], p->w, place, p->columns, rows, -row, c->height - row, -column, c->width - column,
                    c->x_stride[1], TAPS * c->channels, c->channels, c->x_stride[2], c->y_stride[1], c->y_stride[2],
                    room, late && rows <= MOST_LATE);
      for (int64_t r = 0; vx_store_stage && r < rows; r++)
        vx_conv_finish(p, place + r * c->y_stride[1], c->y_stride[2], place + r * c->y_stride[1], pixels, c->y_stride[2]);
    }
  }
}
