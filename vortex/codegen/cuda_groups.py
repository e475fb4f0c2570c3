"""Kernels of products in groups of rows, in one launch: each block finds the group that its tile belongs to.

A kernel's own text stays as it is: its pointers, its M and its number of the block become those of the group. Where the
groups end is a parameter by value, counted in rows and in rows of tiles, so that no device memory is asked for it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vortex.codegen.cuda_batch import HEAD, POINTER, RECORD
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.cuda_text import arguments
from vortex.errors import CodegenError

MOST = 256
"""Groups of one launch: what a kernel's parameters, 4 KiB, have room for."""
STRUCT = f"""
struct groups {{
  long long a, b, c; /* bytes between rows of A (columns where it is turned over), matrices of B, rows of C */
  int count, first; /* groups of this launch, and how many come before them */
  int rows[{MOST + 1}], tiles[{MOST + 1}]; /* before each group, in rows and in rows of tiles; and in all */
}};
struct member {{ int group, block, rows; }};
/* The last group that begins at or before a block: an empty one begins where the next one does. */
VORTEX_DEVICE member member_of(const groups& all, int block, int wide) {{
  int low = 0, high = all.count, tall = block / wide;
  while (high - low > 1) {{
    int middle = (low + high) / 2;
    if (all.tiles[middle] <= tall) low = middle; else high = middle;
  }}
  return {{low, block - all.tiles[low] * wide, all.rows[low + 1] - all.rows[low]}};
}}
template <class T> VORTEX_DEVICE T* moved(T* base, long long bytes) {{ return (T*)((char*)base + bytes); }}
"""
FINISHED = r"""
VORTEX_DEVICE finished of_group(finished f, const groups& all, int group) {
  f.c = moved(f.c, (long long)all.rows[group] * all.c);
  f.at[0] = all.rows[group];
  f.at[1] = all.first + group;
  return f;
}
"""
PLACES = {
    "A": "(long long)all.rows[own.group] * all.a",
    "B": "(long long)(all.first + own.group) * all.b",
    "C": "(long long)all.rows[own.group] * all.c",
}
"""Where the operands of a group begin."""
BLOCK = "((int)blockIdx.x)"


def grouped(kernel: KernelSource) -> KernelSource:
    """A kernel whose blocks compute tiles of one group after the other."""
    head = HEAD.search(kernel.source)
    found = [] if head is None else POINTER.findall(head[1])
    place = kernel.source.find(f"row_of_block({BLOCK}")
    is_finished = head is not None and RECORD in head[1]
    expected = ["A", "B"] if is_finished else ["A", "B", "C"]
    if head is None or [name for _, name in found] != expected or "int M" not in head[1] or place < 0:
        raise CodegenError(f"{kernel.symbol} takes no operands that groups of rows could move")
    wide = arguments(kernel.source, kernel.source.index("(", place))[0][2]
    own = [f"  {kind} __restrict__ const {name} = moved({name}_of_all, {PLACES[name]});\n" for kind, name in found]
    if is_finished:
        own.append("  const finished C = of_group(C_of_all, all, own.group);\n")
    signature = POINTER.sub(r"\1 __restrict__ \2_of_all", head[1]).replace(RECORD, f"{RECORD}_of_all")
    signature = re.sub(r"\bint M\b", "int M_of_all", signature)
    begin = (
        f"{signature}, const __grid_constant__ groups all) {{\n  const member own = member_of(all, {BLOCK}, {wide});\n"
        f"  const int M = own.rows;\n{''.join(own)}"
    )
    body = kernel.source[head.end() :].replace(BLOCK, "own.block")
    return replace(kernel, source=kernel.source[: head.start()] + begin + body, args=(*kernel.args, "&groups"))
