/* The door of packing: constant operands B are laid in panels once. */
#include "products.h"

/* readable(b): whether a call would take it. */
EXPORT int __tvm_ffi_readable(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  matrix b;
  return answer(result, read_matrix(&args[0], OPERAND_B, &vx_factor, &b));
}

#if VX_WEIGHTS
/* pack_weights(q, scales, target, flags, zeros...): q[k, n], scales[groups, n] and zero points like them, or all transposed. */
EXPORT int __tvm_ffi_pack_weights(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  const vx_operand bytes = {kDLInt, 8, VX_PER_ELEMENT}, floats = {kDLFloat, 32, VX_PER_ELEMENT};
  matrix q, scales, zeros = {0};
  const DLTensor *t;
  char *room;
  int refused, turned = !!(args[3].v_int64 & TRANSPOSE_B);
  if ((refused = read_matrix(&args[0], OPERAND_B, &bytes, &q)) || (refused = read_matrix(&args[1], OPERAND_EXTRA, &floats, &scales)) ||
      (VX_HEADS > 1 && (refused = read_matrix(&args[4], OPERAND_EXTRA + 1, &bytes, &zeros))) ||
      (refused = read_elements(&args[2], OPERAND_OUT, 1, 1, &vx_packed, &t, &room)))
    return answer(result, refused);
  int q_turned = turned ^ q.is_transposed, scales_turned = turned ^ scales.is_transposed,
      zeros_turned = turned ^ zeros.is_transposed;
  int64_t n = q_turned ? q.rows : q.columns, k = q_turned ? q.columns : q.rows, groups = VX_GROUP ? quotient_up(k, VX_GROUP ? VX_GROUP : 1) : 1;
  if ((scales_turned ? scales.rows : scales.columns) != n || (scales_turned ? scales.columns : scales.rows) != groups)
    return answer(result, REFUSE(BAD_EXTRA_SHAPE, OPERAND_EXTRA));
  if (VX_HEADS > 1 && ((zeros_turned ? zeros.rows : zeros.columns) != n || (zeros_turned ? zeros.columns : zeros.rows) != groups))
    return answer(result, REFUSE(BAD_EXTRA_SHAPE, OPERAND_EXTRA + 1));
  if (t->shape[0] != packed_room(n, k)) return answer(result, REFUSE(BAD_PACKED, OPERAND_OUT));
  if (vx_pack_weights((const int8_t *)q.data, q_turned ? 1 : q.stride, q_turned ? q.stride : 1, (const float *)scales.data,
                      scales_turned ? 1 : scales.stride, scales_turned ? scales.stride : 1, (const int8_t *)zeros.data,
                      zeros_turned ? 1 : zeros.stride, zeros_turned ? zeros.stride : 1, n, k, (int32_t *)room))
    return answer(result, REFUSE(WIDE_WEIGHT, OPERAND_B));
  return answer(result, 0);
}
#else
/* pack(b, target, flags): panels of vx_panel columns, each k lines; columns past the last are left as they are. */
EXPORT int __tvm_ffi_pack(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  matrix b;
  const DLTensor *t;
  char *room;
  int refused;
  if ((refused = read_matrix(&args[0], OPERAND_B, &vx_factor, &b)) ||
      (refused = read_elements(&args[1], OPERAND_OUT, 1, 1, &vx_packed, &t, &room)))
    return answer(result, refused);
  int col_b = !!(args[2].v_int64 & TRANSPOSE_B) ^ b.is_transposed;
  int64_t n = col_b ? b.rows : b.columns, k = col_b ? b.columns : b.rows;
  if (t->shape[0] != packed_room(n, k)) return answer(result, REFUSE(BAD_PACKED, OPERAND_OUT));
#if VX_WORDS
  (col_b ? vortex_words_turn : vortex_words_interleave)(b.data, room, k, n, b.stride, vx_panel, vx_panel * vx_packed_lines(k));
#else
  const float *source = (const float *)b.data;
  float *target = (float *)room;
  int64_t whole = col_b ? 0 : n / vx_panel;
  for (int64_t i = 0; i < k && whole; i++)
    vortex_copy(source + i * b.stride, target + i * vx_panel, whole, vx_panel, vx_panel, vx_panel * k);
  for (int64_t first = whole * vx_panel; first < n; first += vx_panel) {
    int64_t width = n - first < vx_panel ? n - first : vx_panel;
    if (col_b)
      vortex_transpose(source + first * b.stride, target + first * k, k, width, b.stride, vx_panel);
    else
      vortex_copy(source + first, target + first * k, k, width, b.stride, vx_panel);
  }
#endif
  return answer(result, 0);
}
#endif
