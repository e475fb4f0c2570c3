/* Where the calls of an opened GPU library run, as Python tells its door. */
#ifndef VORTEX_GPU_PLACE_H
#define VORTEX_GPU_PLACE_H

#include <stdint.h>

#define VX_MOST_STREAMS 256 /* that have a workspace */

typedef struct {
  int32_t abi, device;
  void *context;                      /* the primary context of the device */
  void *save_thread, *restore_thread; /* PyEval_SaveThread and PyEval_RestoreThread, or NULL */
} vx_gpu_place;

#endif
