/* Operands of a GPU library's calls: read from DLPack, checked, and told as matrices of one product or of several. */
#include "gpu_call.h"

static int64_t read_matrix(const library *of, const DLTensor *t, int operand, matrix *out) {
  const vx_gpu_setup *s = &of->setup;
  int is_out = operand == OPERAND_OUT;
  int64_t refused = vx_gpu_read_data(&of->on, t, operand, is_out ? s->out_code : s->dtype_code, is_out ? s->out_bits : s->dtype_bits, &out->data);
  if (refused) return refused;
  if (t->ndim < 2 || t->ndim > (s->is_batched || s->is_grouped ? 4 : 2)) return REFUSE(BAD_RANK, operand);
  const int64_t *shape = t->shape + t->ndim - 2, *strides = t->strides ? t->strides + t->ndim - 2 : NULL;
  int64_t r = shape[0], c = shape[1];
  int64_t down = strides ? strides[0] : c, along = strides ? strides[1] : 1;
  int empty = 0;
  for (int i = 0; i < t->ndim; i++) empty |= t->shape[i] == 0;
  if (empty || ((c == 1 || along == 1) && (r == 1 || down >= c))) {
    *out = (matrix){out->data, r, c, r <= 1 || empty || down < c ? (c > 0 ? c : 1) : down, 0, {1, 1}, {0, 0}};
  } else if ((r == 1 || down == 1) && (c == 1 || along >= r)) {
    *out = (matrix){out->data, c, r, c <= 1 || along < r ? r : along, 1, {1, 1}, {0, 0}};
  } else {
    return REFUSE(BAD_STRIDES, operand);
  }
  if (out->rows > LONGEST || out->columns > LONGEST || out->stride > LIMIT_32) return REFUSE(TOO_LARGE, operand);
  if (!of->setup.wide && out->rows && out->columns && (out->rows - 1) * out->stride + out->columns > LIMIT_32)
    return REFUSE(TOO_LARGE, operand);
  for (int place = t->ndim - 3, axis = 1, dense = 1; place >= 0; place--, axis--) {
    out->extents[axis] = t->shape[place];
    if (t->strides) out->steps[axis] = t->strides[place];
    else out->steps[axis] = r * c * (dense ? 1 : out->extents[1]), dense = 0;
    if (out->extents[axis] == 1) out->steps[axis] = 0;
    if (out->steps[axis] < 0) return REFUSE(BAD_STRIDES, operand);
  }
  return 0;
}

int vx_gpu_is_empty(const matrix *x) { return !x->rows || !x->columns || !x->extents[0] || !x->extents[1]; }

/* Bytes from the first element to the end of the last. */
static int64_t reach(const matrix *x, int64_t item) {
  int64_t apart = (x->extents[0] - 1) * x->steps[0] + (x->extents[1] - 1) * x->steps[1];
  return (apart + (x->rows - 1) * x->stride + x->columns) * item;
}

/* The largest number of bytes that all lines start on a multiple of, from the first one; 0 for a single line. */
static int64_t spacing(const matrix *x, int64_t item) {
  int64_t step = x->rows > 1 ? x->stride : 0;
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) step = greatest_divisor(step, x->steps[axis]);
  return step * item;
}

/* Whether some byte may belong to both: not if they are apart, nor if all lines of one lie between lines of the other. */
static int overlap(const matrix *x, int64_t x_item, const matrix *y, int64_t y_item) {
  if (vx_gpu_is_empty(x) || vx_gpu_is_empty(y)) return 0;
  if (x->data + reach(x, x_item) <= y->data || y->data + reach(y, y_item) <= x->data) return 0;
  int64_t step = greatest_divisor(spacing(x, x_item), spacing(y, y_item));
  if (!step) return 1;
  int64_t apart = (x->data - y->data) % step;
  if (apart < 0) apart += step;
  return !(apart >= y->columns * y_item && apart + x->columns * x_item <= step);
}

