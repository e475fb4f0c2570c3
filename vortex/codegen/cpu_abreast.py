"""L0 on CPUs of few rows by a packed B whose panels stream past abreast, a few steps of k of each in turn.

One panel after the other is a single stream, and where pages are small a core that follows several gets more of what
memory gives. Sums are in L1, where each block of steps adds to them: of more panels at once than registers have room
for. An element of C is the same chain of fused multiply-adds in the order of k as in `cpu_kernels`: bitwise the same
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import fetch
from vortex.codegen.lower import compile_object, cpu_target

STEPS = 4
"""Of k, for which sums stay in registers and the next as many of a panel are asked for."""
ROWS = 10
"""Most rows of A, for as many of which `runtime/abreast.c` has room (`VX_ABREAST_MOST`)."""
NARROW_ROWS = 6
"""Rows up to which registers have room for what a block of steps takes of A, which LLVM then loads once for all panels.
Of more, two vectors share each element, and LLVM, which would keep all that it loaded on the stack, is not told that
the place in A is the same: past 8 rows memory gives 17 GB/s so and 13 else (an Emerald Rapids, 67 MB)."""
HERE_SYMBOL = "vortex_here"
HERE_IR = f"""define weak_odr hidden i64 @{HERE_SYMBOL}(i64 %place) #0 {{
  %same = call i64 asm sideeffect "", "=r,0"(i64 %place)
  ret i64 %same
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def abreast_symbol(rows: int) -> str:
    return f"vortex_abreast_{rows}"


def emit_abreast(rows: Sequence[int], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([abreast_kernel(each, lanes) for each in rows], cpu_target(llvm_cpu), path, llvm_ir=HERE_IR)


def abreast_table(rows: Sequence[int]) -> list[str]:
    """C source that hands the kernels to `runtime/abreast.c` by rows."""
    symbols = [abreast_symbol(each) for each in rows]
    return [
        *(f"extern vx_abreast {symbol};" for symbol in symbols),
        f"const int64_t vx_abreast_rows = {len(symbols)};",
        f"vx_abreast *const vx_abreast_tiles[] = {{{', '.join(['0', *symbols])}}};",
    ]


def abreast_kernel(rows: int, lanes: int) -> tirx.PrimFunc:
    """S[0:rows, 0:panels * vectors * lanes] += A[0:rows, 0:k] B of a B in panels, the first `vectors` of each

    `symbol(a, b, s, panels, vectors, k, lda, ldb, apart, lds)`: strides in elements, panels `apart`.
    """
    pair = 2 if rows > NARROW_ROWS else 1

    def vector(first: Any) -> Any:
        return T.ramp(first, 1, lanes)

    @T.inline
    def steps(
        A: Any, B: Any, S: Any, acc: Any, line: Any, s: Any, v: Any, vectors: Any, p: Any, count: Any, wide: Any
    ) -> None:
        """`count` steps of k from `p` on of the panel `s`, its `wide` vectors from `v` on."""
        first: T.let[T.int64] = (s * vectors + v) * lanes
        here: T.let[T.int64] = T.call_extern("int64", HERE_SYMBOL, p) if pair > 1 else p
        for i, w in T.grid(rows, wide):
            acc[vector((i * wide + w) * lanes)] = S[i, vector(first + w * lanes)]
        for u in T.unroll(count):
            for w in T.unroll(wide):
                T.evaluate(fetch(T.address_of(B[s, p + u + STEPS, (v + w) * lanes])))
                line[vector(w * lanes)] = B[s, p + u, vector((v + w) * lanes)]
            for i, w in T.grid(rows, wide):
                at = T.meta_var(vector((i * wide + w) * lanes))
                acc[at] = T.fma(T.broadcast(A[i, here + u], lanes), line[vector(w * lanes)], acc[at])
        for i, w in T.grid(rows, wide):
            S[i, vector(first + w * lanes)] = acc[vector((i * wide + w) * lanes)]

    @T.inline
    def past(A: Any, B: Any, S: Any, acc: Any, line: Any, panels: Any, vectors: Any, p: Any, count: Any) -> None:
        for s in T.serial(panels):
            for v in T.serial(T.truncdiv(vectors, pair)):
                steps(A, B, S, acc, line, s, v * pair, vectors, p, count, pair)
            for _ in T.serial(vectors - T.truncdiv(vectors, pair) * pair):
                steps(A, B, S, acc, line, s, vectors - 1, vectors, p, count, 1)

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        panels: T.int64,
        vectors: T.int64,
        k: T.int64,
        lda: T.int64,
        ldb: T.int64,
        apart: T.int64,
        lds: T.int64,
    ):
        T.func_attr({"global_symbol": abreast_symbol(rows), "tirx.noalias": True})
        A = T.match_buffer(a, (rows, k), "float32", align=4, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (panels, k, ldb), "float32", align=4, strides=[apart, ldb, T.int64(1)])
        S = T.match_buffer(c, (rows, lds), "float32", align=4, strides=[lds, T.int64(1)])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((rows * pair * lanes,), "float32", scope="local")
            line = T.sblock_alloc_buffer((pair * lanes,), "float32", scope="local")
            whole: T.let[T.int64] = T.truncdiv(k, STEPS)
            for block in T.serial(whole):
                past(A, B, S, acc, line, panels, vectors, block * STEPS, STEPS)
            for rest in T.serial(k - whole * STEPS):
                past(A, B, S, acc, line, panels, vectors, whole * STEPS + rest, 1)

    return kernel
