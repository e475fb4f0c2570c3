/* PyTorch's tensors as C sees them, by its stable interface (torch/csrc/inductor/aoti_torch/c/shim.h). */
#ifndef VORTEX_TENSORS_H
#define VORTEX_TENSORS_H

#include "fold.h"
#include "lent.h"

typedef struct tensor_object *tensor;
typedef struct library_object *library;
typedef uint64_t argument; /* of an operator as PyTorch calls it: a number, or a tensor that is then ours */

int32_t aoti_torch_get_data_ptr(tensor, void **);
int32_t aoti_torch_get_dim(tensor, int64_t *);
int32_t aoti_torch_get_sizes(tensor, int64_t **);
int32_t aoti_torch_get_strides(tensor, int64_t **);
int32_t aoti_torch_get_dtype(tensor, int32_t *);
int32_t aoti_torch_get_device_type(tensor, int32_t *);
int32_t aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, tensor *);
int32_t aoti_torch_copy_(tensor, tensor, int32_t);
int32_t aoti_torch_delete_tensor_object(tensor);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_device_type_cpu(void);
int32_t aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t, library *);
int32_t aoti_torch_library_impl(library, const char *, void (*)(argument *, uint64_t, uint64_t));
void aoti_torch_check(_Bool, const char *, const char *, uint32_t, const char *);

/* A tensor as the doors read it; 0 for one that they do not. */
static inline int view(tensor from, DLTensor *t) {
  int64_t rank;
  int32_t dtype, device;
  if (aoti_torch_get_dtype(from, &dtype) || aoti_torch_get_device_type(from, &device) || aoti_torch_get_dim(from, &rank)) return 0;
  if (dtype != aoti_torch_dtype_float32() || device != aoti_torch_device_type_cpu() || rank > MOST_RANK) return 0;
  *t = (DLTensor){.device = {kDLCPU, 0}, .ndim = (int32_t)rank, .dtype = {kDLFloat, 32, 1}};
  return !aoti_torch_get_data_ptr(from, &t->data) && !aoti_torch_get_sizes(from, &t->shape) && !aoti_torch_get_strides(from, &t->strides);
}

/* A new tensor, with its view; NULL where there is no room. */
static inline tensor made(int64_t rank, const int64_t *shape, const int64_t *strides, DLTensor *t) {
  tensor result;
  if (aoti_torch_empty_strided(rank, shape, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &result)) return NULL;
  if (view(result, t)) return result;
  aoti_torch_delete_tensor_object(result);
  return NULL;
}

/* The same values with these strides. */
static inline tensor copied(tensor from, DLTensor *t, const int64_t *strides) {
  int64_t shape[MOST_RANK], rank = t->ndim;
  for (int64_t axis = 0; axis < rank; axis++) shape[axis] = t->shape[axis];
  tensor copy = made(rank, shape, strides, t);
  if (!copy || !aoti_torch_copy_(copy, from, 0)) return copy;
  aoti_torch_delete_tensor_object(copy);
  return NULL;
}

static inline void drop(tensor t) {
  if (t) aoti_torch_delete_tensor_object(t);
}

static inline int64_t steps(int64_t extent) { return extent > 1 ? extent : 1; }

/* Of batch, channels, height and width, the channels innermost. */
static inline void channels_last(const int64_t *shape, int64_t *strides) {
  strides[1] = 1, strides[3] = steps(shape[1]), strides[2] = strides[3] * steps(shape[3]), strides[0] = strides[2] * steps(shape[2]);
}

/* pools.c */
void borrow(vx_fork_join);
int copy_pixels(tensor, DLTensor *from, const DLTensor *to); /* with the same extents, channels side by side in `to`; 0 for no room */

#endif
