/* The door of batched and grouped products: every operand is checked here, once; a refusal is a number that Python turns into words. */
#include "batch.h"
#include "door.h"
#include "integers.h"

#define MOST_RANK 4

/* Matrices along up to two axes, outer first; an axis that is missing, or along which all are one, has stride 0. */
typedef struct {
  matrix item;
  int64_t extents[2], strides[2];
} matrices;

static int read_axes(const DLTensor *t, int operand, matrices *out) {
  int64_t step = t->shape[t->ndim - 2] * t->shape[t->ndim - 1];
  for (int axis = 1; axis >= 0; axis--) {
    int place = t->ndim - 4 + axis;
    out->extents[axis] = place < 0 ? 1 : t->shape[place];
    out->strides[axis] = place < 0 || t->shape[place] == 1 ? 0 : t->strides ? t->strides[place] : step;
    if (out->strides[axis] < 0) return REFUSE(BAD_STRIDES, operand);
    step *= out->extents[axis];
  }
  return 0;
}

static int read_matrices(const TVMFFIAny *value, int operand, matrices *out) {
  const DLTensor *t;
  int refused = read_floats(value, operand, 2, MOST_RANK, &t, &out->item.data);
  if (refused) return refused;
  if (!lay_out(t, &out->item)) return REFUSE(BAD_STRIDES, operand);
  return read_axes(t, operand, out);
}

/* A packed operand: the panels of every matrix one after the other, [..., panels * k * vx_panel]. */
static int read_packed(const TVMFFIAny *value, int64_t n, int64_t k, matrices *out) {
  const DLTensor *t;
  int refused = read_floats(value, OPERAND_B, 1, MOST_RANK - 1, &t, &out->item.data);
  if (refused) return refused;
  int64_t room = (n + vx_panel - 1) / vx_panel * k * vx_panel, step = room;
  if (t->shape[t->ndim - 1] != room) return REFUSE(BAD_PACKED, OPERAND_B);
  out->item = (matrix){out->item.data, 1, room, room > 0 ? room : 1, 0};
  for (int axis = 1; axis >= 0; axis--) {
    int place = t->ndim - 3 + axis;
    out->extents[axis] = place < 0 ? 1 : t->shape[place];
    out->strides[axis] = out->extents[axis] == 1 ? 0 : step;
    step *= out->extents[axis];
  }
  return 0;
}

static int empty(const matrices *x) {
  return !x->item.rows || !x->item.columns || !x->extents[0] || !x->extents[1];
}

static int64_t reach(const matrices *x) {
  return (x->extents[0] - 1) * x->strides[0] + (x->extents[1] - 1) * x->strides[1] + (x->item.rows - 1) * x->item.stride +
         x->item.columns;
}

/* What every line of a tensor starts on a multiple of, 0 for a single line. */
static int64_t spacing(const matrices *x) {
  int64_t step = x->item.rows > 1 ? x->item.stride : 0;
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) step = greatest_divisor(x->strides[axis], step);
  return step;
}

/* Whether some element may belong to both: never where lines of one lie between those of the other. */
static int overlap(const matrices *x, const matrices *y) {
  if (empty(x) || empty(y)) return 0;
  if (x->item.data + reach(x) <= y->item.data || y->item.data + reach(y) <= x->item.data) return 0;
  int64_t step = greatest_divisor(spacing(x), spacing(y));
  if (step == 0) return 1;
  int64_t apart = (x->item.data - y->item.data) % step;
  if (apart < 0) apart += step;
  return !(apart >= y->item.columns && apart + x->item.columns <= step);
}

/* Whether two elements of an output share memory: each axis, by stride, must step over all that those below it fill. */
static int overlaps_itself(const matrices *x) {
  if (empty(x)) return 0;
  int64_t extents[3] = {x->item.rows, x->extents[0], x->extents[1]};
  int64_t strides[3] = {x->item.stride, x->strides[0], x->strides[1]};
  int64_t filled = x->item.columns;
  for (int taken = 0; taken < 3; taken++) {
    int least = -1;
    for (int i = 0; i < 3; i++)
      if (extents[i] > 1 && (least < 0 || strides[i] < strides[least])) least = i;
    if (least < 0) return 0;
    if (strides[least] < filled) return 1;
    filled += (extents[least] - 1) * strides[least];
    extents[least] = 1;
  }
  return 0;
}

