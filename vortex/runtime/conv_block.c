/* Depthwise convolutions by blocks of outputs: a few rows of a few pixels, of all channels of a panel. */
#include "conv_panel.h"

/* Floats between pixels that put those of a column into an eighth of the sets of the first cache. Other pixels are better off with tiles that
 * walk down all rows, where these have stride 1. */
#define CROWDED 128
/* Inputs and outputs of the largest block. */
#define MOST_SEEN 32
#define MOST_MADE 8

/* What a block sees of the padding. */
static const _Alignas(64) float zeros[VX_BLOCK_WIDTH];

const vx_block *vx_conv_block(const vx_conv *c) {
  int64_t stride = vx_stride_of_three(c), floats = c->batch * c->channels * (c->height * c->width + c->out_h * c->out_w);
  if (stride < 1 || stride > 2) return NULL;
  const vx_block *block = &vx_blocks[stride][floats > vx_l3_bytes / (int64_t)sizeof(float)];
  return c->channels >= block->least && (stride > 1 || c->x_stride[2] % CROWDED == 0) ? block : NULL;
}

/* The inputs of a block: rows and columns of them, and how far they lie from the first. */
typedef struct {
  int64_t count, row[MOST_SEEN], column[MOST_SEEN], place[MOST_SEEN];
} window;

static void open_window(const vx_conv *c, int64_t down, int64_t along, window *w) {
  w->count = down * along;
  for (int64_t k = 0; k < w->count; k++) {
    w->row[k] = k / along, w->column[k] = k % along;
    w->place[k] = w->row[k] * c->x_stride[1] + w->column[k] * c->x_stride[2];
  }
}

/* Where a block at the edge finds its inputs: outside of rows [top, bottom) and columns [left, right) in zeros, which are `nothing` away. */
static void look(const window *w, int64_t top, int64_t bottom, int64_t left, int64_t right, int64_t nothing, int64_t *seen) {
  for (int64_t k = 0; k < w->count; k++) {
    int inside = (w->row[k] >= top) & (w->row[k] < bottom) & (w->column[k] >= left) & (w->column[k] < right);
    seen[k] = inside ? w->place[k] : nothing;
  }
}

static int64_t floats_between(const float *from, const float *to) { return ((intptr_t)to - (intptr_t)from) / (intptr_t)sizeof(float); }

/* Where its outputs lie; what is past `rows` or `pixels` of them goes to where nobody reads it, `spare` from there. */
static void place(const vx_block *b, int64_t rows, int64_t pixels, int64_t y_r, int64_t y_s, int64_t spare, int64_t *places) {
  for (int64_t o = 0; o < b->rows; o++)
    for (int64_t i = 0; i < b->pixels; i++) places[o * b->pixels + i] = o < rows && i < pixels ? o * y_r + i * y_s : spare;
}

void vx_conv_blocks(const panel *p, int64_t unit, int64_t end) {
  const vx_conv *c = p->conv;
  const vx_block *b = p->work->blocks;
  _Alignas(64) float spare[VX_BLOCK_WIDTH];
  int64_t down = (b->rows - 1) * c->stride_h + VX_TAPS, along = (b->pixels - 1) * c->stride_w + VX_TAPS;
  int64_t y_s = p->sums ? p->work->width : c->y_stride[2], y_r = p->sums ? b->pixels * y_s : c->y_stride[1];
  int far = c->stride_h > 1 && b == &vx_blocks[c->stride_w][1];
  int64_t fresh = b->rows * c->stride_h, at_edge[MOST_SEEN], whole[MOST_MADE], part[MOST_MADE];
  window within;
  open_window(c, down, along, &within);
  place(b, b->rows, b->pixels, y_r, y_s, 0, whole);
  for (int64_t rows; unit < end; unit += rows) {
    int64_t image = unit / c->out_h, line = unit % c->out_h, row = line * c->stride_h - c->pad_top;
    rows = smaller(smaller(end - unit, c->out_h - line), b->rows);
    const float *x = p->x + image * c->x_stride[0] + row * c->x_stride[1];
    float *y = p->y + image * c->y_stride[0] + line * c->y_stride[1];
    /* Rows that the block below will see for the first time. */
    int64_t fetched = far && row + down + fresh <= c->height ? fresh : 0;
    /* What only outputs past the last row see is not read: inputs that are turned are not there. */
    int64_t bottom = smaller(c->height - row, (rows - 1) * c->stride_h + VX_TAPS), high = row >= 0 && bottom >= down;
    for (int64_t i = 0; i < c->out_w; i += b->pixels) {
      int64_t column = i * c->stride_w - c->pad_left, pixels = smaller(c->out_w - i, b->pixels), *seen = within.place, *places = whole;
      const float *first = x + column * c->x_stride[2];
      float *out = y + i * c->y_stride[2], *made = p->sums ? p->sums : out;
      if (!high || column < 0 || column + along > c->width)
        look(&within, -row, bottom, -column, c->width - column, floats_between(first, zeros), seen = at_edge);
      if (!p->sums && (rows < b->rows || pixels < b->pixels)) place(b, rows, pixels, y_r, y_s, floats_between(made, spare), places = part);
      for (int64_t h = 0; h < fetched; h++)
        vx_fetch_pixels(first + (down + h) * c->x_stride[1], b->pixels * c->stride_w, c->x_stride[2], p->columns);
      b->tile(first, seen, p->w, made, places, p->columns, VX_TAPS * c->channels, c->channels);
      for (int64_t o = 0; o < rows; o++)
        vx_conv_finish(p, made + o * y_r, y_s, out + o * c->y_stride[1], pixels, c->y_stride[2]);
    }
  }
}
