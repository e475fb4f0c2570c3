/* A convolution as an implicit product of a GPU library: activations and filters checked, and how the filter walks them. */
#include "gpu_call.h"

static vx_gpu_divisor divisor_of(int64_t by) {
  if (by < 1) by = 1; /* of nothing, which no kernel asks for */
  int32_t shift = 31;
  while ((INT64_C(1) << (shift - 31)) < by) shift++;
  return (vx_gpu_divisor){(uint32_t)(((INT64_C(1) << (shift - 31)) * (INT64_C(1) << 31) + by - 1) / by), (int32_t)by, shift};
}

/* An activation's extents and strides as batch, height, width, channels; strides of a dense tensor where none are told. */
typedef struct {
  char *data;
  int64_t extents[4], steps[4];
} pixels;

static int64_t read_pixels(const library *of, const DLTensor *t, int operand, int32_t code, int32_t bits, int is_turned, pixels *out) {
  static const int places[2][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}};
  int64_t dense[4], refused = vx_gpu_read_data(&of->on, t, operand, code, bits, &out->data);
  if (refused) return refused;
  if (t->ndim != 4) return REFUSE(BAD_RANK, operand);
  for (int axis = 3; axis >= 0; axis--) dense[axis] = axis == 3 ? 1 : dense[axis + 1] * t->shape[axis + 1];
  for (int axis = 0; axis < 4; axis++) {
    int place = places[is_turned][axis];
    out->extents[axis] = t->shape[place];
    out->steps[axis] = t->shape[place] == 1 ? 0 : t->strides ? t->strides[place] : dense[place];
    if (out->extents[axis] > LONGEST || out->steps[axis] > LIMIT_32) return REFUSE(TOO_LARGE, operand);
    if (out->steps[axis] < 0) return REFUSE(BAD_STRIDES, operand);
  }
  return 0;
}

/* Elements between one pixel and the next, in memory order batch, height, width; -1 where they are not evenly apart. */
static int64_t apart(const pixels *x) {
  int64_t step = 0, count = 1;
  for (int axis = 2; axis >= 0; axis--) {
    if (x->extents[axis] > 1 && !step) step = x->steps[axis];
    if (x->extents[axis] > 1 && x->steps[axis] != step * count) return -1;
    count *= x->extents[axis];
  }
  return step ? step : x->extents[3];
}

/* A tensor of a convolution's epilogue: [filters], or pixels like those of C. */
static int64_t read_conv_extra(const library *of, const DLTensor *t, int32_t which, int is_turned, const pixels *y, call *c) {
  const vx_gpu_extra *wanted = &of->setup.extras[which];
  int operand = FIRST_EXTRA + which;
  int64_t filters = y->extents[3], item = wanted->bits / 8, refused;
  pixels x = {0};
  if (wanted->per == VX_PER_ELEMENT) {
    if ((refused = read_pixels(of, t, operand, wanted->code, wanted->bits, is_turned, &x))) return refused;
    for (int axis = 0; axis < 4; axis++)
      if (x.extents[axis] != y->extents[axis]) return REFUSE(BAD_EXTRA, operand);
    if (apart(&x) < 0) return REFUSE(BAD_STRIDES, operand);
    int64_t end = 1 + (c->shape.m - 1) * apart(&x) + (filters - 1) * x.steps[3];
    refused = vx_gpu_take_extra(of, which, x.data, end, apart(&x), x.steps[3], c);
  } else {
    if ((refused = vx_gpu_read_data(&of->on, t, operand, wanted->code, wanted->bits, &x.data))) return refused;
    if (t->ndim != 1 || t->shape[0] != filters) return REFUSE(BAD_EXTRA, operand);
    x.steps[3] = t->strides && filters > 1 ? t->strides[0] : 1;
    if (x.steps[3] < 0) return REFUSE(BAD_STRIDES, operand);
    refused = vx_gpu_take_extra(of, which, x.data, 1 + (filters - 1) * x.steps[3], 0, x.steps[3], c);
  }
  c->finished.apart[which][1] = c->shape.n * x.steps[3] * item;
  return refused;
}

/* x [batch, height, width, channels], w [filters, channels / groups, height, width] with its channels contiguous in memory, and C,
 * as an implicit product for each group of channels. */
