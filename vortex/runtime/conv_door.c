/* The door of convolutions: what Python calls through tvm-ffi. Extents are checked in Python, once for each shape; operands here. */
#include "door.h"
#include "winograd.h"

#include <string.h>
#include <time.h>

/* Beside the reasons of refusals.h; mirrored by conv_operands.MORE. */
enum { BAD_EXTRAS = 64, BAD_EXTRA_SHAPE, BAD_EXTRA_STRIDES };
/* Mirrored by conv_planner.numbers. */
enum { FILTERS = 0, KERNEL_H, KERNEL_W, OUT_H, OUT_W, STRIDE_H, STRIDE_W, PAD_TOP, PAD_LEFT, DILATION_H, DILATION_W, GROUPS, NUMBERS, FORMS = NUMBERS };

static const int nhwc[4] = {0, 1, 2, 3}, nchw[4] = {0, 2, 3, 1};

/* An activation: extents and strides for batch, height, width and channels. One of channels and width must be side by side. */
static int read_activation(const TVMFFIAny *value, int operand, int turned, float **data, int64_t *extent, int64_t *stride) {
  const DLTensor *t;
  int refused = read_floats(value, operand, 4, 4, &t, data);
  if (refused) return refused;
  const int *place = turned ? nchw : nhwc;
  int64_t dense[4] = {0, 0, 0, 1};
  for (int i = 2; i >= 0; i--) dense[i] = dense[i + 1] * t->shape[i + 1];
  int empty = 0;
  for (int i = 0; i < 4; i++) {
    extent[i] = t->shape[place[i]];
    stride[i] = t->strides ? t->strides[place[i]] : dense[place[i]];
    if (extent[i] > 1 && stride[i] < 0) return REFUSE(BAD_STRIDES, operand);
    empty |= extent[i] == 0;
  }
  if (empty) {
    for (int i = 0; i < 4; i++) stride[i] = i == 3;
    return 0;
  }
  /* The stride of an axis of one element says nothing: it is set to what a dense tensor has. */
  if (extent[3] == 1) stride[3] = 1;
  if (extent[2] == 1) stride[2] = stride[3] == 1 ? extent[3] : 1;
  if (extent[1] == 1) stride[1] = extent[2] * stride[2];
  if (extent[0] == 1) stride[0] = extent[1] * stride[1];
  return stride[3] == 1 || stride[2] == 1 ? 0 : REFUSE(BAD_STRIDES, operand);
}

/* Elements from the first to one past the last. */
static int64_t reach(const int64_t *extent, const int64_t *stride) {
  int64_t last = 0;
  for (int i = 0; i < 4; i++) {
    if (extent[i] == 0) return 0;
    last += (extent[i] - 1) * stride[i];
  }
  return last + 1;
}

/* Whether every element of an output has a place of its own: axes in the order of their strides step over each other. */
static int is_injective(const int64_t *extent, const int64_t *stride) {
  int64_t covered = 0;
  if (!reach(extent, stride)) return 1;
  for (int left = 0xf; left;) {
    int least = -1;
    for (int i = 0; i < 4; i++)
      if (left >> i & 1 && (least < 0 || stride[i] < stride[least])) least = i;
    left &= ~(1 << least);
    if (extent[least] <= 1) continue;
    if (stride[least] <= covered) return 0;
    covered += (extent[least] - 1) * stride[least];
  }
  return 1;
}

/* The operands of the store stage: per column as many as filters, per element with the extents and strides of the output. */
static int read_extras(const TVMFFIAny *args, int64_t count, int turned, const int64_t *out, vx_conv *conv) {
  if (count != vx_operand_count) return REFUSE(BAD_EXTRAS, OPERAND_OUT);
  int64_t made = reach(out, conv->y_stride), extent[4], stride[4];
  for (int64_t x = 0; x < count; x++) {
    int operand = OPERAND_EXTRA + (int)x, refused;
    const DLTensor *t;
    float *data;
    int64_t length;
    if (vx_operands[x].per == VX_PER_ELEMENT) {
      if ((refused = read_activation(&args[x], operand, turned, &data, extent, stride))) return refused;
      for (int i = 0; i < 4; i++)
        if (extent[i] != out[i]) return REFUSE(BAD_EXTRA_SHAPE, operand);
      for (int i = 0; i < 4; i++)
        if (extent[i] > 1 && made && stride[i] != conv->y_stride[i]) return REFUSE(BAD_EXTRA_STRIDES, operand);
      length = made;
    } else {
      if ((refused = read_floats(&args[x], operand, 1, 1, &t, &data))) return refused;
      if (t->shape[0] != conv->filters) return REFUSE(BAD_EXTRA_SHAPE, operand);
      if (conv->filters > 1 && t->strides && t->strides[0] != 1) return REFUSE(BAD_STRIDES, operand);
      length = conv->filters;
    }
    if (length && made && data < conv->y + made && conv->y < data + length) return REFUSE(OVERLAPS, operand);
    conv->extras[x] = (vx_extra){data, 0, 0};
  }
  return 0;
}