/* A tensor of the epilogue, `end` elements long, which must not lie where C does. */
int64_t vx_gpu_take_extra(const library *of, int32_t which, char *data, int64_t end, int64_t row, int64_t column, call *c) {
  int64_t item = of->setup.extras[which].bits / 8;
  matrix whole = {data, 1, end, end, 0, {1, 1}, {0, 0}};
  if (!vx_gpu_is_empty(&c->c) && overlap(&c->c, of->out_bytes, &whole, item)) return REFUSE(OVERLAPS, FIRST_EXTRA + which);
  c->finished.operand[which] = data;
  c->finished.row[which] = row;
  c->finished.column[which] = column;
  c->finished.apart[which][0] = c->finished.apart[which][1] = 0;
  return 0;
}

/* A tensor of the epilogue of products of so many rows: [n], [m] or [m, n], with up to `axes` axes of a batch in front. */
static int64_t read_extra(const library *of, const DLTensor *t, int32_t which, int64_t rows, const int64_t *batch, int32_t axes, call *c) {
  const vx_gpu_extra *wanted = &of->setup.extras[which];
  int64_t extents[4] = {batch[0], batch[1], rows, c->shape.n}, strides[4] = {0}, step = 1, end = 1;
  int operand = FIRST_EXTRA + which, rank = wanted->per == VX_PER_ELEMENT ? 2 : 1;
  char *data;
  int64_t refused = vx_gpu_read_data(&of->on, t, operand, wanted->code, wanted->bits, &data);
  if (refused) return refused;
  if (t->ndim < rank || t->ndim > rank + axes) return REFUSE(BAD_EXTRA, operand);
  for (int axis = t->ndim - 1; axis >= 0; axis--) {
    int of_batch = t->ndim - rank > axis, place = of_batch ? axis + 2 - (t->ndim - rank) : wanted->per == VX_PER_ROW ? 2 : axis + 4 - t->ndim;
    int64_t extent = t->shape[axis], stride = t->strides ? t->strides[axis] : step;
    if (extent != extents[place] && !(of_batch && extent == 1)) return REFUSE(BAD_EXTRA, operand);
    if (extent > 1 && stride < 0) return REFUSE(BAD_STRIDES, operand);
    if (extent > 1) strides[place] = stride;
    end += (extent - 1) * strides[place];
    step *= extent;
  }
  if ((refused = vx_gpu_take_extra(of, which, data, end, strides[2], strides[3], c))) return refused;
  for (int axis = 0; axis < 2; axis++) c->finished.apart[which][axis] = strides[axis] * (wanted->bits / 8);
  return 0;
}

/* The largest of 16, 8, 4, 2 that divides where every row starts and how long it is. */
int32_t vx_gpu_alignment(const matrix *x, int64_t item) {
  uint64_t bits = 16 | (uint64_t)(uintptr_t)x->data | (uint64_t)(x->columns * item);
  if (x->rows > 1) bits |= (uint64_t)(x->stride * item);
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) bits |= (uint64_t)(x->steps[axis] * item);
  return (int32_t)(bits & (~bits + 1));
}

/* C's alignment as kernels count it: in bytes of so many elements of A. None stores more than four elements at a time. */
int32_t vx_gpu_alignment_of_stores(const library *of, const matrix *c) {
  int32_t bytes = vx_gpu_alignment(c, of->out_bytes);
  if (!of->setup.finishes) return bytes;
  return bytes >= 4 * of->out_bytes ? 16 : (int32_t)(bytes * of->item_bytes / of->out_bytes);
}

