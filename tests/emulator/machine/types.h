// The arithmetic types and small vectors of CUDA C++ as the emitted sources use them.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emulator {
template <class To, class From> inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace emulator

// Arithmetic goes through float and rounds after every operation: float has more than twice the digits, so that one
// rounding of + - * / is the right one.
struct __half {
  uint16_t raw;
  __half() = default;
  __half(float value) : raw(emulator::bits<uint16_t>(static_cast<_Float16>(value))) {}
  __half(double value) : raw(emulator::bits<uint16_t>(static_cast<_Float16>(value))) {}
  __half(int value) : __half(static_cast<float>(value)) {}
  operator float() const { return static_cast<float>(emulator::bits<_Float16>(raw)); }
};

struct __nv_bfloat16 {
  uint16_t raw;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    const uint32_t wide = emulator::bits<uint32_t>(value);
    raw = value != value ? 0x7fff : static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to nearest, ties to even
  }
  __nv_bfloat16(double value) : __nv_bfloat16(static_cast<float>(value)) {}
  __nv_bfloat16(int value) : __nv_bfloat16(static_cast<float>(value)) {}
  operator float() const { return emulator::bits<float>(static_cast<uint32_t>(raw) << 16); }
};

#define EMULATOR_ARITHMETIC(T)                                                                      \
  inline T operator+(T a, T b) { return T(static_cast<float>(a) + static_cast<float>(b)); }         \
  inline T operator-(T a, T b) { return T(static_cast<float>(a) - static_cast<float>(b)); }         \
  inline T operator*(T a, T b) { return T(static_cast<float>(a) * static_cast<float>(b)); }         \
  inline T operator/(T a, T b) { return T(static_cast<float>(a) / static_cast<float>(b)); }         \
  inline T operator-(T a) { return T(-static_cast<float>(a)); }                                     \
  inline T& operator+=(T& a, T b) { return a = a + b; }                                             \
  inline T& operator*=(T& a, T b) { return a = a * b; }                                             \
  inline bool __hgt(T a, T b) { return static_cast<float>(a) > static_cast<float>(b); }             \
  inline bool __hlt(T a, T b) { return static_cast<float>(a) < static_cast<float>(b); }             \
  inline T __hadd(T a, T b) { return a + b; }                                                       \
  inline T __hmul(T a, T b) { return a * b; }                                                       \
  inline T __hfma(T a, T b, T c) { return T(std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))); }
EMULATOR_ARITHMETIC(__half)
EMULATOR_ARITHMETIC(__nv_bfloat16)
#undef EMULATOR_ARITHMETIC

struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };

inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline unsigned __float_as_uint(float x) { return emulator::bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits<float>(x); }
inline int __float_as_int(float x) { return emulator::bits<int>(x); }
inline float __int_as_float(int x) { return emulator::bits<float>(x); }
inline unsigned short __half_as_ushort(__half x) { return x.raw; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.raw; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

// CUDA aligns vectors of two and four to their size (at most 16 bytes): a misplaced one must trap.
#define EMULATOR_VECTORS(T, NAME)                                                                   \
  struct alignas(sizeof(T)) NAME##1 { T x; };                                                       \
  struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                                \
  struct NAME##3 { T x, y, z; };                                                                    \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) NAME##4 { T x, y, z, w; };                \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                        \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTORS(signed char, char)
EMULATOR_VECTORS(unsigned char, uchar)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(unsigned short, ushort)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(unsigned, uint)
EMULATOR_VECTORS(long long, longlong)
EMULATOR_VECTORS(unsigned long long, ulonglong)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
#undef EMULATOR_VECTORS
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }

inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