/* Fill a convolution from its operands and the `extras` of the store stage, `count` of them. */
static int open_conv(const TVMFFIAny *args, const TVMFFIAny *extras, int64_t count, vx_conv *conv) {
  int turned = args[3].v_int64 != 0, refused;
  const TVMFFIAny *numbers = args + 4;
  const DLTensor *w;
  float *x, *data;
  int64_t extent[4], out[4];
  if ((refused = read_activation(&args[0], OPERAND_A, turned, &x, extent, conv->x_stride))) return refused;
  if ((refused = read_floats(&args[1], OPERAND_B, 1, 1, &w, &data))) return refused;
  if ((refused = read_activation(&args[2], OPERAND_OUT, turned, &conv->y, out, conv->y_stride))) return refused;
  conv->x = x;
  conv->w = data;
  conv->batch = extent[0];
  conv->height = extent[1];
  conv->width = extent[2];
  conv->channels = extent[3];
  int64_t *fields[NUMBERS] = {&conv->filters,  &conv->kernel_h, &conv->kernel_w,   &conv->out_h,      &conv->out_w, &conv->stride_h,
                              &conv->stride_w, &conv->pad_top,  &conv->pad_left, &conv->dilation_h, &conv->dilation_w, &conv->groups};
  for (int i = 0; i < NUMBERS; i++) *fields[i] = numbers[i].v_int64;
  if (out[0] != conv->batch || out[1] != conv->out_h || out[2] != conv->out_w || out[3] != conv->filters)
    return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (!is_injective(out, conv->y_stride)) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  int64_t in = reach(extent, conv->x_stride), made = reach(out, conv->y_stride);
  if (in && made && conv->x < conv->y + made && conv->y < conv->x + in) return REFUSE(OVERLAPS, OPERAND_A);
  if (w->shape[0] && made && conv->w < conv->y + made && conv->y < conv->w + w->shape[0]) return REFUSE(OVERLAPS, OPERAND_B);
  return read_extras(extras, count, turned, out, conv);
}

/* A 1x1 filter on every pixel: rows of A are pixels. Filters of one panel are a plain B, for which there are tiles of any width. */
static vx_call as_product(const vx_conv *conv) {
  vx_call call = {.a = conv->x, .b = conv->w, .c = conv->y, .m = conv->batch * conv->height * conv->width, .n = conv->filters,
                  .k = conv->channels, .outputs = conv->batch * conv->height * conv->width * conv->filters,
                  .lda = conv->x_stride[2], .ldc = conv->y_stride[2]};
  lay_panels(&call, conv->filters > vx_panel, vx_panel);
  for (int64_t x = 0; x < vx_operand_count; x++)
    call.extras[x] = (vx_extra){conv->extras[x].data, vx_operands[x].per == VX_PER_ELEMENT ? call.ldc : 0, 1};
  return call;
}

static int run_gemm(const vx_conv *conv) {
  vx_call call = as_product(conv);
  return vx_run(&call);
}

/* The weights of a form follow those of the forms before it. */
static int run_winograd(const vx_conv *conv, const vx_conv_plan *plan, int64_t forms) {
  vx_conv call = *conv;
  int64_t panels = quotient_up(conv->filters, vx_panel);
  if (forms & VX_DIRECT_FORM) call.w += panels * vx_panel * conv->kernel_h * conv->kernel_w * conv->channels;
  vx_winograd_plan fast = vx_winograd_planned(plan->strategy, plan->grid_m, plan->grid_n);
  for (int64_t a = 0; a < fast.algorithm; a++)
    if (forms & VX_DIRECT_FORM << (1 + a)) call.w += vx_winograd_floats(conv->filters, conv->channels, a);
  return vx_execute_winograd(&call, &fast);
}

static int run(const vx_conv *conv, const vx_conv_plan *plan, int64_t forms) {
  int failed = plan->family == VX_GEMM_FAMILY       ? run_gemm(conv)
               : plan->family == VX_WINOGRAD_FAMILY ? run_winograd(conv, plan, forms)
                                                    : vx_execute_conv(conv, plan);
  return failed ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
}

static int is_empty(const vx_conv *c) { return c->batch == 0 || c->out_h == 0 || c->out_w == 0 || c->filters == 0; }