/* Whether products of a batch would write the same element: each axis, by step, must pass what those below it fill. */
static int meets_itself(const matrix *c) {
  int64_t extents[3] = {c->extents[0], c->extents[1], c->rows}, steps[3] = {c->steps[0], c->steps[1], c->stride}, filled = c->columns;
  for (int left = 3; left; left--) {
    int next = -1;
    for (int i = 0; i < 3; i++)
      if (extents[i] > 1 && (next < 0 || steps[i] < steps[next])) next = i;
    if (next < 0) break;
    if (steps[next] < filled) return 1;
    filled += (extents[next] - 1) * steps[next];
    extents[next] = 1;
  }
  return 0;
}

/* How many products there are: A's and B's axes, each as long as the other's or 1, which serves all. */
static int64_t open_batch(call *c) {
  c->shape.batch = 1;
  for (int axis = 0; axis < 2; axis++) {
    int64_t left = c->a.extents[axis], right = c->b.extents[axis], all = left == 1 ? right : left;
    if (right != all && right != 1) return REFUSE(BATCH_DIFFERS, OPERAND_B);
    if (c->c.extents[axis] != all) return REFUSE(BATCH_DIFFERS, OPERAND_OUT);
    c->shape.batch *= all;
  }
  return 0;
}

/* Whether what the epilogue reads goes on from the rows of one product to those of the next along an axis; then it is of all of them. */
static int fold_extras(const library *of, call *c, int axis) {
  vx_gpu_finished *f = &c->finished;
  for (int32_t i = 0; i < of->setup.extra_count; i++) {
    int64_t row = f->row[i] * (of->setup.extras[i].bits / 8);
    if (of->setup.extras[i].per == VX_PER_COLUMN ? f->apart[i][axis] != 0 : c->shape.m > 1 && f->apart[i][axis] != c->shape.m * row) return 0;
  }
  for (int32_t i = 0; i < of->setup.extra_count; i++) {
    if (c->shape.m == 1) f->row[i] = f->apart[i][axis] / (of->setup.extras[i].bits / 8);
    f->apart[i][axis] = 0;
  }
  return 1;
}

/* Products that all take the same B are one with more rows, if rows of A and of C go on from one to the next. */
static void fold(const library *of, call *c) {
  for (int axis = 1; axis >= 0; axis--) {
    int64_t count = c->c.extents[axis], rows = c->shape.m * count;
    if (axis == 0 && c->c.extents[1] != 1) return;
    if (count == 1) continue;
    if (c->shape.transpose_a || c->b.extents[axis] != 1 || c->a.extents[axis] != count || rows > LONGEST) return;
    if (c->a.steps[axis] != c->shape.m * c->a.stride || c->c.steps[axis] != c->shape.m * c->c.stride) return;
    if (!fold_extras(of, c, axis)) return;
    c->shape.batch /= count;
    c->shape.m = c->a.rows = c->c.rows = rows;
    c->a.extents[axis] = c->c.extents[axis] = 1;
    c->a.steps[axis] = c->c.steps[axis] = 0;
  }
}

