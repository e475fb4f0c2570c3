"""The store stage of kernels with an epilogue: what happens to a finished sum on its way from registers to C.

A kernel's own text stays as it is: its parameter C becomes a `finished`, which also has the tensors of the epilogue,
and the functions that store take it. Partial sums of a split reduction go to the workspace untouched; the kernel that
adds them up finishes them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import singledispatch

from vortex.codegen.cuda_lower import KernelSource
from vortex.epilogue import Store
from vortex.errors import CodegenError
from vortex.steps import Bias, Cast, Clamp, Gelu, Multiply, Relu, Scale, Silu, Step

ELEMENTS = {"float32": "float", "float16": "half", "bfloat16": "nv_bfloat16"}
"""Types of the prelude."""
LIMITS = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "int32": (-(2.0**31), 2.0**31)}
PACKED = {"float16": "pack_f16", "bfloat16": "pack_bf16"}

STRUCT = r"""
/* In the place of C: where sums go, and what the epilogue reads; strides in elements, 0 along what is shared. */
struct finished {
  float* c;
  const void* operand[4];
  long long row[4], column[4], apart[4][2]; /* the last in bytes, along axes of a batch; of groups, rows and groups */
  long long at[2]; /* of this product along those axes */
};
template <class T> VORTEX_DEVICE float operand_at(const finished& f, int which, int i, int j) {
  return (float)((const T*)(PLACE))[i * f.row[which] + j * f.column[which]];
}
"""
ALONE = "f.operand[which]"
AMONG = "(const char*)f.operand[which] + f.at[0] * f.apart[which][0] + f.at[1] * f.apart[which][1]"
"""Where an operand of one product begins, and of one of many: found as late as this, it takes no register before."""
STORES = r"""
/* Partial sums, and where AS_THEY_ARE integers that no step changes, leave as the words they are. */
template <int Width, class T>
VORTEX_DEVICE void finish(const finished& f, bool partial, int z, int m, int i, int ld, int j, const T* v) {
  long long x = result_at(z, m, i, ld, j);
  if (partial || AS_THEY_ARE) return put_f32<Width>(f.c, x, (const float*)v);
  float y[Width];
#pragma unroll
  for (int e = 0; e < Width; ++e) y[e] = finish_sum(f, (float)v[e], i, j + e);
  put<Width>(f.c, x, y);
}
#define VORTEX_FINISH(width) \
  template <class T> \
  VORTEX_DEVICE void finish_##width(const finished& f, bool part, int z, int m, int i, int ld, int j, const T* v) { \
    finish<width>(f, part, z, m, i, ld, j, v); \
  }
