"""Kernels of many products in one launch: blockIdx.y counts products, and each finds its operands before it begins.

A kernel's own text stays as it is: its pointers become those of the product. Strides are bytes, of up to two axes of
the batch, 0 where all products share an operand.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vortex.codegen.cuda_lower import KernelSource
from vortex.errors import CodegenError

STRUCT = r"""
struct batches {
  long long inner, first; /* products along the inner axis; how many come before those of this launch */
  long long a[2], b[2], c[2], w[2];
};
template <class T> VORTEX_DEVICE T* of_batch(T* base, const batches& all, unsigned layer, const long long* stride) {
  long long product = all.first + layer;
  return (T*)((char*)base + (product / all.inner * stride[0] + product % all.inner * stride[1]));
}
"""
FINISHED = r"""
VORTEX_DEVICE finished of_batch(finished f, const batches& all, unsigned layer, const long long* stride) {
  f.c = of_batch(f.c, all, layer, stride);
  f.at[0] = (all.first + layer) / all.inner;
  f.at[1] = (all.first + layer) % all.inner;
  return f;
}
"""
HEAD = re.compile(r'(extern "C" __global__ void[^{]*)\) \{\n')
POINTER = re.compile(r"((?:signed )?\w+\*) __restrict__ ([ABCW])\b")
RECORD = "const __grid_constant__ finished C"


def batched(kernel: KernelSource) -> KernelSource:
    """A kernel that computes one product of a batch in each layer of its grid."""
    head = HEAD.search(kernel.source)
    if head is None or not POINTER.search(head[1]):
        raise CodegenError(f"{kernel.symbol} takes no pointers that a batch could move")
    own = [
        f"  {kind} __restrict__ const {name} = of_batch({name}_of_all, batch, blockIdx.y, batch.{name.lower()});\n"
        for kind, name in POINTER.findall(head[1])
    ]
    signature = POINTER.sub(r"\1 __restrict__ \2_of_all", head[1])
    if RECORD in signature:
        signature = signature.replace(RECORD, f"{RECORD}_of_all")
        own.append("  const finished C = of_batch(C_of_all, batch, blockIdx.y, batch.c);\n")
    begin = f"{signature}, const __grid_constant__ batches batch) {{\n{''.join(own)}"
    text = kernel.source[: head.start()] + begin + kernel.source[head.end() :]
    return replace(kernel, source=text, args=(*kernel.args, "&batch"))