/* conv(x, packed weights, out, turned, <numbers>, forms, extras...) */
EXPORT int __tvm_ffi_conv(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_conv conv;
  int refused = open_conv(args, args + 5 + NUMBERS, count - 5 - NUMBERS, &conv);
  if (refused || is_empty(&conv)) return answer(result, refused);
  int64_t forms = args[4 + FORMS].v_int64;
  vx_conv_plan plan = vx_choose_conv(&conv, forms, 0, vx_get_threads());
  return answer(result, run(&conv, &plan, forms));
}

/* conv_planned(x, packed weights, out, turned, <numbers>, forms, Winograd strategy or -1, walk_batch, grid_m, grid_n, extras...) */
EXPORT int __tvm_ffi_conv_planned(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_conv conv;
  int refused = open_conv(args, args + 9 + NUMBERS, count - 9 - NUMBERS, &conv);
  if (refused || is_empty(&conv)) return answer(result, refused);
  const TVMFFIAny *given = args + 4 + NUMBERS;
  int64_t forms = given[0].v_int64, strategy = given[1].v_int64;
  int64_t form = strategy < 0 ? VX_DIRECT_FORM : VX_DIRECT_FORM << (1 + vx_winograd_planned(strategy, 1, 1).algorithm);
  vx_conv_plan plan = vx_select_conv(&conv, 1);
  plan.walk_batch = given[2].v_int64 && plan.family == VX_DIRECT_FAMILY && conv.x_stride[3] == 1 && conv.y_stride[3] == 1 && !vx_conv_begin;
  plan.grid_m = given[3].v_int64;
  plan.grid_n = given[4].v_int64;
  if (strategy >= 0) {
    plan.family = VX_WINOGRAD_FAMILY;
    plan.strategy = strategy;
  }
  if (plan.grid_m < 1 || plan.grid_n < 1 || !(forms & form)) return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  return answer(result, run(&conv, &plan, forms));
}

/* Of dense NHWC, from batch, height, width, channels and the numbers. */
static vx_conv dense_conv(const TVMFFIAny *args) {
  vx_conv c = {.batch = args[0].v_int64, .height = args[1].v_int64, .width = args[2].v_int64, .channels = args[3].v_int64};
  int64_t *fields[NUMBERS] = {&c.filters,  &c.kernel_h, &c.kernel_w,   &c.out_h,      &c.out_w, &c.stride_h,
                              &c.stride_w, &c.pad_top,  &c.pad_left, &c.dilation_h, &c.dilation_w, &c.groups};
  for (int i = 0; i < NUMBERS; i++) *fields[i] = args[4 + i].v_int64;
  c.x_stride[3] = c.y_stride[3] = 1;
  c.x_stride[2] = c.channels;
  c.x_stride[1] = c.channels * c.width;
  c.x_stride[0] = c.x_stride[1] * c.height;
  c.y_stride[2] = c.filters;
  c.y_stride[1] = c.filters * c.out_w;
  c.y_stride[0] = c.y_stride[1] * c.out_h;
  return c;
}

/* select_conv(batch, height, width, channels, <numbers>, forms, unpacked, threads)
 * -> family + walk_batch 2^4 + strategy 2^5 + grid_m 2^20 + grid_n 2^40, for dense NHWC */
EXPORT int __tvm_ffi_select_conv(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_conv c = dense_conv(args);
  const TVMFFIAny *given = args + 4 + NUMBERS;
  vx_conv_plan plan = vx_choose_conv(&c, given[0].v_int64, given[1].v_int64, given[2].v_int64);
  return answer(result, plan.family | plan.walk_batch << 4 | plan.strategy << 5 | plan.grid_m << 20 | plan.grid_n << 40);
}