/* A, B and C of one product, or of several that are alike. */
static int64_t open_product(const library *of, const DLTensor *tensors, int64_t flags, call *out) {
  int64_t refused;
  if ((refused = read_matrix(of, &tensors[0], OPERAND_A, &out->a)) || (refused = read_matrix(of, &tensors[1], OPERAND_B, &out->b)) ||
      (refused = read_matrix(of, &tensors[2], OPERAND_OUT, &out->c)))
    return refused;
  matrix *a = &out->a, *b = &out->b, *c = &out->c;
  vx_gpu_shape *s = &out->shape;
  s->seen = 1;
  s->transpose_a = !!(flags & TRANSPOSE_A) ^ a->is_transposed;
  s->transpose_b = !!(flags & TRANSPOSE_B) ^ b->is_transposed;
  s->m = s->transpose_a ? a->columns : a->rows;
  s->k = s->transpose_a ? a->rows : a->columns;
  s->n = s->transpose_b ? b->rows : b->columns;
  if ((s->transpose_b ? b->columns : b->rows) != s->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  if (c->is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  return c->rows != s->m || c->columns != s->n ? REFUSE(BAD_OUT_SHAPE, OPERAND_OUT) : 0;
}

/* Whether C may be written while A and B are read. */
int64_t vx_gpu_refuse_overlaps(const library *of, const matrix *a, const matrix *b, const matrix *c) {
  if (!vx_gpu_is_empty(c) && meets_itself(c)) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (overlap(c, of->out_bytes, a, of->item_bytes)) return REFUSE(OVERLAPS, OPERAND_A);
  return overlap(c, of->out_bytes, b, of->item_bytes) ? REFUSE(OVERLAPS, OPERAND_B) : 0;
}

int64_t vx_gpu_open_call(const library *of, const DLTensor *tensors, int64_t flags, call *out) {
  int64_t refused;
  matrix *a = &out->a, *b = &out->b, *c = &out->c;
  vx_gpu_shape *s = &out->shape;
  if ((refused = open_product(of, tensors, flags, out)) || (refused = open_batch(out)) || (refused = vx_gpu_refuse_overlaps(of, a, b, c)))
    return refused;
  out->finished = (vx_gpu_finished){.c = c->data};
  for (int32_t i = 0; i < of->setup.extra_count; i++)
    if ((refused = read_extra(of, &tensors[FIRST_EXTRA + i], i, s->m, c->extents, of->setup.is_batched ? 2 : 0, out))) return refused;
  s->alignment = vx_gpu_alignment(a, of->item_bytes) | vx_gpu_alignment(b, of->item_bytes) | vx_gpu_alignment_of_stores(of, c);
  s->alignment &= -s->alignment;
  if (s->batch > 1 && s->m) fold(of, out);
  return 0;
}

/* Rows of A and C in groups, each with its matrix of B. The choice is made as for as many groups of their mean height. */
int64_t vx_gpu_open_groups(const library *of, const DLTensor *tensors, const int64_t *rows, int64_t count, int64_t flags, call *c) {
  int64_t refused, all = 0, filled = 0, bits = 0;
  if ((refused = open_product(of, tensors, flags, c)) || (refused = vx_gpu_refuse_overlaps(of, &c->a, &c->b, &c->c))) return refused;
  for (int operand = OPERAND_A; operand <= OPERAND_OUT; operand++)
    if (tensors[operand].ndim != 2 + (operand == OPERAND_B)) return REFUSE(BAD_RANK, operand);
  if (c->b.extents[1] != count) return DETAILED(BAD_GROUPS, OPERAND_B, count);
  for (int64_t i = 0; i < count; i++) {
    if (rows[i] < 0 || rows[i] > c->shape.m - all) return REFUSE(BAD_GROUPS, OPERAND_A);
    all += rows[i];
    filled += rows[i] > 0;
    bits |= all * of->item_bytes; /* where the groups of a turned A begin and end */
  }
  if (all != c->shape.m) return REFUSE(BAD_GROUPS, OPERAND_A);
  vx_gpu_shape *s = &c->shape;
  c->finished = (vx_gpu_finished){.c = c->c.data};
  for (int32_t i = 0; i < of->setup.extra_count; i++) {
    const vx_gpu_extra *wanted = &of->setup.extras[i];
    int32_t axes = wanted->per == VX_PER_COLUMN;
    if ((refused = read_extra(of, &tensors[FIRST_EXTRA + i], i, all, (int64_t[]){1, count}, axes, c))) return refused;
    c->finished.apart[i][0] = c->finished.row[i] * (wanted->bits / 8);
  }
  bits = (s->transpose_a ? bits : 0) | vx_gpu_alignment(&c->a, of->item_bytes) | vx_gpu_alignment(&c->b, of->item_bytes) | vx_gpu_alignment_of_stores(of, &c->c);
  s->alignment = (int32_t)(bits & -bits);
  s->batch = filled ? filled : 1;
  s->m = quotient_up(all, s->batch);
  c->rows = rows;
  c->groups = count;
  return 0;
}
