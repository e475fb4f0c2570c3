/* Of pools.c, which names the function, its lanes and its instruction set and includes this once for each. */
#define LARGER(best, place) \
  do { \
    vector other = *(const vector *)(place); \
    bits takes = (other > best) | (other != other); \
    best = (vector)(((bits)other & takes) | ((bits)best & ~takes)); \
  } while (0)

/* A row of the result. What is no number is larger than all that is, as PyTorch has it. */
__attribute__((target(POOL_ISA))) static void POOL_ROW(void *context, int64_t unit) {
  enum { LANES = POOL_LANES };
  typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
  typedef int32_t bits __attribute__((vector_size(LANES * sizeof(float))));
  const pool *p = context;
  int64_t channels = p->channels, row = p->row, pixel = p->pixel;
  int64_t top = unit % p->rows * p->down - p->above, first = larger(top, 0), tall = smaller(top + p->tall, p->height) - first;
  const float *image = p->from + unit / p->rows * p->image + first * row;
  float *out = p->to + unit * p->columns * channels;
  for (int64_t x = 0; x < p->columns; x++, out += channels) {
    int64_t left = x * p->across - p->before, begin = larger(left, 0), wide = smaller(left + p->wide, p->width) - begin, c = 0;
    const float *seen = image + begin * pixel;
    for (; c + 4 * LANES <= channels; c += 4 * LANES) {
      const float *from = seen + c;
      vector a = *(const vector *)from, b = *(const vector *)(from + LANES);
      vector d = *(const vector *)(from + 2 * LANES), e = *(const vector *)(from + 3 * LANES);
      for (int64_t r = 0; r < tall; r++, from += row) {
        const float *at = from;
        for (int64_t s = 0; s < wide; s++, at += pixel) {
          LARGER(a, at);
          LARGER(b, at + LANES);
          LARGER(d, at + 2 * LANES);
          LARGER(e, at + 3 * LANES);
        }
      }
      *(vector *)(out + c) = a, *(vector *)(out + c + LANES) = b;
      *(vector *)(out + c + 2 * LANES) = d, *(vector *)(out + c + 3 * LANES) = e;
    }
    for (; c + LANES <= channels; c += LANES) {
      const float *from = seen + c;
      vector best = *(const vector *)from;
      for (int64_t r = 0; r < tall; r++, from += row) {
        const float *at = from;
        for (int64_t s = 0; s < wide; s++, at += pixel) LARGER(best, at);
      }
      *(vector *)(out + c) = best;
    }
    for (; c < channels; c++) {
      float best = seen[c];
      for (int64_t r = 0; r < tall; r++)
        for (int64_t s = 0; s < wide; s++) {
          float other = seen[r * row + s * pixel + c];
          if (other > best || other != other) best = other;
        }
      out[c] = best;
    }
  }
}
#undef LARGER
#undef POOL_ROW
#undef POOL_LANES
#undef POOL_ISA
