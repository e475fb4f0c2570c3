"""Which candidates become kernels: a finite library that no candidate left out would beat by more than a tolerance.

The modelled shape domain is sampled, every candidate is priced on every sample (Eq. 1 over a domain instead of a tile),
and candidates are taken until each sample has one within the tolerance of the best of all. Dominated candidates never
are. How many stay follows from how different the shapes are, and how far the model's own figures may be trusted: each
sample is priced again with the figures that vendors do not tell changed, and must be served there as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from vortex.arithmetic import F32, ArrayArithmetic
from vortex.candidates import Admitted
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_cost import options
from vortex.gpu_figures import GpuProblem
from vortex.gpu_profiler import block_costs, measurements, rates, recording
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, Layout, columns_of
from vortex.gpu_sieve import SKINNY_LINES, instruction_of, registers_needed, sieve
from vortex.operators import Conv2d, Operator
from vortex.specs import what_if

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuSpec
    from vortex.rkernel import RKernel

Prices = npt.NDArray[np.float32]
"""Predicted seconds, a row per shape and a column per kernel."""

SAMPLES = 224
BASES = (2, 3, 5)
"""Of the three Halton sequences: evenly spread, and the same in every build."""
TOLERANCE = 0.06
"""What the library may lose to the best candidate on any sample."""
NARROW = {16: 1.0, 8: 5.0, 4: 6.0, 2: 8.0, 1: 12.0}
"""How much more it may lose by alignment class: narrow ones are rare, and their loads weigh more than the tile."""
ELEMENTS = 1 << 16
"""Of an array of prices that is worked on at once: what stays in a core's cache."""
DOUBT = 2.0
"""Tolerances that a kernel without a measurement must gain over those that have one: so far may it be off itself."""
TIE = 0.002
"""Mean costs closer than this are equal: the model does not tell them apart."""
COPIES, BYTE_COPIES = 24, 32
"""Pieces of a stage that a thread may copy: kernels with 44 and more were found to spill, with 32 and fewer not.

The second where a piece is a byte: with fewer, no kernel for Tensor Cores would be left.
"""
PAIRED = 64
"""Bytes that rows of k of a stage are multiples of, where pairs of bytes are turned over (cuda_fragments.Spread)."""
SECOND = 4.0
"""How much more a backend may lose that is not the fastest one for the operands: it serves few of the shapes."""


@dataclass(frozen=True)
class Variety:
    """The kernels of one backend, and the counts of the sieve and of this selection."""

    variants: tuple[Variant, ...]
    admitted: tuple[Admitted, ...]


def halton(index: int, base: int) -> float:
    """Element of the van der Corput sequence of a base: digits mirrored behind the point."""
    value, share = 0.0, 1.0
    while index:
        share /= base
        index, digit = divmod(index, base)
        value += digit * share
    return value


def domain(spec: GpuSpec, item_bytes: int, backend: Backend) -> npt.NDArray[np.float32]:
    """Shapes (m, n, k), evenly spread over the logarithms of their extents, up to squares that fill the device's DRAM.

    Of the skinny family, shapes with few rows and shapes with few columns in turn.
    """
    points = np.array([[halton(index, base) for base in BASES] for index in range(1, SAMPLES + 1)])
    capacity = spec.memory("dram").capacity_bytes
    longest = np.full(points.shape, math.log(capacity / (3 * item_bytes)) / 2)
    if backend is Backend.SKINNY:
        longest[np.arange(SAMPLES), np.arange(SAMPLES) % 2] = math.log(max(SKINNY_LINES))
    return np.rint(np.exp(points * longest)).astype(np.float32)


