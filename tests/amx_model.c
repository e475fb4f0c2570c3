/* The tiles of AMX in C (Intel SDM vol. 1, chapter 18, and vol. 2), for the kernels of codegen/cpu_amx.py: a function for each
 * instruction with its registers. What a processor refuses (#UD, #GP) makes every sum wrong here. */
#include <stdint.h>
#include <string.h>

static _Thread_local struct {
  uint8_t palette, first_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} sizes;
static _Thread_local union {
  uint8_t bytes[16][64];
  int8_t signed_bytes[16][64];
  uint16_t halves[16][32];
  int32_t integers[16][16];
  float floats[16][16];
} tiles[8];

static int32_t refused(void) {
  memset(tiles, 0x55, sizeof tiles);
  return 1;
}

int32_t vortex_tile_configure(int64_t low, int64_t high, int64_t rows) {
  int64_t wanted[8] = {1, 0, low, high, 0, 0, rows, 0};
  _Static_assert(sizeof sizes == 48 + 16, "what ldtilecfg reads");
  if (!memcmp(&sizes, wanted, sizeof sizes)) return 0;
  memcpy(&sizes, wanted, sizeof sizes);
  memset(tiles, 0, sizeof tiles);
  int wrong = sizes.palette != 1 || sizes.first_row;
  for (int t = 0; t < 16; t++)
    wrong |= sizes.rows[t] > 16 || sizes.row_bytes[t] > 64 || (!sizes.rows[t] != !sizes.row_bytes[t]) || (t > 7 && sizes.rows[t]);
  return wrong ? refused() : 0;
}

int32_t vortex_tile_release(void) {
  memset(&sizes, 0, sizeof sizes);
  return 0;
}

static int32_t load(int t, const char *from, int64_t stride) {
  if (!sizes.rows[t]) return refused();
  memset(&tiles[t], 0, sizeof tiles[t]);
  for (int row = 0; row < sizes.rows[t]; row++) memcpy(tiles[t].bytes[row], from + row * stride, sizes.row_bytes[t]);
  return 0;
}

static int32_t store(int t, char *to, int64_t stride) {
  if (!sizes.rows[t]) return refused();
  for (int row = 0; row < sizes.rows[t]; row++) memcpy(to + row * stride, tiles[t].bytes[row], sizes.row_bytes[t]);
  return 0;
}

static float wide(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

enum { BFLOAT16, SIGNED, UNSIGNED };

static int32_t dot(int kind, int c, int a, int b) {
  if (!sizes.rows[c] || sizes.rows[c] != sizes.rows[a] || sizes.row_bytes[c] != sizes.row_bytes[b] ||
      sizes.row_bytes[a] != 4 * sizes.rows[b] || c == a || c == b || a == b)
    return refused();
  for (int i = 0; i < sizes.rows[c]; i++)
    for (int w = 0; w < sizes.rows[b]; w++)
      for (int j = 0; j < sizes.row_bytes[c] / 4; j++) {
        if (kind == BFLOAT16)
          for (int x = 0; x < 2; x++)
            tiles[c].floats[i][j] += wide(tiles[a].halves[i][2 * w + x]) * wide(tiles[b].halves[w][2 * j + x]);
        else
          for (int x = 0; x < 4; x++)
            tiles[c].integers[i][j] +=
                (kind == SIGNED ? (int32_t)tiles[a].signed_bytes[i][4 * w + x] : (int32_t)tiles[a].bytes[i][4 * w + x]) *
                tiles[b].signed_bytes[w][4 * j + x];
      }
  return 0;
}

#define TILE(t)                                                                                                    \
  int32_t vortex_tile_load_##t(const void *from, int64_t stride) { return load(t, from, stride); }                \
  int32_t vortex_tile_store_##t(void *to, int64_t stride) { return store(t, to, stride); }                        \
  int32_t vortex_tile_zero_##t(void) { return sizes.rows[t] ? (memset(&tiles[t], 0, sizeof tiles[t]), 0) : refused(); }
TILE(0) TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7)

#define DOT(c, a, b)                                                                \
  int32_t vortex_tdpbf16ps_##c##_##a##_##b(void) { return dot(BFLOAT16, c, a, b); } \
  int32_t vortex_tdpbssd_##c##_##a##_##b(void) { return dot(SIGNED, c, a, b); }     \
  int32_t vortex_tdpbusd_##c##_##a##_##b(void) { return dot(UNSIGNED, c, a, b); }
#define WITH_B(c, a) DOT(c, a, 1) DOT(c, a, 2) DOT(c, a, 3) DOT(c, a, 4) DOT(c, a, 5) DOT(c, a, 6) DOT(c, a, 7)
#define WITH_A(c) WITH_B(c, 1) WITH_B(c, 2) WITH_B(c, 3) WITH_B(c, 4) WITH_B(c, 5) WITH_B(c, 6) WITH_B(c, 7)
WITH_A(0) WITH_A(1) WITH_A(2) WITH_A(3) WITH_A(4)