/* time_conv_selection(the same, repeats) -> nanoseconds of all repeats; of a plain product with the choice of its strategy. */
EXPORT int __tvm_ffi_time_conv_selection(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_conv c = dense_conv(args);
  const TVMFFIAny *given = args + 4 + NUMBERS;
  struct timespec start, end;
  volatile int64_t chosen = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < given[3].v_int64; i++) {
    vx_conv_plan plan = vx_choose_conv(&c, given[0].v_int64, given[1].v_int64, given[2].v_int64);
    if (plan.family == VX_GEMM_FAMILY) {
      vx_call call = as_product(&c);
      vx_polymer polymer;
      plan.strategy = vx_choose(&call, given[2].v_int64, &polymer).strategy;
    }
    chosen += plan.strategy;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return answer(result, (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec);
}

/* Filters side by side, a row for each channel and tap in the order of OIHW, out of weights that lie in another one. */
static void gather(const float *w, float *turned, int64_t filters, int64_t depth, int64_t kernel_h, int64_t kernel_w, const int64_t *stride) {
  for (int64_t c = 0; c < depth; c++)
    for (int64_t r = 0; r < kernel_h; r++)
      for (int64_t s = 0; s < kernel_w; s++, turned += vx_panel)
        for (int64_t f = 0; f < filters; f++) turned[f] = w[f * stride[0] + c * stride[1] + r * stride[2] + s * stride[3]];
}

/* The same rows, all channels of a tap together: taps in the order in which a convolution walks over them. */
static void lay_taps(const float *turned, float *to, int64_t filters, int64_t depth, int64_t kernel_h, int64_t kernel_w, int by_rows) {
  for (int64_t c = 0; c < depth; c++)
    for (int64_t r = 0; r < kernel_h; r++)
      for (int64_t s = 0; s < kernel_w; s++, turned += vx_panel)
        memcpy(to + ((by_rows ? r * kernel_w + s : s * kernel_h + r) * depth + c) * vx_panel, turned, (size_t)filters * sizeof(float));
}

/* pack_conv(w as [filters, channels, rows, columns], target, groups): see vx_execute_conv. */
EXPORT int __tvm_ffi_pack_conv(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  const DLTensor *t, *made;
  float *w, *target;
  int refused;
  if ((refused = read_floats(&args[0], OPERAND_B, 4, 4, &t, &w)) || (refused = read_floats(&args[1], OPERAND_OUT, 1, 1, &made, &target)))
    return answer(result, refused);
  int64_t filters = t->shape[0], depth = t->shape[1], kernel_h = t->shape[2], kernel_w = t->shape[3], groups = args[2].v_int64;
  int64_t dense[4] = {depth * kernel_h * kernel_w, kernel_h * kernel_w, kernel_w, 1};
  const int64_t *stride = t->strides ? t->strides : dense;
  if ((groups > 1 && depth == 1 && filters == groups) || vx_in_vectors(groups, groups * depth, filters)) {
    for (int64_t f = 0; f < filters; f++)
      for (int64_t r = 0; r < kernel_h; r++)
        for (int64_t c = 0; c < depth; c++)
          for (int64_t s = 0; s < kernel_w; s++)
            target[((r * depth + c) * kernel_w + s) * filters + f] = w[f * stride[0] + c * stride[1] + r * stride[2] + s * stride[3]];
    return answer(result, 0);
  }
  int64_t share = filters / groups, panels = quotient_up(share, vx_panel), taps = kernel_h * kernel_w;
  if (made->shape[0] != groups * panels * taps * depth * vx_panel) return answer(result, REFUSE(BAD_PACKED, OPERAND_OUT));
  int follow = stride[3] == 1 && stride[2] == kernel_w && stride[1] == taps, by_rows = vx_in_lines(groups, depth, kernel_w);
  float *turned = vx_scratch((size_t)(depth * taps * vx_panel + 1) * sizeof(float));
  if (!turned) return answer(result, REFUSE(OUT_OF_MEMORY, OPERAND_OUT));
  for (int64_t g = 0; g < groups; g++)
    for (int64_t first = 0; first < share; first += vx_panel) {
      const float *from = w + (g * share + first) * stride[0];
      float *to = target + (g * panels + first / vx_panel) * taps * depth * vx_panel;
      int64_t wide = smaller(vx_panel, share - first);
      if (follow)
        vortex_transpose(from, turned, depth * taps, wide, stride[0], vx_panel);
      else
        gather(from, turned, wide, depth, kernel_h, kernel_w, stride);
      lay_taps(turned, to, wide, depth, kernel_h, kernel_w, by_rows);
    }
  return answer(result, 0);
}

/* pack_winograd(w as dense [filters, channels, 3, 3], target, algorithm): see vx_pack_winograd. */
EXPORT int __tvm_ffi_pack_winograd(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  const DLTensor *t, *made;
  float *w, *target;
  int refused;
  if ((refused = read_floats(&args[0], OPERAND_B, 4, 4, &t, &w)) || (refused = read_floats(&args[1], OPERAND_OUT, 1, 1, &made, &target)))
    return answer(result, refused);
  int64_t filters = t->shape[0], channels = t->shape[1], algorithm = args[2].v_int64;
  if (made->shape[0] != vx_winograd_floats(filters, channels, algorithm)) return answer(result, REFUSE(BAD_PACKED, OPERAND_OUT));
  return answer(result, vx_pack_winograd(w, target, filters, channels, algorithm) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}