VORTEX_FINISH(1)
VORTEX_FINISH(2)
VORTEX_FINISH(4)
VORTEX_DEVICE void finish_pair(const finished& f, bool partial, int z, int m, int i, int ld, int j, float x, float y) {
  float v[2] = {x, y};
  finish<2>(f, partial, z, m, i, ld, j, v);
}
"""
FLOATS = r"""
template <int Width> VORTEX_DEVICE void put_f32(void* c, long long x, const float* y) {
  float* to = (float*)c + x;
  if constexpr (Width == 4) *(float4*)to = make_float4(y[0], y[1], y[2], y[3]);
  else if constexpr (Width == 2) *(float2*)to = make_float2(y[0], y[1]);
  else to[0] = y[0];
}
"""
SAME = r"""
template <int Width> VORTEX_DEVICE void put(void* c, long long x, const float* y) { put_f32<Width>(c, x, y); }
"""
HALVES = r"""
template <int Width> VORTEX_DEVICE void put(void* c, long long x, const float* y) {
  unsigned short* to = (unsigned short*)c + x;
  if constexpr (Width == 4) *(uint2*)to = make_uint2(PACK(y[0], y[1]), PACK(y[2], y[3]));
  else if constexpr (Width == 2) *(unsigned*)to = PACK(y[0], y[1]);
  else to[0] = (unsigned short)PACK(y[0], 0.f);
}
"""
WHOLE = r"""
VORTEX_DEVICE int whole(float x) {
  return x >= HIGHf ? MOST : x <= LOWf ? LEAST : (int)rintf(x);
}
"""
BYTES = r"""
template <int Width> VORTEX_DEVICE void put(void* c, long long x, const float* y) {
  unsigned char* to = (unsigned char*)c + x;
  unsigned word = 0;
#pragma unroll
  for (int e = 0; e < Width; ++e) word |= (unsigned)(whole(y[e]) & 255) << 8 * e;
  if constexpr (Width == 4) *(unsigned*)to = word;
  else if constexpr (Width == 2) *(unsigned short*)to = (unsigned short)word;
  else to[0] = (unsigned char)word;
}
"""
WORDS = r"""
template <int Width> VORTEX_DEVICE void put(void* c, long long x, const float* y) {
  float z[Width];
#pragma unroll
  for (int e = 0; e < Width; ++e) z[e] = __int_as_float(whole(y[e]));
  put_f32<Width>(c, x, z);
}
"""


def number(value: float) -> str:
    """A float32 constant, exactly."""
    text = repr(float(value))
    return f"({text if '.' in text or 'e' in text else text + '.0'}f)"


@singledispatch
def step(what: Step, which: int) -> str:
    """The statement that does one step to `x`; `which` counts the tensors that were read before it."""
    raise TypeError(f"no code for {what}")


@step.register
def _(what: Bias, which: int) -> str:
    return f"x += operand_at<{ELEMENTS[what.dtype]}>(f, {which}, i, j);"


@step.register
def _(what: Scale, which: int) -> str:
    return f"x *= operand_at<{ELEMENTS[what.dtype]}>(f, {which}, i, j);"


@step.register
def _(what: Multiply, which: int) -> str:
    return f"x *= {number(what.factor)};"


@step.register
def _(what: Relu, which: int) -> str:
    return "x = x < 0.f ? 0.f : x;"


@step.register
def _(what: Clamp, which: int) -> str:
    return f"x = x < {number(what.low)} ? {number(what.low)} : x > {number(what.high)} ? {number(what.high)} : x;"


@step.register
def _(what: Gelu, which: int) -> str:
    if what.approximate == "tanh":
        return "x = 0.5f * x * (1.f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));"
    return "x = 0.5f * x * erfcf(-0.7071067812f * x);"


@step.register
def _(what: Silu, which: int) -> str:
    return "x = 0.5f * x * (1.f + tanhf(0.5f * x));"


@step.register
def _(what: Cast, which: int) -> str:
    return ""


def put(out: str) -> str:
    """How values leave as the element type of C, to nearest; integers saturate."""
    if out == "float32":
        return SAME
    if out in PACKED:
        return HALVES.replace("PACK", PACKED[out])
    low, high = LIMITS[out]
    least, most = ("(-2147483647 - 1)", "2147483647") if out == "int32" else (str(int(low)), str(int(high)))
    bounds = WHOLE.replace("HIGHf", number(high)).replace("LOWf", number(low))
    return bounds.replace("LEAST", least).replace("MOST", most) + (WORDS if out == "int32" else BYTES)


def functions(store: Store, of_many: bool = False) -> str:
    """What kernels with this store stage call, beyond the prelude; `of_many` products each find their own operands."""
    lines, which = [], 0
    for what in store.chain.steps:
        lines.append(step(what, which))
        which += isinstance(what, Bias | Scale)
    body = "\n".join(f"  {line}" for line in lines if line)
    chain = f"VORTEX_DEVICE float finish_sum(const finished& f, float x, int i, int j) {{\n{body}\n  return x;\n}}\n"
    whole = store.sums == store.out == "int32" and not any(step(what, 0) for what in store.chain.steps)
    stores = STORES.replace("AS_THEY_ARE)", f"{str(whole).lower()})")
    struct = STRUCT.replace("PLACE", AMONG if of_many else ALONE)
    return "".join((struct, FLOATS, put(store.out), "\n", chain, stores))


def finished(kernel: KernelSource) -> KernelSource:
    """A kernel whose sums go through the functions of the store stage."""
    own, entry, text = kernel.source.partition('extern "C" __global__')
    text, found = re.subn(r"\b(?:float|int)\* __restrict__ ([Cc])\b", r"const __grid_constant__ finished \1", text)
    if found != 1 or "store_staged" in text:
        raise CodegenError(f"{kernel.symbol}: no epilogue on the way that its sums take to memory")
    text = re.sub(r"\bstore_pair_(?:f32|f16|bf16)\b", "finish_pair", text)
    text = re.sub(r"\bstore_(?:f32|f16|bf16|s32)_([124])\b", r"finish_\1", text)
    return replace(
        kernel, source=own + entry + text, args=tuple("&C" if name == "*C" else name for name in kernel.args)
    )
