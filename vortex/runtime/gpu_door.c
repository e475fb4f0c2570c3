/* The door of a GPU library: one native call checks the operands, selects and launches on the caller's stream.
 *
 * It allocates nothing, waits for nothing, and links neither Python nor CUDA: the driver is opened by name, and operands
 * are read through DLPack's exchange API. */
#include "gpu_call.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_SPLITS 65535

EXPORT int32_t vx_gpu_abi(void) { return VX_DOOR_ABI; }

/* The driver's entry points by their versioned names; NULL and the name of the missing one in `missing`. */
EXPORT void *vx_gpu_open(const char *driver_name, const vx_gpu_setup *setup, const char **missing) {
  *missing = driver_name;
  void *handle = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return NULL;
  library *opened = calloc(1, sizeof *opened);
  if (!opened) return NULL;
  struct {
    const char *name;
    void **target;
    int required;
  } wanted[] = {
      {"cuLaunchKernel", (void **)&opened->driver.launch, 1},
      {"cuCtxGetCurrent", (void **)&opened->driver.get_context, 1},
      {"cuCtxPushCurrent_v2", (void **)&opened->driver.push_context, 1},
      {"cuCtxPopCurrent_v2", (void **)&opened->driver.pop_context, 1},
      {"cuMemsetD2D8Async", (void **)&opened->driver.fill_2d, 1},
      {"cuTensorMapEncodeTiled", (void **)&opened->driver.encode_map, setup->map_type >= 0},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    *wanted[i].target = dlsym(handle, wanted[i].name);
    if (!*wanted[i].target && wanted[i].required) {
      *missing = wanted[i].name;
      free(opened);
      return NULL;
    }
  }
  opened->setup = *setup;
  opened->item_bytes = setup->dtype_bits / 8;
  opened->out_bytes = setup->out_bits / 8;
  opened->may_cut = 1;
  return opened;
}

EXPORT void vx_gpu_polymerizing(library *of, int32_t on) { of->may_cut = on; }

EXPORT void vx_gpu_close(library *opened) { free(opened); }

/* Memory for partial sums of one stream; the caller keeps it alive. 0, or a refusal. */
EXPORT int64_t vx_gpu_set_workspace(library *of, void *stream, void *data, int64_t bytes) {
  int32_t at = 0;
  while (at < of->stream_count && of->workspaces[at].stream != stream) at++;
  if (at == VX_MOST_STREAMS) return REFUSE(TOO_MANY_STREAMS, OPERAND_OUT);
  of->workspaces[at] = (workspace){stream, data, bytes};
  if (at == of->stream_count) of->stream_count++;
  return 0;
}

/* Launching may wait for room in the driver's queue: let other Python threads run meanwhile. */
static int64_t run_released(library *of, const call *c, const vx_gpu_regions *regions, void *stream) {
  if (vx_gpu_is_empty(&c->c)) return 0;
  if (!of->setup.save_thread) return vx_gpu_run(of, c, regions, stream);
  void *thread = ((void *(*)(void))of->setup.save_thread)();
  int64_t status = vx_gpu_run(of, c, regions, stream);
  ((void (*)(void *))of->setup.restore_thread)(thread);
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
  for (int i = 0; i < 3; i++)
    if (api->dltensor_from_py_object_no_sync(objects[i], &tensors[i])) return REFUSE(PYTHON_ERROR, i);
  if (!has_stream && api->current_work_stream(kDLCUDA, of->setup.device, &stream)) return REFUSE(PYTHON_ERROR, OPERAND_OUT);
  return select_and_run(of, tensors, flags, stream);
}

/* The same with the tensors of an epilogue behind A, B and C. */
EXPORT int64_t vx_gpu_gemm_finished(library *of, const DLPackExchangeAPI *api, void *const *objects, int64_t flags, void *stream,
                                    int32_t has_stream) {
  DLTensor tensors[MOST_OPERANDS];
  for (int i = 0; i < FIRST_EXTRA + of->setup.extra_count; i++)
    if (api->dltensor_from_py_object_no_sync(objects[i], &tensors[i])) return REFUSE(PYTHON_ERROR, i);
  if (!has_stream && api->current_work_stream(kDLCUDA, of->setup.device, &stream)) return REFUSE(PYTHON_ERROR, OPERAND_OUT);
  return select_and_run(of, tensors, flags, stream);
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

EXPORT int64_t vx_gpu_stream(const library *of, const DLPackExchangeAPI *api, void **stream) {
  return api->current_work_stream(kDLCUDA, of->setup.device, stream);
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
