/* The door of plans: which one a call gets, and calls by plans that the caller names, as explanations and the evaluation ask for them. */
#include "opened.h"

/* What a plan has room for on its way to Python; what lies before the words of a panel, of tiles and of weights, is of all of k. */
#define MOST_SPLITS (VX_TILES || VX_WEIGHTS ? 1 : 32767)
#define REGION_FIELDS 7 /* of a vx_region, that Python sees */

static vx_call shape_only(const TVMFFIAny *args) {
  return (vx_call){.m = args[0].v_int64, .n = args[1].v_int64, .k = args[2].v_int64, .lda = args[3].v_int64,
                   .ldb = args[4].v_int64, .transpose_a = (int32_t)args[5].v_int64,
                   .transpose_b = (int32_t)args[6].v_int64, .packed = (int32_t)args[7].v_int64};
}

/* select(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads) -> strategy + grid_m 2^16 + grid_n 2^32 + splits 2^48 */
EXPORT int __tvm_ffi_select(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  vx_plan plan = vx_select(&call, args[8].v_int64);
  return answer(result, plan.strategy | plan.grid_m << 16 | plan.grid_n << 32 | plan.splits << 48);
}

/* regions(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads, place) -> how many regions the call is cut into, then the
 * pattern, then the fields of each up to its grid. */
EXPORT int __tvm_ffi_regions(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  vx_polymer polymer;
  vx_choose(&call, args[8].v_int64, &polymer);
  int64_t place = args[9].v_int64, r = (place - 2) / REGION_FIELDS;
  if (place < 1 || polymer.count == 0) return answer(result, polymer.count);
  if (place == 1) return answer(result, polymer.pattern);
  if (r >= polymer.count) return answer(result, 0);
  const vx_region *region = &polymer.regions[r];
  const int64_t fields[REGION_FIELDS] = {region->row,      region->column, region->rows,  region->columns,
                                         region->strategy, region->grid_m, region->grid_n};
  return answer(result, fields[(place - 2) % REGION_FIELDS]);
}

/* polymerizing(on): whether calls may be cut into regions, of all callers of this library. */
EXPORT int __tvm_ffi_polymerizing(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_set_polymerizing((int)args[0].v_int64);
  return answer(result, 0);
}

/* time_selection(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads, repeats) -> nanoseconds in all */
EXPORT int __tvm_ffi_time_selection(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  return answer(result, (int64_t)(1e9 * vx_time_selection(&call, args[8].v_int64, args[9].v_int64)));
}

/* gemm_planned(a, b or packed, out, flags, n, k, packed, strategy, grid_m, grid_n, splits, extras...): what the oracle of the
 * evaluation calls. */
EXPORT int __tvm_ffi_gemm_planned(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  vx_plan plan = {args[7].v_int64, args[8].v_int64, args[9].v_int64, args[10].v_int64, vx_get_threads()};
  int refused = vx_open_call(args, args + 11, count - 11, args[3].v_int64, (int)args[6].v_int64, args[4].v_int64, args[5].v_int64, &call);
  if (refused) return answer(result, refused);
  if (plan.grid_m < 1 || plan.grid_n < 1 || plan.splits < 1 || plan.splits > MOST_SPLITS)
    return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  if (!vx_serves(&call, plan.strategy)) return answer(result, REFUSE(BAD_PLAN, OPERAND_B));
  if (call.m == 0 || call.n == 0) return answer(result, 0);
  return answer(result, vx_execute(&call, &plan) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}

#if !VX_WORDS
/* Whether each region lies in the output, none meets another, together they are all of it, and their strategies serve them. */
static int regions_serve(const vx_call *call, const vx_region *regions, int64_t count) {
  int64_t area = 0, dots = 0;
  for (int64_t i = 0; i < count; i++) {
    const vx_region *r = &regions[i];
    if (r->row < 0 || r->column < 0 || r->rows < 1 || r->columns < 1 || r->grid_m < 1 || r->grid_n < 1) return 0;
    if (r->rows > call->m - r->row || r->columns > call->n - r->column || r->grid_m > call->m || r->grid_n > call->n) return 0;
    if (call->packed && r->column % vx_panel) return 0;
    for (int64_t j = 0; j < i; j++) {
      const vx_region *o = &regions[j];
      if (r->row < o->row + o->rows && o->row < r->row + r->rows && r->column < o->column + o->columns && o->column < r->column + r->columns)
        return 0;
    }
    vx_call part = vx_region_call(call, r);
    if (!vx_serves(&part, r->strategy)) return 0;
    dots += vx_strategies[r->strategy].dot;
    area += r->rows * r->columns;
  }
  return area == call->m * call->n && dots <= 1 && vx_may_cut();
}

/* gemm_regions(a, b or packed, out, flags, n, k, packed, count, the fields of each vx_region up to its grid..., extras...) */
EXPORT int __tvm_ffi_gemm_regions(void *self, const TVMFFIAny *args, int32_t given, TVMFFIAny *result) {
  vx_call call;
  vx_region regions[VX_REGIONS];
  int64_t count = args[7].v_int64;
  if (count < 1 || count > VX_REGIONS || given < 8 + REGION_FIELDS * count) return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  for (int64_t r = 0; r < count; r++) {
    const TVMFFIAny *f = args + 8 + REGION_FIELDS * r;
    regions[r] = (vx_region){f[0].v_int64, f[1].v_int64, f[2].v_int64, f[3].v_int64, f[4].v_int64, f[5].v_int64, f[6].v_int64, 0.0f};
  }
  int64_t read = 8 + REGION_FIELDS * count;
  int refused = vx_open_call(args, args + read, given - read, args[3].v_int64, (int)args[6].v_int64, args[4].v_int64, args[5].v_int64, &call);
  if (refused) return answer(result, refused);
  if (call.m == 0 || call.n == 0) return answer(result, 0);
  if (!regions_serve(&call, regions, count)) return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  return answer(result, vx_execute_regions(&call, regions, count) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}
#endif
