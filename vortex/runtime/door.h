/* What doors of products and convolutions read. */
#ifndef VORTEX_DOOR_H
#define VORTEX_DOOR_H

#include "vortex_runtime.h"
#include "values.h"
#include "refusals.h"

enum { OPERAND_A = 0, OPERAND_B = 1, OPERAND_OUT = 2, OPERAND_EXTRA = 3, OPERAND_ROWS = OPERAND_EXTRA + VX_EXTRAS };

/* A matrix in memory: `rows` lines of `columns` contiguous elements, `stride` elements apart. */
typedef struct {
  char *data;
  int64_t rows, columns, stride, item_bytes;
  int is_transposed; /* the tensor was column-major, so lines are its columns */
} matrix;

/* bfloat16 may also come as the uint16 it is in memory: NumPy has no such type. */
static inline int is_of(const DLTensor *t, const vx_operand *type) {
  int as_bits = type->code == kDLBfloat && t->dtype.code == kDLUInt;
  return (t->dtype.code == type->code || as_bits) && t->dtype.bits == type->bits && t->dtype.lanes == 1;
}

/* A tensor of `least` to `most` dimensions in host memory. */
static inline int read_elements(const TVMFFIAny *value, int operand, int least, int most, const vx_operand *type,
                                const DLTensor **tensor, char **data) {
  const DLTensor *t = tensor_of(value);
  if (!t) return REFUSE(NOT_A_TENSOR, operand);
  if (t->device.device_type != kDLCPU) return REFUSE(BAD_DEVICE, operand);
  if (t->ndim < least || t->ndim > most) return REFUSE(BAD_RANK, operand);
  if (!is_of(t, type)) return REFUSE(BAD_DTYPE, operand);
  *tensor = t;
  *data = (char *)t->data + t->byte_offset;
  return (uintptr_t)*data & (uintptr_t)(type->bits / 8 - 1) /* a power of two */ ? REFUSE(MISALIGNED, operand) : 0;
}

static inline int read_floats(const TVMFFIAny *value, int operand, int least, int most, const DLTensor **tensor, float **data) {
  const vx_operand floats = {kDLFloat, 32, VX_PER_ELEMENT};
  char *found;
  int refused = read_elements(value, operand, least, most, &floats, tensor, &found);
  if (!refused) *data = (float *)found;
  return refused;
}

/* The last two axes of a tensor as lines of contiguous elements; 0 where neither axis is contiguous, or a line reaches over the next one, unless it
 * may (`laps`). Strides of an empty one say nothing. */
static inline int lay_out(const DLTensor *t, int laps, matrix *out) {
  const int64_t *shape = t->shape + t->ndim - 2, *strides = t->strides ? t->strides + t->ndim - 2 : NULL;
  int64_t r = shape[0], c = shape[1], down = strides ? strides[0] : c, along = strides ? strides[1] : 1;
  int empty = 0;
  for (int axis = 0; axis < t->ndim; axis++) empty |= t->shape[axis] == 0;
  if (empty || ((c == 1 || along == 1) && (r == 1 || down >= (laps ? 1 : c)))) {
    out->rows = r;
    out->columns = c;
    out->stride = r <= 1 || empty ? (c > 0 ? c : 1) : down;
    out->is_transposed = 0;
    return 1;
  }
  if ((r == 1 || down == 1) && (c == 1 || along >= r)) {
    out->rows = c;
    out->columns = r;
    out->stride = c <= 1 || along < r ? r : along;
    out->is_transposed = 1;
    return 1;
  }
  return 0;
}

/* Elements of a packed operand, and how its panels lie in a call. */
static inline int64_t packed_room(int64_t n, int64_t k) { return rounded(n, vx_panel) * vx_packed_lines(k); }

static inline void lay_panels(vx_call *call, int packed, int64_t stride) {
  call->packed = packed;
  call->ldb = packed ? vx_panel : stride;
  call->panel = packed ? vx_panel : (int64_t)1 << 40;
  call->panel_stride = packed ? vx_panel * vx_packed_lines(call->k) : 0;
}

#endif
