"""Tensor-Core kernels: mma.sync on fragments, fed from swizzled shared memory by a multi-stage copy."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from vortex.codegen.cuda_fragments import INSTRUCTIONS, SIDE, WARP, intrinsics, operand, spread
from vortex.codegen.cuda_lower import KernelSource, has_async_copy, lowered
from vortex.codegen.cuda_pipeline import STAGE, STEP
from vortex.codegen.cuda_program import copy_stage, gemm
from vortex.errors import CodegenError
from vortex.gpu_candidates import Variant

MOST_REGISTERS = 206
"""Accumulators, two sets of fragments and an address for each copy of a thread: with more, ptxas would spill."""


def _doubled(variant: Variant, arch: str) -> bool:
    """Whether a thread has the registers to read the next fragments while it multiplies."""
    strategy, l0, l1 = variant.strategy, variant.strategy.l0, variant.strategy.l1
    fragments = (l0.m + l0.n) * l0.k * strategy.item_bytes // (4 * WARP)
    copies = (l1.m + l1.n) * l1.k * strategy.item_bytes // (strategy.threads * variant.vector_bytes)
    held = 0 if has_async_copy(arch) or strategy.stages == 1 else strategy.stage_bytes // (4 * strategy.threads)
    return strategy.accumulators + 2 * fragments + copies + held <= MOST_REGISTERS


def _batched(index_map: Any) -> Any:
    """The same map below the axis of splits."""
    return lambda s, i, j: (s, *index_map(i, j))


def kernel(variant: Variant, arch: str) -> tirx.PrimFunc:
    """The scheduled kernel of a `tensor_core` variant."""
    strategy = variant.strategy
    thread = strategy.thread
    if (thread.m, thread.n) != (SIDE, SIDE // 2) or (strategy.dtype, thread.k) not in INSTRUCTIONS:
        raise CodegenError(f"no code for an instruction of {thread.m}x{thread.n}x{thread.k} on {strategy.dtype}")
    l0, l1, depth = strategy.l0, strategy.l1, INSTRUCTIONS[strategy.dtype, thread.k].depth
    if l0.m % SIDE or l0.n % SIDE or l0.k % depth or l1.m % l0.m or l1.n % l0.n or l1.k % l0.k:
        raise CodegenError(f"{strategy}: L0 must be a multiple of {SIDE}x{SIDE}x{depth}, and L1 of L0")
    names = intrinsics(strategy.dtype, thread.k, variant.transpose_a, variant.transpose_b)
    program = gemm(variant.name, strategy.dtype, l1, variant.transpose_a, variant.transpose_b)
    schedule = s_tir.Schedule(program)
    product = schedule.get_sblock("product")
    split, i, j, k = schedule.get_loops(product)
    i, ii = schedule.split(i, [None, SIDE])
    j, jj = schedule.split(j, [None, SIDE])
    k, kk = schedule.split(k, [None, depth])
    schedule.reorder(i, j, k, ii, jj, kk)
    inner, outer = product, schedule.blockize(ii)
    schedule.bind(split, "blockIdx.z")
    block_i, warp_i, tile_i = schedule.split(i, [None, l1.m // l0.m, l0.m // SIDE])
    block_j, warp_j, tile_j = schedule.split(j, [None, l1.n // l0.n, l0.n // SIDE])
    stage, step = schedule.split(k, [None, l1.k // depth])
    schedule.reorder(block_i, block_j, warp_i, warp_j, stage, step, tile_i, tile_j)
    schedule.bind(block_i, "blockIdx.y")
    schedule.bind(block_j, "blockIdx.x")
    warp = schedule.fuse(warp_i, warp_j)
    schedule.bind(warp, "threadIdx.y")

    if strategy.store == "shared":
        staged = schedule.cache_write(outer, 0, "shared.dyn")
        registers = schedule.cache_write(outer, 0, "warp")
        schedule.reverse_compute_at(registers, warp)
        schedule.reverse_compute_at(staged, warp)
    else:
        staged = None
        registers = schedule.cache_write(outer, 0, "warp")
        schedule.reverse_compute_at(registers, warp)

    loads = []
    for which, pad, tile in (
        (0, "A_pad", (depth, SIDE) if variant.transpose_a else (SIDE, depth)),
        (1, "B_pad", (SIDE, depth) if variant.transpose_b else (depth, SIDE)),
    ):
        copy = schedule.cache_read(outer, which, "shared.dyn")
        schedule.compute_at(copy, stage)
        schedule.compute_inline(schedule.get_sblock(pad))
        copy_stage(schedule, copy, (1, strategy.warps, WARP), _elements(variant))
        fragment = schedule.cache_read(outer, which, "warp")
        schedule.compute_at(fragment, step)
        a, b = schedule.get_loops(fragment)[-2:]
        a0, a1 = schedule.split(a, [None, tile[0]])
        b0, b1 = schedule.split(b, [None, tile[1]])
        schedule.reorder(a0, b0, a1, b1)
        schedule.unroll(a0)
        schedule.unroll(b0)
        schedule.transform_layout(fragment, ("write", 0), _batched(operand(*tile)))
        schedule.blockize(a1)
        loads.append(fragment)

    a, b = schedule.get_loops(registers)[-2:]
    place, widest = spread(strategy.dtype, variant.transpose_a, variant.transpose_b), _elements(variant)
    if place.pairs_a:
        a0, r, u = schedule.split(a, [None, 8, 2])
    else:
        a0, u, r = schedule.split(a, [None, 2, 8])
    if place.pairs_b:  # a lane has four neighbours of a row
        width = 4 if staged is not None else min(4, widest)
        b0, c, h, v = schedule.split(b, [None, 4, 4 // width, width])
    else:
        width = 2 if staged is not None else min(2, widest)
        b0, h, c, v = schedule.split(b, [None, 2, 4, 2])
    schedule.reorder(a0, b0, r, c, u, h, v)
    lane = schedule.fuse(r, c)
    schedule.bind(lane, "threadIdx.x")
    for loop in (a0, b0, u, h):
        schedule.unroll(loop)
    if width > 1:
        schedule.vectorize(v)
    else:
        schedule.unroll(v)
    schedule.transform_layout(registers, ("read", 0), _batched(place))

    clear = schedule.decompose_reduction(outer, stage)
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(clear)[0])[-2], names.clear)
    for fragment, name in zip(loads, (names.load_a, names.load_b), strict=True):
        schedule.tensorize(schedule.get_loops(fragment)[-2], name)
    schedule.tensorize(schedule.get_loops(inner)[-3], names.multiply)
    for loop in schedule.get_loops(clear)[-2:]:
        schedule.unroll(loop)

    # Last: the predicate that inlining brings along would fail the checks of the schedule primitives above.
    schedule.reverse_compute_inline(schedule.get_sblock("C"))
    if staged is not None:
        fused = schedule.fuse(*schedule.get_loops(staged)[-2:])
        _, lanes, vector = schedule.split(fused, [None, WARP, min(4, widest)])
        schedule.bind(lanes, "threadIdx.x")
        schedule.vectorize(vector)
    schedule.unroll(tile_i)
    schedule.unroll(tile_j)
    schedule.annotate(stage, STAGE, strategy.stages)
    schedule.annotate(step, STEP, 2 if _doubled(variant, arch) else 1)
    return schedule.mod["main"]


def _elements(variant: Variant) -> int:
    """Of A and B that are copied at once."""
    return variant.vector_bytes // variant.strategy.item_bytes


def source(variant: Variant, arch: str) -> KernelSource:
    """CUDA of a `tensor_core` variant."""
    strategy = variant.strategy
    words = {
        "A_shared": strategy.dtype == "tfloat32" and variant.transpose_a,
        "B_shared": strategy.dtype == "tfloat32" and not variant.transpose_b,
        "product_shared": True,
    }
    place = spread(strategy.dtype, variant.transpose_a, variant.transpose_b)
    quads = {name for name, paired in (("A_shared", place.pairs_a), ("B_shared", place.pairs_b)) if paired}
    return lowered(kernel(variant, arch), strategy.dtype, arch, strategy.stages, words, quads)
