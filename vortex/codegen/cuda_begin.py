"""The load stage of kernels with a prologue: what happens to an element of A in the registers where it arrives.

A kernel's own text stays as it is, as with an epilogue: the functions that bring fragments of A into registers are
called by other names, and do the steps on what they brought. Each warp that multiplies an element computes its steps.
Past the edge of A they meet zeros, which may become anything but are multiplied by zeros of B, or lie outside C.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vortex.codegen.cuda_finish import step
from vortex.codegen.cuda_lower import KernelSource
from vortex.epilogue import Epilogue
from vortex.errors import CodegenError

PLACES = r"(?:A_fragment|left)_ptr"
"""Registers of A, on their way from shared memory and in the skinny family from global memory."""
ARRIVES = re.compile(rf"\b(ldmatrix|move|copy)_(\w+)\(\(&\({PLACES}\[")
ROUNDED = re.compile(r"\bround_tf32\((?=A_shared_ptr\[)")
FUNCTIONS = r"""
VORTEX_DEVICE void begin(float& x) { x = begin_element(x); }
VORTEX_DEVICE void begin(half& x) { x.bits = (unsigned short)pack_f16(begin_element((float)x), 0.f); }
VORTEX_DEVICE void begin(nv_bfloat16& x) { x.bits = (unsigned short)pack_bf16(begin_element((float)x), 0.f); }
template <int Count, class T> VORTEX_DEVICE void begin_all(T* x) {
#pragma unroll
  for (int i = 0; i < Count; ++i) begin(x[i]);
}
VORTEX_DEVICE float begin_tf32(float x) { return round_tf32(begin_element(x)); }
VORTEX_DEVICE void begin_ldmatrix_tf32(float* to, const void* row) {
  ldmatrix(to, row);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = begin_tf32(to[i]);
}
#define VORTEX_MATRICES(kind, type) \
  VORTEX_DEVICE void begin_ldmatrix_##kind(type* to, const void* row) { ldmatrix_##kind(to, row); begin_all<8>(to); }
VORTEX_MATRICES(f16, half)
VORTEX_MATRICES(f16_trans, half)
VORTEX_MATRICES(bf16, nv_bfloat16)
VORTEX_MATRICES(bf16_trans, nv_bfloat16)
#define VORTEX_BEGIN(bytes) \
  template <class T> VORTEX_DEVICE void begin_move_##bytes(T* to, const void* from) { \
    move_##bytes(to, from); \
    begin_all<bytes / sizeof(T)>(to); \
  } \
  template <class T> VORTEX_DEVICE void begin_copy_##bytes(T* to, const void* from, bool inside) { \
    copy_##bytes(to, from, inside); \
    begin_all<bytes / sizeof(T)>(to); \
  }
VORTEX_BEGIN(2)
VORTEX_BEGIN(4)
VORTEX_BEGIN(8)
VORTEX_BEGIN(16)
"""


def functions(prologue: Epilogue) -> str:
    """What kernels with this load stage call, beyond the prelude."""
    body = "\n".join(f"  {line}" for line in (step(what, 0) for what in prologue.steps) if line)
    return f"VORTEX_DEVICE float begin_element(float x) {{\n{body}\n  return x;\n}}\n{FUNCTIONS}"


def begun(kernel: KernelSource) -> KernelSource:
    """A kernel whose fragments of A go through the functions of the load stage."""
    text, called = ARRIVES.subn(lambda match: f"begin_{match[0]}", kernel.source)
    text, rounded = ROUNDED.subn("begin_tf32(", text)
    if not called + rounded or re.search(rf"{PLACES}\[[^\]]*\] = (?!begin_)", text):
        raise CodegenError(f"{kernel.symbol}: no prologue on the way that A takes to registers")
    return replace(kernel, source=text)
