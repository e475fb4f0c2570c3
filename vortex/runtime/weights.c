/* Quantized weights laid out for their micro-kernels: before the words of every group, a line of its scales, and one of its zero points or,
 * where sums are multiplied by scales, of what a sum of A is multiplied by in their place. Where a word of A has two
 * elements, the neighbours of a word of B are in its halves by turns. */
#include "vortex_runtime.h"

enum { BITS = 32 / VX_PER_LINE };

int vx_pack_weights(const int8_t *q, int64_t q_k, int64_t q_n, const float *scales, int64_t scale_k, int64_t scale_n,
                    const int8_t *zeros, int64_t zero_k, int64_t zero_n, int64_t n, int64_t k, int32_t *target) {
  int64_t length = VX_GROUP ? VX_GROUP : k;
  union {
    float scale;
    int32_t bits;
  } line;
  for (int64_t first = 0; first < n; first += vx_panel) {
    int64_t width = n - first < vx_panel ? n - first : vx_panel;
    for (int64_t p = 0, g = 0; p < k || g == 0; p += length, g++) {
      int64_t end = p + length < k ? p + length : k;
      for (int64_t j = 0; j < width && k > 0; j++) {
        line.scale = scales[g * scale_k + (first + j) * scale_n];
        target[j] = line.bits;
      }
      target += vx_panel;
      for (int64_t j = 0; VX_HEADS > 1 && j < width && k > 0; j++) {
        float zero = zeros[g * zero_k + (first + j) * zero_n];
        line.scale = VX_PER_WORD == 1 ? zero : -zero * scales[g * scale_k + (first + j) * scale_n];
        target[j] = line.bits;
      }
      if (VX_HEADS > 1) target += vx_panel;
      for (int64_t w = p; w < end; w += VX_PER_LINE, target += vx_panel)
        for (int64_t j = 0; j < width; j++) {
          uint32_t word = 0;
          for (int64_t e = 0; e < VX_PER_LINE && w + e < end; e++) {
            int32_t weight = q[(w + e) * q_k + (first + j) * q_n];
            if (weight > VX_LARGEST || weight < -VX_LARGEST - 1) return 1;
            word |= ((uint32_t)weight & (uint32_t)((1ull << BITS) - 1)) << (e % VX_PER_WORD * (32 / VX_PER_WORD) + e / VX_PER_WORD * BITS);
          }
          target[j] = (int32_t)word;
        }
    }
  }
  return 0;
}