def doubts(spec: GpuSpec) -> tuple[GpuSpec, ...]:
    """The device as told, and with the figures changed that rest on estimates or on one paper's measurement."""
    l2, dram, shared = (spec.memory(name) for name in ("l2", "dram", "shared"))
    changes: tuple[dict[str, int], ...] = (
        {"l2.bytes_per_cycle": l2.bytes_per_cycle // 2},
        {"shared.bytes_per_cycle": shared.bytes_per_cycle // 2},
        {"l2.latency_ns": 2 * l2.latency_ns, "dram.latency_ns": 2 * dram.latency_ns},
    )
    return (spec, *(what_if(spec, change) for change in changes))


def prices(spec: GpuSpec, variants: Sequence[Variant], shapes: npt.NDArray[np.float32]) -> Prices:
    """Predicted seconds of every kernel for every shape, the reduction cut as suits each best."""
    registers = {variant.name: registers_needed(spec, variant.strategy) for variant in variants}
    columns, device = columns_of(block_costs(spec, variants, registers_of=registers)), rates(spec)
    ops, blocks = ArrayArithmetic(), []
    for start in range(0, len(shapes), height := max(1, ELEMENTS // len(variants))):
        m, n, k = np.split(shapes[start : start + height], 3, axis=1)
        problem = GpuProblem(m, n, k, F32(2.0**20), F32(1), F32(1))
        totals = [cost.total for _, cost in options(ops, device, columns, problem)]
        blocks.append(np.min(np.broadcast_arrays(*totals), axis=0))
    return np.concatenate(blocks)


def cover(
    priced: Prices, tolerance: float, known: npt.NDArray[np.bool_] | Literal[False] = False
) -> tuple[list[int], int]:
    """Columns such that each row has one within the tolerance of its least, and how many are that near anywhere.

    Greedily, most rows first, of equals the first column; then those are dropped whose rows all have another by now.
    `known` columns come first, and where one of them is as near as DOUBT tolerances no other is taken for a row.
    """
    ratio = priced / priced.min(axis=1, keepdims=True)
    near = ratio <= 1 + tolerance
    fair = near | (known & (ratio <= 1 + DOUBT * tolerance))
    chosen: list[int] = []
    left = np.ones(len(priced), bool)
    for columns in (known, True):
        while (served := near[left].sum(axis=0) * columns).any():
            best = np.flatnonzero(served == served.max())
            mean = ratio[:, best].mean(axis=0)
            chosen.append(int(best[mean <= mean.min() * (1 + TIE)][0]))
            left &= ~near[:, chosen[-1]]
        left &= ~fair[:, chosen].any(axis=1)
    serving = np.where(near[:, chosen].any(axis=1, keepdims=True), near, fair)
    for column in tuple(chosen):
        others = [other for other in chosen if other != column]
        if others and serving[:, others].any(axis=1).all():
            chosen = others
    return sorted(chosen), int(near.any(axis=0).sum())


def serves(strategy: BlockStrategy, layout: Layout) -> bool:
    """Whether a strategy suits operands given like that.

    The skinny family reads along the contiguous axis of the long operand. wgmma takes 4-byte operands along k alone;
    few rows of A, given across k, would come in boxes of 64.
    """
    if strategy.backend is Backend.SKINNY:
        if strategy.l0.k > strategy.thread.k:
            return layout.transpose_b or not layout.transpose_a
        return layout.transpose_a if strategy.l0.m > strategy.thread.m else not layout.transpose_b
    if strategy.backend is Backend.TENSOR_CORE and strategy.item_bytes == 1:
        return pairs_divide(strategy, layout)
    if strategy.backend is Backend.HOPPER and strategy.item_bytes == 4:
        return layout.transpose_b and not layout.transpose_a
    if strategy.is_turned:
        return not layout.transpose_a
    return True


def pairs_divide(strategy: BlockStrategy, layout: Layout) -> bool:
    """Whether rows of k of an operand of bytes are long enough for a swizzle in which no two of a fragment meet."""
    turned = ((layout.transpose_a, strategy.l1.m), (not layout.transpose_b, strategy.l1.n))
    return all(extent % PAIRED == 0 for is_paired, extent in turned if is_paired)


def copies_fit(strategy: BlockStrategy, vector_bytes: int) -> bool:
    """Whether a thread has registers for the addresses and elements of all it copies of one stage."""
    return Variant(strategy, False, False, vector_bytes).copies <= (BYTE_COPIES if vector_bytes == 1 else COPIES)


def layouts(operator: Operator) -> tuple[Layout, ...]:
    """How the operands of an operator may be given: both of a convolution have their channels, its k, contiguous."""
    return (Layout(False, True),) if isinstance(operator, Conv2d) else LAYOUTS


def squareness(strategy: BlockStrategy) -> tuple[float, ...]:
    """How far from square thread, warp and block tiles are: of equals, squares read the least."""
    return tuple(round(abs(math.log2(t.m / t.n)), 3) for t in (strategy.l1, strategy.l0, strategy.thread))


def alignments(item_bytes: int, backend: Backend) -> tuple[int, ...]:
    """Alignment classes that exist for elements of a size, the widest first; TMA knows one."""
    return ALIGNMENTS[:1] if backend is Backend.HOPPER else tuple(a for a in ALIGNMENTS if a >= item_bytes)


def tolerance(rkernel: RKernel[GpuSpec], backend: Backend, vector_bytes: int) -> float:
    """What a backend may lose to its own best candidate, with rows aligned like that."""
    spec, dtype = rkernel.hardware, rkernel.operator.dtype
    by_tma = vector_bytes == ALIGNMENTS[0]
    fastest = max(
        row.flops_per_cycle_per_sm
        for row in spec.instructions
        if row.dtype == dtype and (by_tma or row.kind != "wgmma")
    )
    first = instruction_of(spec, backend, dtype).flops_per_cycle_per_sm == fastest and backend is not Backend.SKINNY
    return NARROW[vector_bytes] * (TOLERANCE if first else TOLERANCE * SECOND)


def choose(rkernel: RKernel[GpuSpec], backend: Backend) -> Variety:
    """The kernels of one backend, for each layout of the operands and each alignment class on its own.

    Those that were measured on the device before others: what they take is known.
    """
    spec, item = rkernel.hardware, rkernel.operator.item_bytes
    sieved, profile = sieve(rkernel, backend), recording(spec)
    strategies = sorted(sieved.strategies, key=lambda strategy: (squareness(strategy), strategy))
    shapes, devices = domain(spec, item, backend), doubts(spec)
    variants: list[Variant] = []
    undominated = 0
    for size in alignments(item, backend):
        done: dict[tuple[BlockStrategy, ...], tuple[BlockStrategy, ...]] = {}
        for layout in layouts(rkernel.operator):
            fitting = tuple(s for s in strategies if serves(s, layout) and copies_fit(s, size))
            if fitting and fitting not in done:
                rows = [Variant(s, *layout, size) for s in fitting]
                priced = np.concatenate([prices(device, rows, shapes) for device in devices])
                measured = measurements(profile, rows)
                known = np.array([row.name in measured for row in rows])
                columns, near = cover(priced, tolerance(rkernel, backend, size), known)
                done[fitting] = tuple(fitting[column] for column in columns)
                undominated = max(undominated, near if size == ALIGNMENTS[0] else 0)
            variants += [Variant(s, *layout, size) for s in done.get(fitting, ())]
    counts = (
        Admitted(f"{backend} library", "FilterByDominance", undominated),
        Admitted(f"{backend} library", "FilterByVariety", len({variant.strategy for variant in variants})),
        Admitted(f"{backend} library", "Variants", len(variants)),
    )
    return Variety(tuple(sorted(variants)), (*sieved.admitted, *counts))
