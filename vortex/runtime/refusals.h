/* The refusals that all doors of products and convolutions on CPUs have in common, the first of each. */
#ifndef VORTEX_REFUSALS_H
#define VORTEX_REFUSALS_H

/* Mirrored by operands.REASONS. */
enum {
  NOT_A_TENSOR = 1,
  BAD_RANK,
  BAD_DTYPE,
  BAD_DEVICE,
  BAD_STRIDES,
  MISALIGNED,
  INNER_DIFFERS,
  BAD_OUT_SHAPE,
  OVERLAPS,
  OUT_OF_MEMORY,
  BAD_PACKED,
  BAD_PLAN,
  FIRST_OWN
};

#endif