/* The rows, columns and depth of a product, from its operands as they lie. */
static int open_item(const matrix *a, const matrix *b, const matrix *c, int64_t flags, int packed, int64_t n, int64_t k,
                     vx_call *call) {
  int col_a = !!(flags & TRANSPOSE_A) ^ a->is_transposed, col_b = !packed && (!!(flags & TRANSPOSE_B) ^ b->is_transposed);
  *call = (vx_call){.a = a->data, .b = b->data, .c = c->data, .lda = a->stride, .ldb = packed ? vx_panel : b->stride,
                    .ldc = c->stride, .transpose_a = col_a, .transpose_b = col_b, .packed = packed,
                    .accumulate = !!(flags & ACCUMULATE)};
  call->m = col_a ? a->columns : a->rows;
  call->k = col_a ? a->rows : a->columns;
  call->n = packed ? n : col_b ? b->rows : b->columns;
  call->panel = packed ? vx_panel : (int64_t)1 << 40;
  call->panel_stride = packed ? vx_panel * k : 0;
  if ((packed ? k : col_b ? b->columns : b->rows) != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  if (c->is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (c->rows != call->m || c->columns != call->n) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  return 0;
}

/* Operands a, b or packed, out; flags; packed, n, k: what both operators read alike. */
static int read_operands(const TVMFFIAny *args, matrices *a, matrices *b, matrices *c) {
  int refused, packed = (int)args[4].v_int64;
  if ((refused = read_matrices(&args[0], OPERAND_A, a)) || (refused = read_matrices(&args[2], OPERAND_OUT, c))) return refused;
  return packed ? read_packed(&args[1], args[5].v_int64, args[6].v_int64, b) : read_matrices(&args[1], OPERAND_B, b);
}

static int apart(const matrices *a, const matrices *b, const matrices *c) {
  if (overlaps_itself(c)) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (overlap(c, a)) return REFUSE(OVERLAPS, OPERAND_A);
  return overlap(c, b) ? REFUSE(OVERLAPS, OPERAND_B) : 0;
}

static int open_batch(const TVMFFIAny *args, vx_batch *batch) {
  matrices a, b, c;
  int refused = read_operands(args, &a, &b, &c);
  if (refused) return refused;
  int64_t flags = args[3].v_int64, n = args[5].v_int64, k = args[6].v_int64;
  if ((refused = open_item(&a.item, &b.item, &c.item, flags, (int)args[4].v_int64, n, k, &batch->call))) return refused;
  for (int axis = 0; axis < 2; axis++) {
    int64_t left = a.extents[axis], right = b.extents[axis], all = left == 1 ? right : left;
    if (right != all && right != 1) return REFUSE(BATCH_DIFFERS, OPERAND_B);
    if (c.extents[axis] != all) return REFUSE(BATCH_DIFFERS, OPERAND_OUT);
    batch->extents[axis] = all;
    batch->a[axis] = a.strides[axis];
    batch->b[axis] = b.strides[axis];
    batch->c[axis] = c.strides[axis];
  }
  return apart(&a, &b, &c);
}

static int run(vx_batch *batch, const vx_plan *given) {
  vx_call *call = &batch->call;
  if (call->m == 0 || call->n == 0 || vx_products(batch) == 0) return 0;
  int alone = vx_products(batch) == 1;
  if (alone && !given) return vx_run(call) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
  vx_plan plan = given ? *given : vx_select_products(batch, vx_get_threads());
  return (alone ? vx_execute(call, &plan) : vx_execute_batch(batch, &plan)) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
}

/* batch_gemm(a, b or packed, out, flags, packed, n, k) */
EXPORT int __tvm_ffi_batch_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_batch batch;
  int refused = open_batch(args, &batch);
  if (refused) return answer(result, refused);
  vx_fold(&batch);
  return answer(result, run(&batch, NULL));
}

/* batch_gemm_planned(a, b or packed, out, flags, packed, n, k, strategy, grid_m, grid_n, workers): products as they are, none folded. */
EXPORT int __tvm_ffi_batch_gemm_planned(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_batch batch;
  vx_plan plan = {args[7].v_int64, args[8].v_int64, args[9].v_int64, 1, args[10].v_int64};
  int refused = open_batch(args, &batch);
  if (refused) return answer(result, refused);
  if (plan.grid_m < 1 || plan.grid_n < 1 || plan.workers < 1) return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  if (!vx_serves(&batch.call, plan.strategy)) return answer(result, REFUSE(BAD_PLAN, OPERAND_B));
  return answer(result, run(&batch, &plan));
}

/* grouped_gemm(a, b or packed, out, flags, packed, n, k, rows) */
EXPORT int __tvm_ffi_grouped_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  matrices a, b, c;
  vx_grouped work;
  int refused = read_operands(args, &a, &b, &c);
  if (refused) return answer(result, refused);
  int64_t flags = args[3].v_int64, n = args[5].v_int64, k = args[6].v_int64, total = 0;
  if (a.extents[0] * a.extents[1] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_A));
  if (c.extents[0] * c.extents[1] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_OUT));
  if (b.extents[0] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_B));
  if ((refused = open_item(&a.item, &b.item, &c.item, flags, (int)args[4].v_int64, n, k, &work.call)))
    return answer(result, refused);
  if ((refused = apart(&a, &b, &c))) return answer(result, refused);
  const DLTensor *rows = tensor_of(&args[7]);
  if (!rows || rows->ndim != 1 || rows->dtype.code != kDLInt || rows->dtype.bits != 64)
    return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
  work.rows = (const int64_t *)((const char *)rows->data + rows->byte_offset);
  work.groups = rows->shape[0];
  work.stride_b = b.strides[1];
  if (work.groups != b.extents[1]) return answer(result, REFUSE(BATCH_DIFFERS, OPERAND_B));
  for (int64_t g = 0; g < work.groups; g++) {
    if (work.rows[g] < 0 || work.rows[g] > work.call.m - total) return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
    total += work.rows[g];
  }
  if (total != work.call.m) return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
  if (total == 0 || work.call.n == 0) return answer(result, 0);
  return answer(result, vx_execute_grouped(&work, vx_get_threads()) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}

/* select_batch(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads, batch, items_a, items_b) ->
 * strategy + grid_m 2^16 + grid_n 2^32 + splits 2^48, and 2^15 if several threads share the tasks */
EXPORT int __tvm_ffi_select_batch(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = {.m = args[0].v_int64, .n = args[1].v_int64, .k = args[2].v_int64, .lda = args[3].v_int64,
                  .ldb = args[4].v_int64, .transpose_a = (int32_t)args[5].v_int64,
                  .transpose_b = (int32_t)args[6].v_int64, .packed = (int32_t)args[7].v_int64};
  vx_plan plan = vx_select_batch(&call, args[9].v_int64, args[10].v_int64, args[11].v_int64, args[8].v_int64);
  return answer(result, plan.strategy | (int64_t)(plan.workers > 1) << 15 | plan.grid_m << 16 | plan.grid_n << 32 | plan.splits << 48);
}
