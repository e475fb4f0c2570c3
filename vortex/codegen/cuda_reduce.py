"""The end of a split reduction: partial sums added up in the order of the splits, whatever ran first."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen import cuda_lower, cuda_passes

THREADS = COLUMNS = 256
"""Elements of C that one block makes, counted along rows and on into the next: one for each thread, since what the
kernel takes is how long it waits for its loads."""
ADDING, AT_ONCE = "for (int s = 0;", "#pragma unroll 8\n"
ARGS = ("*W", "*C", "M", "N", "ldc", "splits")


def _program(symbol: str, sums: str) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def program(w: T.handle, c: T.handle, M: T.int32, N: T.int32, ldc: T.int32, splits: T.int32):
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        W = T.match_buffer(w, (splits, M * N), sums)
        C = T.match_buffer(c, (1, M, N), sums, strides=[M * ldc, ldc, 1])
        with T.sblock("root"):
            total = T.sblock_alloc_buffer((1,), sums, scope="local")
            for block in T.thread_binding((M * N + (COLUMNS - 1)) // COLUMNS, thread="blockIdx.x"):
                for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                    with T.sblock("element"):
                        e = T.axis.spatial((M * N + (COLUMNS - 1)) // COLUMNS * COLUMNS, block * COLUMNS + thread)
                        if e < M * N:
                            total[0] = T.cast(0, sums)
                            for s in T.serial(splits):
                                total[0] = total[0] + W[s, e]
                            C[0, T.truncdiv(e, N), T.truncmod(e, N)] = total[0]

    return program


def source(dtype: str, arch: str) -> cuda_lower.KernelSource:
    """`reduce_<dtype>`: partial sums [splits, m, n], float32 or int32, into C of that type."""
    stored = cuda_lower.STORED[dtype]
    symbol, sums = f"reduce_{stored}", "int32" if stored == "int32" else "float32"
    target = cuda_lower.cuda_target(arch)
    function = cuda_lower.simple(_program(symbol, sums), target)
    w, c = (cuda_lower.Operand(parameter) for parameter in function.params[:2])
    rows, columns, leading, splits = function.params[2:]
    body = cuda_passes.loads(function.body, w.buffer, lambda at: cuda_lower.element(w, at[0], rows * columns, at[1]))
    body = cuda_passes.stores(
        body,
        c.buffer,
        lambda at: [c.pointer, tirx.const(False), at[0], rows, at[1], leading, at[2]],
        cuda_lower.SUFFIX[dtype],
    )
    text = cuda_lower.printed(body, symbol, [w.pointer, c.pointer, rows, columns, leading, splits], target)
    text = text.replace(ADDING, AT_ONCE + ADDING)
    return cuda_lower.KernelSource(symbol, text, ARGS, (THREADS, 1, 1), 0)
