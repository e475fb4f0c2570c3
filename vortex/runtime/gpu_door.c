/* The door of a GPU library: one native call checks the operands, selects and launches on the caller's stream.
 *
 * It allocates nothing and waits for nothing. */
#include "gpu_call.h"

#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_SPLITS 65535

EXPORT int32_t vx_gpu_abi(void) { return VX_DOOR_ABI; }

EXPORT void *vx_gpu_open(const char *driver_name, const vx_gpu_setup *setup, const char **missing) {
  library *opened = vx_gpu_open_on(driver_name, &setup->place, setup->map_type >= 0, sizeof *opened, missing);
  if (!opened) return NULL;
  opened->setup = *setup;
  opened->item_bytes = setup->dtype_bits / 8;
  opened->out_bytes = setup->out_bits / 8;
  opened->may_cut = 1;
  return opened;
}

EXPORT void vx_gpu_polymerizing(library *of, int32_t on) { of->may_cut = on; }

static int64_t run_released(library *of, const call *c, const vx_gpu_regions *regions, void *stream) {
  if (vx_gpu_is_empty(&c->c)) return 0;
  void *thread = vx_gpu_release_python(&of->on);
  int64_t status = vx_gpu_run(of, c, regions, stream);
  vx_gpu_regain_python(&of->on, thread);
  return status;
}

/* By the plan that the selector picks; `room` bytes may be used by partial sums. */
static int64_t run_selected(library *of, const call *c, int64_t room, int32_t may_cut, void *stream) {
  vx_gpu_regions regions = {.count = 1, .plans = {{0, 1, (int32_t)c->shape.k, 1, 0}}};
  if (!vx_gpu_is_empty(&c->c) && c->shape.k) vx_gpu_divide(&c->shape, room, may_cut, &regions);
  return regions.plans[0].kernel < 0 ? REFUSE(NO_KERNEL, OPERAND_A) : run_released(of, c, &regions, stream);
}

static int64_t select_and_run(library *of, const DLTensor *tensors, int64_t flags, void *stream) {
  call c = {0};
  int64_t refused = vx_gpu_open_call(of, tensors, flags, &c);
  return refused ? refused : run_selected(of, &c, of->setup.workspace_bytes, of->may_cut, stream);
}

/* Operands of a framework that has DLPack's exchange API, on its current stream unless `has_stream`. */
EXPORT int64_t vx_gpu_gemm(library *of, const DLPackExchangeAPI *api, void *a, void *b, void *out, int64_t flags,
                           void *stream, int32_t has_stream) {
  DLTensor tensors[3];
  void *objects[3] = {a, b, out};
  int64_t refused = vx_gpu_read_objects(&of->on, api, objects, 3, tensors, &stream, has_stream);
  return refused ? refused : select_and_run(of, tensors, flags, stream);
}

/* The same with the tensors of an epilogue behind A, B and C. */
EXPORT int64_t vx_gpu_gemm_finished(library *of, const DLPackExchangeAPI *api, void *const *objects, int64_t flags, void *stream,
                                    int32_t has_stream) {
  DLTensor tensors[MOST_OPERANDS];
  int64_t refused = vx_gpu_read_objects(&of->on, api, objects, FIRST_EXTRA + of->setup.extra_count, tensors, &stream, has_stream);
  return refused ? refused : select_and_run(of, tensors, flags, stream);
}

static void gather(const library *of, const DLTensor *const *operands, DLTensor *tensors) {
  for (int i = 0; i < FIRST_EXTRA + of->setup.extra_count; i++) tensors[i] = *operands[i];
}

/* Operands by their DLPack descriptions. */
EXPORT int64_t vx_gpu_gemm_described(library *of, const DLTensor *const *operands, int64_t flags, void *stream) {
  DLTensor tensors[MOST_OPERANDS];
  gather(of, operands, tensors);
  return select_and_run(of, tensors, flags, stream);
}

