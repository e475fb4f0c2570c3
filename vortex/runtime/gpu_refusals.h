/* The refusals of the doors of GPU libraries. */
#ifndef VORTEX_GPU_REFUSALS_H
#define VORTEX_GPU_REFUSALS_H

#include <stdint.h>

/* A refusal is a number that Python puts into words: reason | operand << 8 | detail << 16 */
#define REFUSE(reason, operand) ((int64_t)((reason) | (operand) << 8))
#define DETAILED(reason, operand, detail) (REFUSE(reason, operand) | (int64_t)(detail) << 16)
/* Mirrored by gpu_operands.REASONS. */
enum {
  NOT_A_TENSOR = 1,
  BAD_RANK,
  BAD_DTYPE,
  BAD_DEVICE,
  OTHER_DEVICE,
  BAD_STRIDES,
  MISALIGNED,
  INNER_DIFFERS,
  BAD_OUT_SHAPE,
  OVERLAPS,
  TOO_LARGE,
  NEEDS_WORKSPACE,
  BAD_PLAN,
  PYTHON_ERROR,
  CUDA_ERROR,
  TOO_MANY_STREAMS,
  NO_KERNEL,
  BAD_EXTRA,
  BATCH_DIFFERS,
  BAD_GROUPS,
  BAD_FILTER,
  BAD_AXES,
  NOTHING_TO_REDUCE,
  BAD_OUT_STRIDES
};

#endif
