/* NumPy's arrays read where they lie, by their addresses: exporting three of them by DLPack takes longer than a small product.
 *
 * The fields are those of PyArrayObject_fields and PyArray_Descr in numpy/ndarraytypes.h, which extensions compiled against NumPy read the
 * same way; those of a Python object are a release build's. Whether they are where they are looked for is asked of one array first. */
#ifndef VORTEX_ARRAYS_H
#define VORTEX_ARRAYS_H

#include "values.h"

typedef struct {
  intptr_t references;
  void *type;
} python_object;

typedef struct {
  python_object object;
  void *scalar_type;
  char kind, type, byte_order, former_flags;
  int number;
} array_type;

typedef struct {
  python_object object;
  char *data;
  int rank;
  intptr_t *shape, *strides; /* strides in bytes */
  void *base;
  array_type *type;
  int flags;
} array;

enum { IS_ALIGNED = 0x100, IS_WRITEABLE = 0x400 }; /* of NPY_ARRAY_FLAGS */

typedef struct {
  DLTensor tensor;
  int64_t shape[2], strides[2];
} array_tensor;

/* Element types by their numbers in NumPy; 0 bits for all others, bytes in another order too. From a table, since one that is put together
 * from bytes is read whole right after. The bfloat16 of ml_dtypes has a number that it is given when it is imported, and a letter; it is
 * read as its bits, which the door takes for bfloat16. */
static inline DLDataType element_type(const array_type *type) {
  enum { BYTE = 1, UNSIGNED_BYTE = 2, UNSIGNED_SHORT = 4, INT = 5, FLOAT = 11, HALF = 23, FIRST_OF_USERS = 256 };
  static const DLDataType types[] = {[BYTE] = {kDLInt, 8, 1},  [UNSIGNED_BYTE] = {kDLUInt, 8, 1}, [UNSIGNED_SHORT] = {kDLUInt, 16, 1},
                                     [INT] = {kDLInt, 32, 1}, [FLOAT] = {kDLFloat, 32, 1},       [HALF] = {kDLFloat, 16, 1}};
  int is_native = type->byte_order != '>', known = type->number >= 0 && type->number <= HALF;
  int is_bfloat = type->number >= FIRST_OF_USERS && type->kind == 'V' && type->type == 'E';
  return types[!is_native ? 0 : is_bfloat ? UNSIGNED_SHORT : known ? type->number : 0];
}

/* The array at an address as the value of a tensor; 0 where it is something that the general way must look at. */
static inline int read_array(int64_t address, int is_written, array_tensor *to, TVMFFIAny *value) {
  const array *x = (const array *)(intptr_t)address;
  int wanted = IS_ALIGNED | (is_written ? IS_WRITEABLE : 0);
  if (x->rank < 1 || x->rank > 2 || (x->flags & wanted) != wanted) return 0;
  DLDataType type = element_type(x->type);
  if (!type.bits) return 0;
  int item = __builtin_ctz(type.bits / 8); /* a power of two: dividing six strides would take as long as a small product */
  for (int axis = 0; axis < x->rank; axis++) {
    if (x->strides[axis] & ((1 << item) - 1)) return 0;
    to->shape[axis] = x->shape[axis];
    to->strides[axis] = x->strides[axis] >> item;
  }
  to->tensor = (DLTensor){.data = x->data, .device = {kDLCPU, 0}, .ndim = x->rank, .dtype = type, .shape = to->shape, .strides = to->strides};
  *value = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr};
  value->v_ptr = &to->tensor;
  return 1;
}

/* Whether an array of float32 is at an address as its data, shape and strides (in bytes) tell. */
static inline int is_array(int64_t address, const void *data, int64_t rows, int64_t columns, int64_t down, int64_t along) {
  const array *x = (const array *)(intptr_t)address;
  int usable = IS_ALIGNED | IS_WRITEABLE;
  return x->data == data && x->rank == 2 && (x->flags & usable) == usable && x->shape[0] == rows && x->shape[1] == columns &&
         x->strides[0] == down && x->strides[1] == along && x->type->kind == 'f' && element_type(x->type).bits == 32;
}

#endif
