/* An opened GPU library on its device, whatever it computes: what the doors of products and of reductions share. */
#ifndef VORTEX_GPU_OPENED_H
#define VORTEX_GPU_OPENED_H

#include "gpu_place.h"
#include "gpu_refusals.h"

#include <dlpack/dlpack.h>
#include <stddef.h>

/* The few functions of the driver that a call uses. */
typedef struct {
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra);
  int (*get_context)(void **context);
  int (*push_context)(void *context);
  int (*pop_context)(void **context);
  int (*fill_2d)(uint64_t target, size_t pitch, unsigned char value, size_t width, size_t height, void *stream);
  int (*encode_map)(void *map, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,
                    const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
} driver_calls;

typedef struct {
  void *stream, *data;
  int64_t bytes;
} workspace;

/* What an opened library of either kind begins with: functions that are exported for both take it. */
typedef struct {
  vx_gpu_place place;
  driver_calls driver;
  int32_t stream_count;
  workspace workspaces[VX_MOST_STREAMS];
} vx_gpu_opened;

/* Zeroed memory for a library of so many bytes, on its place; NULL, and in `missing` what the driver lacks. */
void *vx_gpu_open_on(const char *driver_name, const vx_gpu_place *place, int encodes_maps, size_t bytes, const char **missing);

/* Operands of a framework that has DLPack's exchange API, and its current stream unless `has_stream`; 0, or a refusal. */
int64_t vx_gpu_read_objects(const vx_gpu_opened *of, const DLPackExchangeAPI *api, void *const *objects, int count, DLTensor *tensors,
                            void **stream, int32_t has_stream);
/* Where a tensor's elements are, once it is known to be one of the type that is wanted on this device; 0, or a refusal. */
int64_t vx_gpu_read_data(const vx_gpu_opened *of, const DLTensor *t, int operand, int32_t code, int32_t bits, char **data);

/* The workspace of a stream; NULL where it has none of so many bytes. */
void *vx_gpu_workspace(const vx_gpu_opened *of, void *stream, int64_t need);

/* Launching may wait for room in the driver's queue: other Python threads run between the two. */
void *vx_gpu_release_python(const vx_gpu_opened *of);
void vx_gpu_regain_python(const vx_gpu_opened *of, void *thread);

/* The device's primary context is current between the two, and then again what was; a status of the driver. */
int vx_gpu_enter_context(const vx_gpu_opened *of, int *is_foreign);
int vx_gpu_leave_context(const vx_gpu_opened *of, int is_foreign);

#endif
