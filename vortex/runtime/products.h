/* What the doors of single and of many products have in common: flags, the numbers of their refusals, and operands of a product. */
#ifndef VORTEX_PRODUCTS_H
#define VORTEX_PRODUCTS_H

#include "door.h"

/* Mirrored by operands; the zero point of A is above them. LAPS: of a plan that is given, lines may reach over the next ones. */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, PACKED = 8, FOLDED = 16, LAPS = 32, ZERO = 256 };
/* Behind those that all doors have in common; mirrored by operands.REASONS. */
enum {
  BAD_EXTRAS = FIRST_OWN,
  BAD_EXTRA_SHAPE,
  NO_SUMS,
  FIXED_EXTENT,
  NOT_PACKED,
  WIDE_WEIGHT,
  BATCH_DIFFERS,
  BAD_ROWS,
  BAD_ZERO
};

static inline int read_rows(const TVMFFIAny *value, int operand, const vx_operand *type, int laps, matrix *out) {
  const DLTensor *t;
  int refused = read_elements(value, operand, 2, 2, type, &t, &out->data);
  if (refused) return refused;
  out->item_bytes = type->bits / 8;
  return lay_out(t, laps, out) ? 0 : REFUSE(BAD_STRIDES, operand);
}

static inline int read_matrix(const TVMFFIAny *value, int operand, const vx_operand *type, matrix *out) {
  return read_rows(value, operand, type, 0, out);
}

/* What A is read as: signed bytes may also come unsigned, as the instruction takes them. */
static inline const vx_operand *type_of_a(const TVMFFIAny *value, int32_t *flip) {
  static const vx_operand bytes = {kDLUInt, 8, VX_PER_ELEMENT};
  const DLTensor *t = tensor_of(value);
  int is_unsigned = VX_FLIPS && t && t->dtype.code == kDLUInt;
  *flip = VX_FLIPS && !is_unsigned ? (int32_t)0x80808080 : 0;
  return is_unsigned ? &bytes : &vx_factor;
}

/* The zero point of A; 0 where a library or its bytes have none like it. */
static inline int read_zero(int64_t flags, vx_call *call) {
  int64_t given = (flags - (flags & (ZERO - 1))) / ZERO, zero = given + (call->flip ? 128 : 0);
  call->zero = (int32_t)zero;
  return given == 0 || (VX_FLIPS && zero >= 0 && zero <= 255);
}

#endif