int64_t vx_gpu_open_conv(const library *of, const DLTensor *tensors, const vx_gpu_filter *f, call *c) {
  const vx_gpu_setup *s = &of->setup;
  int is_turned = f->is_turned != 0;
  pixels x, w, y;
  int64_t refused;
  if ((refused = read_pixels(of, &tensors[0], OPERAND_A, s->dtype_code, s->dtype_bits, is_turned, &x)) ||
      (refused = read_pixels(of, &tensors[1], OPERAND_B, s->dtype_code, s->dtype_bits, 1, &w)) ||
      (refused = read_pixels(of, &tensors[2], OPERAND_OUT, s->out_code, s->out_bits, is_turned, &y)))
    return refused;
  int64_t depth = w.extents[3], filters = w.extents[0], taps = w.extents[1] * w.extents[2], k = taps * depth;
  int64_t m = y.extents[0] * y.extents[1] * y.extents[2], n = filters / f->groups;
  if (depth * f->groups != x.extents[3] || n * f->groups != filters) return REFUSE(INNER_DIFFERS, OPERAND_B);
  for (int axis = 1; axis <= 2; axis++) { /* the last position of the filter must lie in the padded input */
    int64_t last = (y.extents[axis] - 1) * f->stride[axis - 1] + (w.extents[axis] - 1) * f->dilation[axis - 1] - f->before[axis - 1];
    if (last > LONGEST || f->before[axis - 1] > LONGEST) return REFUSE(TOO_LARGE, OPERAND_OUT);
  }
  if (y.extents[0] != x.extents[0] || y.extents[3] != filters) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (m > LONGEST || k > LONGEST) return REFUSE(TOO_LARGE, m > LONGEST ? OPERAND_OUT : OPERAND_B);
  int64_t stride_w = filters > 1 ? w.steps[0] : k, stride_y = apart(&y);
  if (depth > 1 && x.steps[3] != 1) return REFUSE(BAD_STRIDES, OPERAND_A);
  if ((depth > 1 && w.steps[3] != 1) || (w.extents[2] > 1 && w.steps[2] != depth) || (w.extents[1] > 1 && w.steps[1] != depth * w.extents[2]) ||
      stride_w < k)
    return REFUSE(BAD_FILTER, OPERAND_B);
  if ((filters > 1 && y.steps[3] != 1) || stride_y < filters) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (stride_y > LIMIT_32 || stride_w > LIMIT_32) return REFUSE(TOO_LARGE, stride_y > LIMIT_32 ? OPERAND_OUT : OPERAND_B);
  /* Where channels are a group each, they may lie apart: the group's step is that of channels. */
  c->a = (matrix){x.data, m, k, 0, 0, {1, f->groups}, {0, f->groups > 1 ? depth * x.steps[3] : 0}};
  c->b = (matrix){w.data, n, k, stride_w, 0, {1, f->groups}, {0, f->groups > 1 ? n * stride_w : 0}};
  c->c = (matrix){y.data, m, n, stride_y, 0, {1, f->groups}, {0, f->groups > 1 ? n : 0}};
  int64_t reached = 1;
  for (int axis = 0; axis < 4; axis++) reached += (x.extents[axis] - 1) * x.steps[axis];
  matrix input = {x.data, m && k && x.extents[1] && x.extents[2] ? 1 : 0, reached, reached, 0, {1, 1}, {0, 0}};
  if ((refused = vx_gpu_refuse_overlaps(of, &input, &c->b, &c->c))) return refused;
  c->finished = (vx_gpu_finished){.c = c->c.data};
  c->shape = (vx_gpu_shape){.m = m, .n = n, .k = k, .batch = f->groups, .transpose_b = 1};
  for (int32_t i = 0; i < s->extra_count; i++)
    if ((refused = read_conv_extra(of, &tensors[FIRST_EXTRA + i], i, is_turned, &y, c))) return refused;
  int64_t bits = 16 | (int64_t)(uintptr_t)x.data | (depth | c->a.steps[1] | x.steps[0] | x.steps[1] | x.steps[2]) * of->item_bytes;
  bits = (bits & -bits) | vx_gpu_alignment(&c->b, of->item_bytes) | vx_gpu_alignment_of_stores(of, &c->c);
  c->shape.alignment = (int32_t)(bits & -bits);
  float seen = (float)x.extents[0] * (float)x.extents[1] * (float)x.extents[2] * (float)depth / ((float)m * (float)k);
  c->shape.seen = seen < 1.f ? seen : 1.f;
  c->window = (vx_gpu_window){.image = x.steps[0], .row = x.steps[1], .column = x.steps[2],
                              .height = (int32_t)x.extents[1], .width = (int32_t)x.extents[2],
                              .pixels = divisor_of(y.extents[1] * y.extents[2]), .columns = divisor_of(y.extents[2]),
                              .channels = divisor_of(depth), .taps = divisor_of(w.extents[2])};
  for (int axis = 0; axis < 2; axis++) {
    c->window.stride[axis] = (int32_t)f->stride[axis];
    c->window.before[axis] = (int32_t)f->before[axis];
    c->window.dilation[axis] = (int32_t)f->dilation[axis];
  }
  return 0;
}
