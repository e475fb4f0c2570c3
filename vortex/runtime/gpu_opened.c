/* Opened GPU libraries: the driver's functions, the context and the workspaces of streams. Neither Python nor CUDA is linked:
 * the driver is opened by name, and operands are read through DLPack's exchange API. */
#include "gpu_opened.h"

#include <dlfcn.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* The driver's entry points by their versioned names. */
void *vx_gpu_open_on(const char *driver_name, const vx_gpu_place *place, int encodes_maps, size_t bytes, const char **missing) {
  *missing = driver_name;
  void *handle = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return NULL;
  vx_gpu_opened *opened = calloc(1, bytes);
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
      {"cuTensorMapEncodeTiled", (void **)&opened->driver.encode_map, encodes_maps},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    *wanted[i].target = dlsym(handle, wanted[i].name);
    if (!*wanted[i].target && wanted[i].required) {
      *missing = wanted[i].name;
      free(opened);
      return NULL;
    }
  }
  opened->place = *place;
  return opened;
}

EXPORT void vx_gpu_close(vx_gpu_opened *of) { free(of); }

/* Memory that calls on one stream may write to; the caller keeps it alive. 0, or a refusal. */
EXPORT int64_t vx_gpu_set_workspace(vx_gpu_opened *of, void *stream, void *data, int64_t bytes) {
  int32_t at = 0;
  while (at < of->stream_count && of->workspaces[at].stream != stream) at++;
  if (at == VX_MOST_STREAMS) return REFUSE(TOO_MANY_STREAMS, 0);
  of->workspaces[at] = (workspace){stream, data, bytes};
  if (at == of->stream_count) of->stream_count++;
  return 0;
}

void *vx_gpu_workspace(const vx_gpu_opened *of, void *stream, int64_t need) {
  for (int32_t i = 0; i < of->stream_count; i++)
    if (of->workspaces[i].stream == stream && of->workspaces[i].bytes >= need) return of->workspaces[i].data;
  return NULL;
}

EXPORT int64_t vx_gpu_stream(const vx_gpu_opened *of, const DLPackExchangeAPI *api, void **stream) {
  return api->current_work_stream(kDLCUDA, of->place.device, stream);
}

int64_t vx_gpu_read_objects(const vx_gpu_opened *of, const DLPackExchangeAPI *api, void *const *objects, int count, DLTensor *tensors,
                            void **stream, int32_t has_stream) {
  for (int i = 0; i < count; i++)
    if (api->dltensor_from_py_object_no_sync(objects[i], &tensors[i])) return REFUSE(PYTHON_ERROR, i);
  return !has_stream && vx_gpu_stream(of, api, stream) ? REFUSE(PYTHON_ERROR, 0) : 0;
}

int64_t vx_gpu_read_data(const vx_gpu_opened *of, const DLTensor *t, int operand, int32_t code, int32_t bits, char **data) {
  if (t->device.device_type != kDLCUDA && t->device.device_type != kDLCUDAManaged) return REFUSE(BAD_DEVICE, operand);
  if (t->device.device_id != of->place.device) return DETAILED(OTHER_DEVICE, operand, t->device.device_id);
  if (t->dtype.code != code || t->dtype.bits != bits || t->dtype.lanes != 1) return REFUSE(BAD_DTYPE, operand);
  *data = (char *)t->data + t->byte_offset;
  return (uintptr_t)*data & (uintptr_t)(bits / 8 - 1) /* a power of two */ ? REFUSE(MISALIGNED, operand) : 0;
}

void *vx_gpu_release_python(const vx_gpu_opened *of) {
  return of->place.save_thread ? ((void *(*)(void))of->place.save_thread)() : NULL;
}

void vx_gpu_regain_python(const vx_gpu_opened *of, void *thread) {
  if (of->place.save_thread) ((void (*)(void *))of->place.restore_thread)(thread);
}

int vx_gpu_enter_context(const vx_gpu_opened *of, int *is_foreign) {
  void *current = NULL;
  int status = of->driver.get_context(&current);
  *is_foreign = !status && current != of->place.context;
  return *is_foreign ? of->driver.push_context(of->place.context) : status;
}

int vx_gpu_leave_context(const vx_gpu_opened *of, int is_foreign) {
  void *current;
  return is_foreign ? of->driver.pop_context(&current) : 0;
}
