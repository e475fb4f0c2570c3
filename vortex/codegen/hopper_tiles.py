"""What a block on Hopper multiplies, where it lies in shared memory, and how many registers are whose."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.dtypes import ITEM_BYTES
from vortex.errors import CodegenError
from vortex.gpu_candidates import BARRIER_BYTES, CLUSTERS, INSTRUCTION_ROWS, OUTGOING_BYTES, WARP, WARPGROUP, Variant

ROW_BYTES = 128
"""What the swizzle spans: one row of a tile in shared memory."""
PATTERN_BYTES = 8 * ROW_BYTES
GROUP = WARPGROUP * WARP
KINDS = {"float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32"}
REGISTERS_PER_SM = 65536
MOST_SHARED_BYTES = 232_448  # CUDA C++ Programming Guide, compute capability 9.0: 227 KiB per block
SPARE_REGISTERS = 40
"""What a consumer needs beside its accumulators."""
FEW_REGISTERS = 40
"""What the producer keeps: with fewer the addresses of its copies would spill. setmaxnreg allows 24."""


@dataclass(frozen=True)
class Product:
    """What instructions multiply: A by B, or turned B^T by A^T, of which C is the transpose."""

    rows: int
    """Of a block,"""
    group_rows: int
    """and of a warpgroup."""
    columns: int
    a_across: bool
    """Whether the left operand runs across k instead of along it; the right one."""
    b_across: bool


def product(variant: Variant) -> Product:
    s, a_across, b_across = variant.strategy, variant.transpose_a, not variant.transpose_b
    if s.is_turned:
        return Product(s.l1.n, s.l0.n, s.l1.m, b_across, a_across)
    return Product(s.l1.m, s.l0.m, s.l1.n, a_across, b_across)


def boxes(variant: Variant) -> tuple[tuple[int, int], tuple[int, int]]:
    """Boxes of the tensor maps of A and B, contiguous extent first: a row of 128 bytes, and how many of them."""
    s, tile = variant.strategy, variant.strategy.l1
    row = ROW_BYTES // ITEM_BYTES[s.dtype]
    share = tile.n // s.cluster if variant.transpose_b else tile.k
    return (row, tile.k if variant.transpose_a else tile.m), (row, share)


def operand_bytes(extent: int, depth: int, across: bool, item: int) -> int:
    """One tile of an operand in shared memory; across k it comes in whole rows of 64 elements."""
    return (-(-extent // INSTRUCTION_ROWS) * INSTRUCTION_ROWS if across else extent) * depth * item


def shared_layout(variant: Variant) -> tuple[int, int, int, int]:
    """Where the stages of B, the places of outgoing C and the barriers begin, and the end."""
    s, p = variant.strategy, product(variant)
    a = s.stages * operand_bytes(p.rows, s.l1.k, p.a_across, s.item_bytes)
    b = s.stages * operand_bytes(p.columns, s.l1.k, p.b_across, s.item_bytes)
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
    s, p = variant.strategy, product(variant)
    across, instruction = (
        p.a_across or p.b_across,
        (s.thread.n, s.thread.m) if s.is_turned else (s.thread.m, s.thread.n),
    )
    refusals = (
        (s.dtype not in KINDS, f"wgmma has no {s.dtype}"),
        (variant.vector_bytes != 16, "TMA needs rows on 16 bytes"),
        (s.l1.k * ITEM_BYTES[s.dtype] != ROW_BYTES, f"a stage is {ROW_BYTES} bytes deep"),
        (s.dtype == "tfloat32" and across, "wgmma reads TF32 along k alone"),
        (
            instruction[0] != INSTRUCTION_ROWS or p.group_rows % INSTRUCTION_ROWS != 0,
            f"instructions have {INSTRUCTION_ROWS} rows",
        ),
        (instruction[1] != p.columns, "a warpgroup takes all columns of the block"),
        (p.columns % 8 != 0 or not 8 <= p.columns <= 256, "8 to 256 columns, in steps of 8"),
        (p.rows > 256, "a box has at most 256 rows"),
        (s.stages < 2, "one stage is filled while another is read: two at least"),
        (s.cluster not in CLUSTERS, f"clusters have {' or '.join(map(str, CLUSTERS))} blocks"),
        (s.is_turned and (s.cluster > 1 or s.store == "shared"), "turned, blocks are alone and C leaves directly"),
        (s.is_turned and variant.transpose_a, "turned, A lies along k"),
    )
    for refused, reason in refusals:
        if refused:
            raise CodegenError(f"{s} cannot be generated: {reason}")
    if shared_layout(variant)[3] > MOST_SHARED_BYTES:
        raise CodegenError(f"{s} takes {shared_layout(variant)[3]} bytes of shared memory, of {MOST_SHARED_BYTES}")
