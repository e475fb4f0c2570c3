"""GEMM on the Tensor Cores of sm_90a: one thread asks for tiles by TMA, one or two warpgroups multiply them by wgmma.

Every stage of shared memory has two barriers: `full` counts the bytes of its tiles, `empty` the warps that have done
with them. Products of one tile run while the next is waited for; a stage is free when the product after it was issued
and its own has ended. The first tile is peeled: it clears the accumulators inside the instruction, because ptxas
serializes products whose accumulators ordinary instructions have written.

Blocks of a cluster are below one another and multiply by the same columns of B. Each asks for its share of them, which
TMA brings to all: a stage is free where the consumers of all blocks have done with it, and is there when all shares
are. No block ends before the others have done with its memory: it waits until all its stages are free.

TMA wants rows on 16 bytes, so the widest alignment class is the only one. It fills with zeros past the operands: that
is all the padding. Both operands may run along k or across it, as they are given; TF32 runs along k alone, and wgmma
drops the 13 low bits that mma.sync is given rounded.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cuda_lower import KernelSource, cuda_target, printed
from vortex.codegen.hopper_prelude import functions, wgmma_name
from vortex.dtypes import ITEM_BYTES
from vortex.errors import CodegenError
from vortex.gpu_candidates import BARRIER_BYTES, CLUSTERS, OUTGOING_BYTES, WARP, WARPGROUP, Variant

ROW_BYTES = 128
"""What the swizzle spans: one row of a tile in shared memory."""
PATTERN_BYTES = 8 * ROW_BYTES
GROUP = WARPGROUP * WARP
BLOCK_ROWS = 64
"""Rows of A in one instruction."""
KINDS = {"float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32"}
ARGS = ("@A", "@B", "*C", "M", "N", "K", "ldc", "chunk", "raster")
REGISTERS_PER_SM = 65536
MOST_SHARED_BYTES = 232_448  # CUDA C++ Programming Guide, compute capability 9.0: 227 KiB per block
GLOBAL = "__global__ void"
COPYING = "for (int t = 0;"
SPARE_REGISTERS = 40
"""What a consumer needs beside its accumulators."""
FEW_REGISTERS = 40
"""What the producer keeps: with fewer the addresses of its copies would spill. setmaxnreg allows 24."""


def boxes(variant: Variant) -> tuple[tuple[int, int], tuple[int, int]]:
    """Boxes of the tensor maps of A and B, contiguous extent first: a row of 128 bytes, and how many of them."""
    s, tile = variant.strategy, variant.strategy.l1
    row = ROW_BYTES // ITEM_BYTES[s.dtype]
    share = tile.n // s.cluster if variant.transpose_b else tile.k
    return (row, tile.k if variant.transpose_a else tile.m), (row, share)


def operand_bytes(extent: int, depth: int, across: bool, item: int) -> int:
    """One tile of an operand in shared memory; across k it comes in whole rows of 64 elements."""
    return (-(-extent // BLOCK_ROWS) * BLOCK_ROWS if across else extent) * depth * item


def shared_layout(variant: Variant) -> tuple[int, int, int, int]:
    """Where the stages of B, the places of outgoing C and the barriers begin, and the end."""
    s = variant.strategy
    a = s.stages * operand_bytes(s.l1.m, s.l1.k, variant.transpose_a, s.item_bytes)
    b = s.stages * operand_bytes(s.l1.n, s.l1.k, not variant.transpose_b, s.item_bytes)
    # A tile of B whose rows are fewer than a pattern would leave the next stage off the pattern.
    if (b // s.stages) % PATTERN_BYTES:
        raise CodegenError(f"{s}: a stage of B is no multiple of {PATTERN_BYTES} bytes")
    barriers = a + b + (s.computing_warps * OUTGOING_BYTES if s.store == "shared" else 0)
    return a, a + b, barriers, barriers + 2 * s.stages * BARRIER_BYTES


def register_split(accumulators: int, consumers: int) -> tuple[int, int] | None:
    """Registers of the producer's and the consumers' threads, where an even share would not do."""
    share = REGISTERS_PER_SM // (GROUP * (consumers + 1)) // 8 * 8
    if accumulators + SPARE_REGISTERS <= min(share, 255) - 8:
        return None
    more = min((REGISTERS_PER_SM // GROUP - FEW_REGISTERS) // consumers // 8 * 8, 240)
    return FEW_REGISTERS, more


def check(variant: Variant) -> None:
    """Refuse what wgmma and TMA cannot do, by name."""
    s = variant.strategy
    across = variant.transpose_a or not variant.transpose_b
    refusals = (
        (s.dtype not in KINDS, f"wgmma has no {s.dtype}"),
        (variant.vector_bytes != 16, "TMA needs rows on 16 bytes"),
        (s.l1.k * ITEM_BYTES[s.dtype] != ROW_BYTES, f"a stage is {ROW_BYTES} bytes deep"),
        (s.dtype == "tfloat32" and across, "wgmma reads TF32 along k alone"),
        (s.thread.m != BLOCK_ROWS or s.l0.m % BLOCK_ROWS != 0, f"instructions have {BLOCK_ROWS} rows"),
        (s.l0.n != s.l1.n or s.thread.n != s.l1.n, "a warpgroup takes all columns of the block"),
        (s.l1.n % 16 != 0 or not 16 <= s.l1.n <= 256, "16 to 256 columns, in steps of 16"),
        (s.l1.m > 256, "a box has at most 256 rows"),
        (s.stages < 2, "one stage is filled while another is read: two at least"),
        (s.cluster not in CLUSTERS, f"clusters have {' or '.join(map(str, CLUSTERS))} blocks"),
    )
    for refused, reason in refusals:
        if refused:
            raise CodegenError(f"{s} cannot be generated: {reason}")
    if shared_layout(variant)[3] > MOST_SHARED_BYTES:
        raise CodegenError(f"{s} takes {shared_layout(variant)[3]} bytes of shared memory, of {MOST_SHARED_BYTES}")


def kernel(variant: Variant) -> tirx.PrimFunc:
    """The kernel as TIR that prints as CUDA over the functions of the prelude."""
    s, kind = variant.strategy, KINDS[variant.strategy.dtype]
    rows, columns, depth, stages, cluster = s.l1.m, s.l1.n, s.l1.k, s.stages, s.cluster
    consumers, blocks = rows // s.l0.m, s.l0.m // BLOCK_ROWS
    a_across, b_across = variant.transpose_a, not variant.transpose_b
    b_begin, outgoing, barriers, _ = shared_layout(variant)
    a_stage, b_stage = b_begin // stages, (outgoing - b_begin) // stages
    group_bytes = depth * ROW_BYTES  # across k: 64 elements of all rows of a tile
    step_bytes = (2 * PATTERN_BYTES if a_across else 32, 2 * PATTERN_BYTES if b_across else 32)
    steps = ROW_BYTES // 32
    per_block = columns // 2
    block_bytes = BLOCK_ROWS * ROW_BYTES
    split = register_split(blocks * per_block, consumers)
    share_out = split is not None
    fewer, more = (f"registers_fewer<{split[0]}>", f"registers_more<{split[1]}>") if split else ("", "")
    multiply = wgmma_name(columns, kind, (a_across, b_across))
    through_shared = s.store == "shared"
    settled = f"settled<{blocks * per_block}>"
    stage_pair = f"stage_{kind}"
    store_pair = f"store_pair_{'f32' if kind == 'tf32' else kind}"
    width = gcd(columns, ROW_BYTES // 2)  # columns of C that pass through one stage at a time

    def call(name: str, *arguments: Any) -> Any:
        return T.evaluate(T.call_extern("void", name, *arguments))

    def at(offset: Any) -> Any:
        return T.call_extern("uint32", "shared_at", offset)

    def matrix(offset: Any) -> Any:
        return T.call_extern("uint64", "matrix", offset, group_bytes, PATTERN_BYTES)

    def full(stage: Any) -> Any:
        return at(barriers + stage * BARRIER_BYTES)

    def empty(stage: Any) -> Any:
        return at(barriers + (stages + stage) * BARRIER_BYTES)

    def mine(box: Any, rank: Any) -> Any:
        return cluster == 1 or box % cluster == rank

    def row_of(tile: Any, tall: Any, wide: Any, high: Any, rank: Any) -> Any:
        above = T.call_extern("int32", "row_of_block", tile, tall, wide, high)
        return above * (cluster * rows) + rank * rows

    def column_of(tile: Any, tall: Any, wide: Any, high: Any) -> Any:
        return T.call_extern("int32", "column_of_block", tile, tall, wide, high) * columns

    def bring_b(b: Any, to: Any, along: Any, across: Any, barrier: Any) -> Any:
        where = (at(b_begin + to), T.address_of(b), along, across, barrier)
        if cluster == 1:
            return call("tensor_copy", *where)
        return call("tensor_copy_to_all", *where, (1 << cluster) - 1)

    share = columns // cluster
    arrive = "mbarrier_arrive" if cluster == 1 else f"mbarrier_arrive_in_all<{cluster}>"
    ready = "mbarriers_ready" if cluster == 1 else "mbarriers_ready_in_cluster"

    # fmt: off
    @T.prim_func
    def program(a: T.handle("tensormap"), b: T.handle("tensormap"), c: T.handle("float32"),  # type: ignore[valid-type]
                M: T.int32, N: T.int32,
                K: T.int32, ldc: T.int32, chunk: T.int32, raster: T.int32):
        block_x = T.launch_thread(
            "blockIdx.x", (M + cluster * rows - 1) // (cluster * rows) * ((N + columns - 1) // columns) * cluster
        )
        part = T.launch_thread("blockIdx.z", (K + chunk - 1) // chunk)
        thread = T.launch_thread("threadIdx.x", GROUP * (consumers + 1))
        tall: T.let[T.int32] = (M + cluster * rows - 1) // (cluster * rows)
        wide: T.let[T.int32] = (N + columns - 1) // columns
        rank = T.meta_var(block_x % cluster)
        high = T.meta_var(raster if cluster == 1 else T.max(raster // cluster, 1))
        first: T.let[T.int32] = block_x // cluster
        apart: T.let[T.int32] = T.call_extern("int32", "blocks_in_grid") // cluster
        turns: T.let[T.int32] = T.call_extern("int32", "turns_of_block", first, apart, tall * wide)
        origin: T.let[T.int32] = part * chunk
        # At least one tile: a part past the end of k is all zeros.
        tiles: T.let[T.int32] = T.max((T.min(chunk, K - origin) + depth - 1) // depth, 1)
        group: T.let[T.int32] = T.call_extern("int32", "warp_uniform", thread // GROUP)
        if thread == 0:
            for stage in T.serial(stages):
                call("mbarrier_init", full(stage), 1)
                call("mbarrier_init", empty(stage), consumers * WARPGROUP * cluster)
        call(ready)
        if group == consumers:
            if share_out:
                call(fewer)
            if thread == GROUP * consumers:
                call("prefetch_map", T.address_of(a))
                call("prefetch_map", T.address_of(b))
                for turn in T.serial(0, turns):
                    tile = T.meta_var(first + turn * apart)
                    row: T.let[T.int32] = row_of(tile, tall, wide, high, rank)
                    column: T.let[T.int32] = column_of(tile, tall, wide, high)
                    for t in T.serial(0, tiles):
                        use: T.let[T.int32] = turn * tiles + t
                        stage: T.let[T.int32] = use % stages
                        call("mbarrier_wait", empty(stage), use // stages % 2 ^ 1)
                        call("mbarrier_expect", full(stage), a_stage + b_stage)
                        if a_across:
                            for i in T.unroll(rows // BLOCK_ROWS):
                                call("tensor_copy", at(stage * a_stage + i * group_bytes), T.address_of(a),
                                     row + i * BLOCK_ROWS, origin + t * depth, full(stage))
                        else:
                            call("tensor_copy", at(stage * a_stage), T.address_of(a), origin + t * depth, row,
                                 full(stage))
                        if b_across:
                            for j in T.unroll((columns + BLOCK_ROWS - 1) // BLOCK_ROWS):
                                if mine(j, rank):
                                    bring_b(b, stage * b_stage + j * group_bytes, column + j * BLOCK_ROWS,
                                            origin + t * depth, full(stage))
                        else:
                            bring_b(b, stage * b_stage + rank * (share * ROW_BYTES), origin + t * depth,
                                    column + rank * share, full(stage))
                if cluster > 1:  # consumers of the other block arrive here: not after this one has ended
                    for left in T.serial(stages):
                        call("mbarrier_wait", empty((turns * tiles + left) % stages),
                             (turns * tiles + left) // stages % 2 ^ 1)
        else:
            if share_out:
                call(more)
            own: T.let[T.int32] = group * blocks * block_bytes
            # Of lane 4 r + q and sum 4 g + 2 h + v: row 16 warp + 8 h + r, column 8 g + 2 q + v.
            warp: T.let[T.int32] = thread % GROUP // WARP
            lane: T.let[T.int32] = thread % WARP
            partial: T.let[T.bool] = chunk < K
            sums = T.alloc_buffer((blocks * per_block,), "float32", scope="local")
            for turn in T.serial(0, turns):
                tile = T.meta_var(first + turn * apart)
                begin: T.let[T.int32] = turn * tiles
                call("mbarrier_wait", full(begin % stages), begin // stages % 2)
                call("wgmma_fence")
                for k in T.unroll(steps):
                    for i in T.unroll(blocks):
                        call(multiply, T.address_of(sums[i * per_block]),
                             matrix(begin % stages * a_stage + own + i * block_bytes + k * step_bytes[0]),
                             matrix(b_begin + begin % stages * b_stage + k * step_bytes[1]), T.Select(k == 0, 0, 1))
                call("wgmma_commit")
                for u in T.serial(0, tiles - 1):
                    use: T.let[T.int32] = begin + u + 1
                    stage: T.let[T.int32] = use % stages
                    call("mbarrier_wait", full(stage), use // stages % 2)
                    call("wgmma_fence")
                    for k in T.unroll(steps):
                        for i in T.unroll(blocks):
                            call(multiply, T.address_of(sums[i * per_block]),
                                 matrix(stage * a_stage + own + i * block_bytes + k * step_bytes[0]),
                                 matrix(b_begin + stage * b_stage + k * step_bytes[1]), 1)
                    call("wgmma_commit")
                    call("wgmma_wait<1>")
                    if lane == 0:
                        call(arrive, empty((begin + u) % stages))
                call("wgmma_wait<0>")
                call(settled, T.address_of(sums[0]))
                if lane == 0:
                    call(arrive, empty((begin + tiles - 1) % stages))
                row: T.let[T.int32] = row_of(tile, tall, wide, high, rank)
                column: T.let[T.int32] = column_of(tile, tall, wide, high)
                top: T.let[T.int32] = row + group * s.l0.m + warp * 16
                # Each warp has a place for 16 rows, `width` columns at a time.
                if through_shared and not partial:
                    for i in T.unroll(blocks):
                        for q in T.unroll(columns // width):
                            past = T.meta_var(q * width)
                            place = T.meta_var(outgoing + (group * WARPGROUP + warp) * OUTGOING_BYTES)
                            for g in T.unroll(width // 8):
                                for h in T.unroll(2):
                                    call(stage_pair, place, h * 8 + lane // 4, g * 8 + lane % 4 * 2,
                                         sums[i * per_block + (past // 8 + g) * 4 + h * 2],
                                         sums[i * per_block + (past // 8 + g) * 4 + h * 2 + 1])
                            call("__syncwarp")
                            for v in T.unroll(width // 16):
                                from_row = T.meta_var((lane + v * WARP) // (width // 8))
                                from_column = T.meta_var((lane + v * WARP) % (width // 8) * 8)
                                if top + i * BLOCK_ROWS + from_row < M and column + past + from_column < N:
                                    call("store_staged", c, top + i * BLOCK_ROWS + from_row, ldc,
                                         column + past + from_column, place, from_row, from_column)
                            call("__syncwarp")
                if not through_shared or partial:
                    for i in T.unroll(blocks):
                        for h in T.unroll(2):
                            if top + i * BLOCK_ROWS + h * 8 + lane // 4 < M:
                                for g in T.unroll(columns // 8):
                                    if column + g * 8 + lane % 4 * 2 < N:
                                        call(store_pair, c, partial, part, M, top + i * BLOCK_ROWS + h * 8 + lane // 4,
                                             ldc, column + g * 8 + lane % 4 * 2, sums[i * per_block + g * 4 + h * 2],
                                             sums[i * per_block + g * 4 + h * 2 + 1])
    # fmt: on
    return program


def source(variant: Variant, arch: str) -> KernelSource:
    """CUDA of a `tensor_core_hopper` variant."""
    check(variant)
    s = variant.strategy
    program = kernel(variant)
    text = printed(program.body, variant.name, list(program.params), cuda_target(arch))
    # Unrolled over the stages, the addresses of each would be more than the producer has registers for.
    text = text.replace(COPYING, f"#pragma unroll 1\n{COPYING}", 1)
    if s.cluster > 1:  # a part of the kernel, so that it is launched as any other
        text = text.replace(GLOBAL, f"{GLOBAL} __cluster_dims__({s.cluster}, 1, 1)", 1)
    called = functions(s.l1.n, KINDS[s.dtype], (variant.transpose_a, not variant.transpose_b))
    return KernelSource(variant.name, called + text, ARGS, (s.threads, 1, 1), shared_layout(variant)[3])
