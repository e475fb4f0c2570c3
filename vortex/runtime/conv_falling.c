/* Depthwise convolutions by 3x3 whose tiles walk down the rows of a block, if the store stage finds its sums in place. */
#include "conv_panel.h"

/* Rows from which on what a walk computes in vain, above its first row and below its last, is less than what it saves. */
#define SHORTEST_WALK 4

int vx_conv_falls(const panel *p, int64_t rows) {
  return vx_stride_of_three(p->conv) == 1 && vx_falling_tiles[1] && !p->sums && rows >= SHORTEST_WALK;
}

/* Pixels of the widest tile that fits into so many. */
static int64_t widest(int64_t left) {
  int64_t pixels = smaller(left, VX_DEPTHWISE);
  while (!vx_falling_tiles[pixels]) pixels--;
  return pixels;
}

void vx_conv_falling(const panel *p, int64_t unit, int64_t end) {
  const vx_conv *c = p->conv;
  for (int64_t rows; unit < end; unit += rows) {
    int64_t image = unit / c->out_h, line = unit % c->out_h, row = line - c->pad_top;
    rows = smaller(end - unit, c->out_h - line);
    const float *x = p->x + image * c->x_stride[0] + row * c->x_stride[1];
    float *y = p->y + image * c->y_stride[0] + line * c->y_stride[1];
    for (int64_t i = 0, pixels; i < c->out_w; i += pixels) {
      int64_t column = i - c->pad_left;
      float *place = y + i * c->y_stride[2];
      pixels = widest(c->out_w - i);
      vx_falling_tiles[pixels](x + column * c->x_stride[2], p->w, place, p->columns, rows, -row, c->height - row, -column, c->width - column,
                               c->x_stride[1], VX_TAPS * c->channels, c->channels, c->x_stride[2], c->y_stride[1], c->y_stride[2]);
      for (int64_t r = 0; vx_store_stage && r < rows; r++)
        vx_conv_finish(p, place + r * c->y_stride[1], c->y_stride[2], place + r * c->y_stride[1], pixels, c->y_stride[2]);
    }
  }
}
