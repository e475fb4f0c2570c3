/* DietCode's Figure 6 on a CPU: a tiled product whose row tiles need not fit, with four ways to treat the rows beyond the end.
 * Rows of A are fetched into a local workspace, multiplied, and written back; each of the three may check its rows.
 * TM rows by two vectors of LANES columns; n a multiple of 2 LANES. With M, N, K defined the program is static. */
#include <string.h>

#define TN (2 * LANES)
#define ALWAYS static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

ALWAYS void fetch(const float *a, float *local, long rows, long k, int check) {
  for (long i = 0; i < TM; i++)
    for (long p = 0; p < k; p++) local[p * TM + i] = check && i >= rows ? 0.0f : a[i * k + p];
}

ALWAYS void compute(const float *local, const float *b, float *c, long rows, long n, long k, int check, int check_store) {
  vec sum[TM][2];
  memset(sum, 0, sizeof sum);
  for (long p = 0; p < k; p++) {
    vec b0 = *(const vec *)(b + p * n), b1 = *(const vec *)(b + p * n + LANES);
#pragma GCC unroll 64
    for (long i = 0; i < TM; i++)
      if (!check || i < rows) {
        sum[i][0] += local[p * TM + i] * b0;
        sum[i][1] += local[p * TM + i] * b1;
      }
  }
#pragma GCC unroll 64
  for (long i = 0; i < TM; i++)
    if (!check_store || i < rows) {
      *(vec *)(c + i * n) = sum[i][0];
      *(vec *)(c + i * n + LANES) = sum[i][1];
    }
}

/* One tile of rows; the flags are constants wherever this is inlined. */
ALWAYS void tile(const float *a, const float *b, float *c, float *local, long rows, long n, long k, int at_fetch, int at_compute,
                 int at_store) {
  fetch(a, local, rows, k, at_fetch);
  for (long j = 0; j < n; j += TN) compute(local, b + j, c + j, rows, n, k, at_compute, at_store);
}

#ifdef M
#define SHAPE const long m = M, n = N, k = K;
#define IGNORED(name) name##_ignored
#else
#define SHAPE
#define IGNORED(name) name
#endif
#define PROGRAM(name) \
  void name(const float *a, const float *b, float *c, float *local, long IGNORED(m), long IGNORED(n), long IGNORED(k))

PROGRAM(checks_everywhere) {
  SHAPE
  for (long i = 0; i < m; i += TM) tile(a + i * k, b, c + i * n, local, m - i, n, k, 1, 1, 1);
}

PROGRAM(local_padding) {
  SHAPE
  for (long i = 0; i < m; i += TM) tile(a + i * k, b, c + i * n, local, m - i, n, k, 1, 0, 1);
}

PROGRAM(loop_partitioning) {
  SHAPE
  long whole = m / TM * TM;
  for (long i = 0; i < whole; i += TM) tile(a + i * k, b, c + i * n, local, TM, n, k, 0, 0, 0);
  if (whole < m) tile(a + whole * k, b, c + whole * n, local, m - whole, n, k, 1, 1, 1);
}

/* `local` has room for the padded operands behind the workspace. */
PROGRAM(global_padding) {
  SHAPE
  long padded = (m + TM - 1) / TM * TM;
  float *wide_a = local + TM * k, *wide_c = wide_a + padded * k;
  memcpy(wide_a, a, m * k * sizeof(float));
  memset(wide_a + m * k, 0, (padded - m) * k * sizeof(float));
  for (long i = 0; i < padded; i += TM) tile(wide_a + i * k, b, wide_c + i * n, local, TM, n, k, 0, 0, 0);
  memcpy(c, wide_c, m * n * sizeof(float));
}