/* Whether a kernel serves operands of this layout and alignment. */
static int serves(const vx_gpu_kernel *kernel, const vx_gpu_shape *s) {
  return kernel->transpose_a == s->transpose_a && kernel->transpose_b == s->transpose_b && kernel->vector_bytes <= s->alignment;
}

/* Whether a plan can compute a product of these extents. */
static int64_t check_plan(const library *of, const vx_gpu_shape *s, const vx_gpu_plan *plan) {
  if (plan->kernel < 0 || plan->kernel >= of->setup.kernel_count) return REFUSE(BAD_PLAN, OPERAND_OUT);
  const vx_gpu_kernel *kernel = &of->setup.kernels[plan->kernel];
  int is_whole = plan->splits == 1;
  if (plan->splits < 1 || plan->splits > MOST_SPLITS || (!is_whole && (kernel->split < 0 || plan->chunk < 1 || plan->chunk % kernel->tile_k)))
    return REFUSE(BAD_PLAN, OPERAND_OUT);
  if (!is_whole && (int64_t)plan->chunk * plan->splits < s->k) return REFUSE(BAD_PLAN, OPERAND_OUT);
  return serves(kernel, s) ? 0 : REFUSE(BAD_PLAN, OPERAND_A);
}

/* The same with given plans: what the oracle of the evaluation and the check of every kernel call. */
EXPORT int64_t vx_gpu_gemm_planned(library *of, const DLTensor *const *operands, int64_t flags, void *stream, const vx_gpu_regions *regions) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = vx_gpu_open_call(of, tensors, flags, &c);
  if (refused) return refused;
  int64_t length = regions->along_n ? c.shape.n : c.shape.m;
  if (regions->count < 1 || regions->count > 2) return REFUSE(BAD_PLAN, OPERAND_OUT);
  if (regions->count == 2 && (c.shape.batch != 1 || regions->at < 1 || regions->at >= length || regions->at % VX_GPU_STEP))
    return REFUSE(BAD_PLAN, OPERAND_OUT);
  for (int32_t i = 0; i < regions->count; i++)
    if ((refused = check_plan(of, &c.shape, &regions->plans[i]))) return refused;
  return run_released(of, &c, regions, stream);
}

/* By the selected plan of one kernel, or by a given one. */
static int64_t run_whole(library *of, const call *c, int64_t room, const vx_gpu_plan *plan, void *stream) {
  if (!plan) return run_selected(of, c, room, 0, stream);
  int64_t refused = check_plan(of, &c->shape, plan);
  vx_gpu_regions regions = {.count = 1, .plans = {*plan}};
  return refused ? refused : run_released(of, c, &regions, stream);
}

EXPORT int64_t vx_gpu_grouped(library *of, const DLTensor *const *operands, const int64_t *rows, int64_t count, int64_t flags, void *stream,
                              const vx_gpu_plan *plan) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = vx_gpu_open_groups(of, tensors, rows, count, flags, &c);
  return refused ? refused : run_whole(of, &c, 0, plan, stream);
}

EXPORT int64_t vx_gpu_conv(library *of, const DLTensor *const *operands, const vx_gpu_filter *filter, void *stream, const vx_gpu_plan *plan) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = vx_gpu_open_conv(of, tensors, filter, &c);
  return refused ? refused : run_whole(of, &c, of->setup.workspace_bytes, plan, stream);
}

EXPORT void vx_gpu_select(const vx_gpu_shape *shape, int64_t workspace, int32_t may_cut, vx_gpu_regions *regions) {
  vx_gpu_divide(shape, workspace, may_cut, regions);
}

/* Seconds of `repeats` selections. */
EXPORT double vx_gpu_time_selection(const vx_gpu_shape *shape, int64_t workspace, int64_t repeats) {
  struct timespec start, end;
  vx_gpu_regions regions;
  volatile int32_t kept = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) {
    vx_gpu_divide(shape, workspace, 1, &regions);
    kept = kept + regions.plans[0].kernel;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
