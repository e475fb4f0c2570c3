"""A matrix product in Triton, tuned for each shape: blocks of C walked in groups of rows, float32 accumulators."""

from typing import Any

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_stages=stages, num_warps=warps)
    for bm, bn, bk, stages, warps in (
        (128, 256, 64, 3, 8),
        (128, 128, 64, 4, 4),
        (128, 128, 32, 4, 4),
        (64, 256, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 32, 64, 5, 2),
        (32, 64, 64, 5, 2),
        (16, 128, 64, 4, 4),
        (16, 64, 128, 4, 4),
    )
]


@triton.autotune(configs=CONFIGS, key=["m", "n", "k"], warmup=2, rep=10)
@triton.jit
def _kernel(
    a,
    b,
    c,
    m,
    n,
    k,
    a0,
    a1,
    b0,
    b1,
    c0,
    c1,
    TF32: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    block = tl.program_id(0)
    band = block // (GROUP * across)
    rows_in_band = min(down - band * GROUP, GROUP)
    within = block % (GROUP * across)
    i, j = band * GROUP + within % rows_in_band, within // rows_in_band
    rows = (i * BM + tl.arange(0, BM)) % m
    columns = (j * BN + tl.arange(0, BN)) % n
    depth = tl.arange(0, BK)
    at_a = a + rows[:, None].to(tl.int64) * a0 + depth[None, :] * a1
    at_b = b + depth[:, None] * b0 + columns[None, :].to(tl.int64) * b1
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        inside = depth < k - step * BK
        x = tl.load(at_a, mask=inside[None, :], other=0.0)
        y = tl.load(at_b, mask=inside[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision="tf32" if TF32 else "ieee")
        at_a += BK * a1
        at_b += BK * b0
    out_rows, out_columns = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    at_c = c + out_rows[:, None].to(tl.int64) * c0 + out_columns[None, :] * c1
    tl.store(at_c, total.to(c.dtype.element_ty), mask=(out_rows[:, None] < m) & (out_columns[None, :] < n))


def matmul(a: Any, b: Any, out: Any) -> None:
    m, k = a.shape
    n = b.shape[1]

    def grid(tile: Any) -> tuple[int]:
        return (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]),)

    tf32 = torch.backends.cuda.matmul.allow_tf32
    _kernel[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), tf32)
