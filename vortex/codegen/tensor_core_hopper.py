"""GEMM on the Tensor Cores of sm_90a: one thread asks for tiles by TMA, one or two warpgroups multiply them by wgmma.

Every stage of shared memory has two barriers: `full` counts the bytes of its tiles, `empty` the warps that have done
with them. Products of one tile run while the next is waited for; a stage is free when the product after it was issued
and its own has ended. The first tile is peeled: it clears the accumulators inside the instruction, because ptxas
serializes products whose accumulators ordinary instructions have written.

Blocks of a cluster are below one another and multiply by the same columns of B. Each asks for its share of them, which
TMA brings to all: a stage is free where the consumers of all blocks have done with it, and is there when all shares
are. No block ends before the others have done with its memory: it waits until all its stages are free.

Few rows of A are multiplied turned: 64 columns of C are the rows of an instruction, and B, which is most of what is
loaded, fills them.

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
from vortex.codegen.hopper_tiles import (
    GROUP,
    KINDS,
    PATTERN_BYTES,
    ROW_BYTES,
    check,
    product,
    register_split,
    shared_layout,
)
from vortex.gpu_candidates import BARRIER_BYTES, INSTRUCTION_ROWS, OUTGOING_BYTES, WARP, WARPGROUP, Variant

ARGS = ("@A", "@B", "*C", "M", "N", "K", "ldc", "chunk", "raster")
TURNED = {"@A": "@B", "@B": "@A", "M": "N", "N": "M"}
GLOBAL = "__global__ void"
COPYING = "for (int _t = 0;"


def kernel(variant: Variant) -> tirx.PrimFunc:
    """The kernel as TIR that prints as CUDA over the functions of the prelude."""
    s, kind = variant.strategy, KINDS[variant.strategy.dtype]
    p, depth, stages, cluster, is_turned = product(variant), s.l1.k, s.stages, s.cluster, s.is_turned
    rows, columns, a_across, b_across = p.rows, p.columns, p.a_across, p.b_across
    consumers, blocks = rows // p.group_rows, p.group_rows // INSTRUCTION_ROWS
    b_begin, outgoing, barriers, _ = shared_layout(variant)
    a_stage, b_stage = b_begin // stages, (outgoing - b_begin) // stages
    group_bytes = depth * ROW_BYTES  # across k: 64 elements of all rows of a tile
    step_bytes = (2 * PATTERN_BYTES if a_across else 32, 2 * PATTERN_BYTES if b_across else 32)
    steps = ROW_BYTES // 32
    per_block = columns // 2
    block_bytes = INSTRUCTION_ROWS * ROW_BYTES
    split = register_split(blocks * per_block, consumers)
    share_out = split is not None
    fewer, more = (f"registers_fewer<{split[0]}>", f"registers_more<{split[1]}>") if split else ("", "")
    multiply = wgmma_name(columns, kind, (a_across, b_across))
    through_shared = s.store == "shared"
    settled = f"settled<{blocks * per_block}>"
    stage_pair = f"stage_{kind}"
    stored = "f32" if kind == "tf32" else kind
    store_pair, store_one = f"store_pair_{stored}", f"store_{stored}_1"
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
        above = T.call_extern("int32", "row_of_tile", tile, tall, wide, high)
        return above * (cluster * rows) + rank * rows

    def column_of(tile: Any, tall: Any, wide: Any, high: Any) -> Any:
        return T.call_extern("int32", "column_of_tile", tile, tall, wide, high) * columns

    def bring_b(b: Any, to: Any, along: Any, across: Any, barrier: Any) -> Any:
        where = (at(b_begin + to), T.address_of(b), along, across, barrier)
        if cluster == 1:
            return call("tensor_copy", *where)
        return call("tensor_copy_to_all", *where, (1 << cluster) - 1)

    share = columns // cluster
    divisors = sum(1 << count for count in range(1, stages + 1) if stages % count == 0)
    arrive = "mbarrier_arrive" if cluster == 1 else f"mbarrier_arrive_in_all<{cluster}>"
    ready = "mbarriers_ready" if cluster == 1 else "mbarriers_ready_in_cluster"

    # fmt: off
    @T.inline
    def pass_stage(ring: Any) -> None:
        """To the next stage of the ring, and after the last to the first in its other phase."""
        ring[1] = ring[1] ^ T.Select(ring[0] == stages - 1, 1, 0)
        ring[0] = T.Select(ring[0] == stages - 1, 0, ring[0] + 1)

    @T.inline
    def multiply_stage(ring: Any, sums: Any, own: Any, clears: bool) -> None:
        """Begins the products of a stage once it is there."""
        call("mbarrier_wait", full(ring[0]), ring[1])
        call("wgmma_fence")
        for k in T.unroll(steps):
            for i in T.unroll(blocks):
                call(multiply, T.address_of(sums[i * per_block]),
                     matrix(ring[0] * a_stage + own + i * block_bytes + k * step_bytes[0]),
                     matrix(b_begin + ring[0] * b_stage + k * step_bytes[1]), T.Select(k == 0, 0, 1) if clears else 1)
        call("wgmma_commit")

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
        origin: T.let[T.int32] = part * chunk
        # At least one tile: a part past the end of k is all zeros.
        tiles: T.let[T.int32] = T.max((T.min(chunk, K - origin) + depth - 1) // depth, 1)
        group: T.let[T.int32] = T.call_extern("int32", "warp_uniform", thread // GROUP)
        if thread == 0:
            call("prefetch_map", T.address_of(a))
            call("prefetch_map", T.address_of(b))
            for stage in T.serial(stages):
                call("mbarrier_init", full(stage), 1)
                call("mbarrier_init", empty(stage), consumers * WARPGROUP * cluster)
        call(ready)
        if group == consumers:
            if share_out:
                call(fewer)
            if T.call_extern("int32", "warp_uniform", thread % GROUP // WARP) == 0:
                # All lanes of a warp count, so that what is counted is uniform; one of them asks.
                asks: T.let[T.bool] = T.call_extern("bool", "elected")
                # The stage, the phase that leaves it free, k; the bytes that fill a stage, and that do once all stages
                # have been filled; the tile, and stages filled before it.
                ring = T.alloc_buffer((7,), "int32", scope="local")
                ring[0] = 0
                ring[1] = 1
                # Where tiles share one operand alone, each block begins at a k of its own: in step, all would ask for
                # the same rows of that one, and of the other for pieces as far apart as its rows, from few channels.
                ring[2] = origin + T.if_then_else(
                    tall == 1 or wide == 1, T.call_extern("int32", "spread", first, tiles), 0
                ) * depth
                # What a stage has of B it has for good where every tile has the same columns, all their k.
                ring[4] = a_stage + T.Select(wide == 1 and divisors >> T.min(tiles, 31) & 1 == 1, 0, b_stage)
                ring[5] = first
                ring[6] = 0
                while ring[5] < tall * wide:
                    row: T.let[T.int32] = row_of(ring[5], tall, wide, high, rank)
                    column: T.let[T.int32] = column_of(ring[5], tall, wide, high)
                    ring[3] = T.Select(ring[6] < stages, a_stage + b_stage, ring[4])
                    for _t in T.serial(0, tiles):
                        call("mbarrier_wait", empty(ring[0]), ring[1])
                        if asks:
                            call("mbarrier_expect", full(ring[0]), ring[3])
                            if a_across:
                                for i in T.unroll(rows // INSTRUCTION_ROWS):
                                    call("tensor_copy", at(ring[0] * a_stage + i * group_bytes), T.address_of(a),
                                         row + i * INSTRUCTION_ROWS, ring[2], full(ring[0]))
                            else:
                                call("tensor_copy", at(ring[0] * a_stage), T.address_of(a), ring[2], row, full(ring[0]))
                            if ring[3] > a_stage:
                                if b_across:
                                    for j in T.unroll((columns + INSTRUCTION_ROWS - 1) // INSTRUCTION_ROWS):
                                        if mine(j, rank):
                                            bring_b(b, ring[0] * b_stage + j * group_bytes,
                                                    column + j * INSTRUCTION_ROWS, ring[2], full(ring[0]))
                                else:
                                    bring_b(b, ring[0] * b_stage + rank * (share * ROW_BYTES), ring[2],
                                            column + rank * share, full(ring[0]))
                        ring[2] = T.Select(ring[2] + depth < origin + tiles * depth, ring[2] + depth, origin)
                        pass_stage(ring)
                    ring[6] = T.min(ring[6] + tiles, stages)
                    ring[5] = ring[5] + apart
                if cluster > 1:  # consumers of the other block arrive here: not after this one has ended
                    for _left in T.serial(stages):
                        call("mbarrier_wait", empty(ring[0]), ring[1])
                        pass_stage(ring)
        else:
            if share_out:
                call(more)
            own: T.let[T.int32] = group * blocks * block_bytes
            # Of lane 4 r + q and sum 4 g + 2 h + v: row 16 warp + 8 h + r, column 8 g + 2 q + v.
            warp: T.let[T.int32] = thread % GROUP // WARP
            lane: T.let[T.int32] = thread % WARP
            partial: T.let[T.bool] = chunk < K
            sums = T.alloc_buffer((blocks * per_block,), "float32", scope="local")
            # The stage, the phase that fills it, the stage before; the tile.
            ring = T.alloc_buffer((4,), "int32", scope="local")
            ring[0] = 0
            ring[1] = 0
            ring[3] = first
            while ring[3] < tall * wide:
                # Found while the first tile of k is on its way: a shuffle is not put off until they are used.
                row: T.let[T.int32] = T.call_extern(
                    "int32", "warp_uniform", row_of(ring[3], tall, wide, high, rank)
                )
                column: T.let[T.int32] = T.call_extern(
                    "int32", "warp_uniform", column_of(ring[3], tall, wide, high)
                )
                multiply_stage(ring, sums, own, True)
                for _u in T.serial(0, tiles - 1):
                    ring[2] = ring[0]
                    pass_stage(ring)
                    multiply_stage(ring, sums, own, False)
                    call("wgmma_wait<1>")
                    if lane == 0:
                        call(arrive, empty(ring[2]))
                call("wgmma_wait<0>")
                call(settled, T.address_of(sums[0]))
                if lane == 0:
                    call(arrive, empty(ring[0]))
                pass_stage(ring)
                top: T.let[T.int32] = row + group * p.group_rows + warp * 16
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
                                if top + i * INSTRUCTION_ROWS + from_row < M and column + past + from_column < N:
                                    call("store_staged", c, top + i * INSTRUCTION_ROWS + from_row, ldc,
                                         column + past + from_column, place, from_row, from_column)
                            call("__syncwarp")
                if is_turned:
                    for i in T.unroll(blocks):
                        for g in T.unroll(columns // 8):
                            for h in T.unroll(2):
                                for v in T.unroll(2):
                                    at_row = T.meta_var(top + i * INSTRUCTION_ROWS + h * 8 + lane // 4)
                                    at_column = T.meta_var(column + g * 8 + lane % 4 * 2 + v)
                                    if at_row < M and at_column < N:
                                        call(store_one, c, partial, part, N, at_column, ldc, at_row,
                                             T.address_of(sums[i * per_block + g * 4 + h * 2 + v]))
                elif not through_shared or partial:
                    for i in T.unroll(blocks):
                        for h in T.unroll(2):
                            if top + i * INSTRUCTION_ROWS + h * 8 + lane // 4 < M:
                                for g in T.unroll(columns // 8):
                                    if column + g * 8 + lane % 4 * 2 < N:
                                        call(store_pair, c, partial, part, M,
                                             top + i * INSTRUCTION_ROWS + h * 8 + lane // 4, ldc,
                                             column + g * 8 + lane % 4 * 2, sums[i * per_block + g * 4 + h * 2],
                                             sums[i * per_block + g * 4 + h * 2 + 1])
                ring[3] = ring[3] + apart
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
    p = product(variant)
    called = functions(p.columns, KINDS[s.dtype], (p.a_across, p.b_across))
    args = tuple(TURNED.get(name, name) for name in ARGS) if s.is_turned else ARGS
    return KernelSource(variant.name, called + text, args, (s.threads, 1, 1), shared_layout(variant)[3])
