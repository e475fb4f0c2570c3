"""What is asked of a selector, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from vortex.candidates import Strategy
from vortex.dtypes import WordFormat

if TYPE_CHECKING:
    import numpy as np

FIELDS = 7
"""Of a region, in the order of the native door: row, column, rows, columns, strategy, grid."""


class OperandB(Enum):
    """How B reaches the call."""

    PLAIN = "plain"
    TRANSPOSED = "transposed"
    PACKED = "packed"


@dataclass(frozen=True)
class Shape:
    """All that the choice may depend on. Strides in elements, 0 for dense; `a_is_col` for a transposed A."""

    m: int
    n: int
    k: int
    b: OperandB = OperandB.PLAIN
    lda: int = 0
    a_is_col: bool = False
    ldb: int = 0
    batch: int = 1
    """Products of this shape in one call."""
    items_a: int = 0
    """How many A's they multiply, as many as there are products if 0; likewise `items_b`."""
    items_b: int = 0

    def in_words(self, words: WordFormat | None) -> Shape:
        """The same problem with k and the strides in 32-bit words of `words`."""
        if words is None:
            return self
        lda, ldb = (max(1, stride * words.item_bytes // 4) for stride in (self.stride_a, self.stride_b))
        return replace(self, k=-(-self.k // words.per_word), lda=lda, ldb=ldb)

    @property
    def stride_a(self) -> int:
        return self.lda or (self.m if self.a_is_col else self.k)

    @property
    def stride_b(self) -> int:
        return self.ldb or (self.k if self.b is OperandB.TRANSPOSED else self.n)


@dataclass(frozen=True)
class Grid:
    """How L2 cuts each product of a batch: grid.m x grid.n blocks of the output, each in grid.k parts of k."""

    m: int
    n: int
    k: int = 1

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" + (f", k in {self.k} parts" if self.k > 1 else "")


@dataclass(frozen=True)
class Family:
    """Strategies and grids whose results have the same bits: by the order in which they add products up."""

    dot: bool
    splits: int


@dataclass(frozen=True)
class Region:
    """A rectangle of the output with a strategy, by its index, and a grid of its own; `task` in seconds."""

    row: int
    column: int
    rows: int
    columns: int
    grid: Grid
    index: int
    task: np.float32


@dataclass(frozen=True)
class LaunchPlan:
    """What runs: a strategy of the library by its index, the grid, and how many threads share the tasks.

    A polymerized plan has regions; strategy and grid are then those of the first.
    """

    index: int
    strategy: Strategy
    grid: Grid
    seconds: float
    workers: int = 1
    regions: tuple[Region, ...] = ()
    pattern: str = ""
    """Of `regions.PATTERNS`."""


def grids(threads: int, splits: int = 1) -> tuple[Grid, ...]:
    """One block, then the factorizations of the thread count, tall to wide, and of half of it while that is even.

    Of a reduction in parts every block is as many tasks, so that fewer blocks are a task for each thread, where the
    parts divide them.
    """
    chosen = [Grid(1, 1, splits)]
    count = threads if threads % splits else threads // splits
    while count > 1:
        chosen += [Grid(count // n, n, splits) for n in range(1, count + 1) if count % n == 0]
        count //= 2
    return tuple(chosen)


def ways(batch: int, threads: int, splits: int = 1) -> tuple[tuple[Grid, int], ...]:
    """Every grid with the threads that share its tasks, in the order they are tried: one thread alone comes first.

    Parts of a reduction are there to be shared: they have no such first way.
    """
    whole, *cut = grids(threads, splits)
    alone = [(whole, 1)] if splits == 1 else []
    spread = [(whole, min(threads, batch * splits))] if splits > 1 or (batch > 1 and threads > 1) else []
    return (*alone, *spread, *((grid, min(threads, batch * grid.m * grid.n * splits)) for grid in cut))


def split_grids(cores: int) -> tuple[Grid, ...]:
    """As many tasks as cores, k in two parts or more: few parts first, blocks tall to wide."""
    factors = [count for count in range(1, cores + 1) if cores % count == 0]
    return tuple(
        Grid(cores // (parts * n), n, parts) for parts in factors[1:] for n in factors if cores % (parts * n) == 0
    )


def flat(regions: Sequence[Region]) -> list[int]:
    """Regions as the native door takes them."""
    return [x for r in regions for x in (r.row, r.column, r.rows, r.columns, r.index, r.grid.m, r.grid.n)]


def planned(plan: LaunchPlan) -> tuple[int, ...]:
    """What the native door is told of a plan, behind the operands."""
    if plan.regions:
        return len(plan.regions), *flat(plan.regions)
    return plan.index, plan.grid.m, plan.grid.n, plan.grid.k


def chosen(field: Callable[[int], int]) -> tuple[int, list[list[int]]]:
    """Pattern and regions of the native choice, as `regions.priced` takes them; `field` tells them one by one."""
    if not (count := field(0)):
        return 0, []
    found = [field(2 + place) for place in range(count * FIELDS)]
    return field(1), [found[at : at + FIELDS] for at in range(0, len(found), FIELDS)]
