"""The micro-kernels that the rival methods search: tiles of fixed extents, each run by one task on one core.

A chain of the link table (register tile, step of k, load stage) computes a tile of any extents; with `rows` x `columns`
fixed it is what DietCode, MikPoly and Hidet call a micro-kernel. Which extents there are follows from the hardware
alone: rungs of the register tile whose CacheBuffer passes the sieve's bounds. Turned-over strategies and dot products
along k have no tile of C of fixed extents and are left to Vortex.
"""

import hashlib
import math
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from eval.link_table import every_strategy, hardware_of, widened
from vortex.candidates import WHOLE, Stage, Strategy, Tile
from vortex.launcher import GemmKernel
from vortex.library import read
from vortex.sieve import buffer_bytes

FLOAT_BYTES = 4
MOST_ROWS, MOST_COLUMNS = 512, 2048
RUNGS = (1, 2, 4, 8, 16, 32)
"""Multiples of the register tile that a micro-kernel may have along m and along n."""


@dataclass(frozen=True, order=True)
class MicroKernel:
    """`rows` x `columns` of C over all of k, by one task."""

    chain: Strategy
    rows: int
    columns: int

    def __str__(self) -> str:
        depth = "all" if self.chain.l1.k >= WHOLE else self.chain.l1.k
        return f"{self.rows}x{self.columns} of L0 {self.chain.l0.m}x{self.chain.l0.n}, k by {depth}, {self.chain.stage}"


def written(kernel: MicroKernel) -> list[Any]:
    """A micro-kernel as JSON can hold it; `read_kernel` reads it."""
    chain = kernel.chain
    return [asdict(chain.l0), asdict(chain.l1), asdict(chain.stage), kernel.rows, kernel.columns]


def read_kernel(value: Sequence[Any]) -> MicroKernel:
    """The micro-kernel that `written` wrote."""
    l0, l1, stage, rows, columns = value
    return MicroKernel(Strategy(Tile(**l0), Tile(**l1), Stage(**stage)), rows, columns)


@dataclass(frozen=True)
class Program:
    """A micro-kernel on one shape: all extents of C rounded up to whole tiles (local padding), or partitioned."""

    kernel: MicroKernel
    m: int
    n: int
    k: int
    partitioned: bool = False
    """Loop partitioning: tasks at the edges compute less than a whole tile, by the micro-kernels of residues."""

    @property
    def grid_m(self) -> int:
        return -(-self.m // self.kernel.rows)

    @property
    def grid_n(self) -> int:
        return -(-self.n // self.kernel.columns)

    @property
    def tasks(self) -> int:
        """P/M of DietCode, f_parallel of MikPoly."""
        return self.grid_m * self.grid_n

    @property
    def padded_m(self) -> int:
        return self.m if self.partitioned else self.grid_m * self.kernel.rows

    @property
    def padded_n(self) -> int:
        return self.n if self.partitioned else self.grid_n * self.kernel.columns

    @property
    def flops(self) -> int:
        """Of the shape, without padding."""
        return 2 * self.m * self.n * self.k

    @property
    def useful(self) -> float:
        """Share of the computed elements that the caller asked for."""
        return self.m * self.n / (self.padded_m * self.padded_n)

    def waves(self, cores: int) -> int:
        """f_wave: turns in which the cores work the tasks off (MikPoly Eq. 3)."""
        return -(-self.tasks // cores)

    def occupancy(self, cores: int) -> float:
        """Share of the cores' turns that have a task (DietCode section 4.2)."""
        return self.tasks / (self.waves(cores) * cores)


@dataclass(frozen=True)
class Space:
    """Every micro-kernel that the hardware allows; `fits` holds the same bounds that the sieve's L1 filter has."""

    chains: tuple[Strategy, ...]
    least_bytes: float
    most_bytes: float
    rungs: tuple[int, ...] = RUNGS

    def fits(self, kernel: MicroKernel) -> bool:
        stage, tile = kernel.chain.stage, Tile(kernel.rows, kernel.columns, kernel.chain.l1.k)
        if kernel.rows > MOST_ROWS or kernel.columns > MOST_COLUMNS:
            return False
        return self.least_bytes <= buffer_bytes(tile, stage, FLOAT_BYTES, 0) <= self.most_bytes

    @cached_property
    def kernels(self) -> tuple[MicroKernel, ...]:
        found = (
            MicroKernel(chain, chain.l0.m * tall, chain.l0.n * wide)
            for chain in self.chains
            for tall in self.rungs
            for wide in self.rungs
        )
        return tuple(kernel for kernel in found if self.fits(kernel))

    @cached_property
    def _chains(self) -> frozenset[Strategy]:
        return frozenset(self.chains)

    def has(self, kernel: MicroKernel) -> bool:
        tall, wide = kernel.rows / kernel.chain.l0.m, kernel.columns / kernel.chain.l0.n
        return kernel.chain in self._chains and tall in self.rungs and wide in self.rungs and self.fits(kernel)

    def mutated(self, kernel: MicroKernel, draw: random.Random) -> MicroKernel:
        """Another micro-kernel with one gene changed (register tile, extents, step of k, load stage) where one fits."""
        for _ in range(20):
            genes = _genes(kernel)
            other = _genes(draw.choice(self.kernels))
            at = draw.randrange(len(genes))
            changed = _from_genes((*genes[:at], other[at], *genes[at + 1 :]))
            if changed != kernel and self.has(changed):
                return changed
        return draw.choice(self.kernels)

    def crossed(self, one: MicroKernel, two: MicroKernel, draw: random.Random) -> MicroKernel:
        """Each gene from either parent; one parent where the mixture does not fit."""
        mixed = _from_genes(tuple(draw.choice(pair) for pair in zip(_genes(one), _genes(two), strict=True)))
        return mixed if self.has(mixed) else draw.choice((one, two))


Genes = tuple[Any, ...]


def _genes(kernel: MicroKernel) -> Genes:
    chain = kernel.chain
    return chain.l0, kernel.rows // chain.l0.m, kernel.columns // chain.l0.n, chain.l1.k, chain.stage


def _from_genes(genes: Genes) -> MicroKernel:
    l0, tall, wide, depth, stage = genes
    return MicroKernel(Strategy(l0, Tile(WHOLE, WHOLE, depth), stage), l0.m * tall, l0.n * wide)


@cache
def features(kernel: MicroKernel) -> list[float]:
    """What a learned cost sees of a micro-kernel: extents, the loops' lengths, bytes at each level, reuse."""
    l0, stage, rows, columns = kernel.chain.l0, kernel.chain.stage, kernel.rows, kernel.columns
    depth = min(kernel.chain.l1.k, 1 << 14)
    sizes = (l0.m, l0.n, rows, columns, depth, rows * depth, columns * depth, rows * columns)
    reuse = rows * columns / (rows + columns)
    flags = (stage.pack_a, stage.pack_b, stage.rows_first, kernel.chain.l1.k >= WHOLE)
    return [*(math.log2(size) for size in sizes), math.log2(reuse), l0.m * l0.n, *map(float, flags)]


def chains_of(strategies: Sequence[Strategy], transpose_b: bool) -> tuple[Strategy, ...]:
    """The distinct chains of register tile, step of k and load stage that can serve an unpacked B."""
    plain = [s for s in strategies if s.stage.tiled and not s.stage.swap]
    stages = [s for s in plain if s.stage.pack_b or not transpose_b]
    return tuple(dict.fromkeys(Strategy(s.l0, Tile(WHOLE, WHOLE, s.l1.k), s.stage) for s in stages))


def space_of(gemm: Any, transpose_b: bool, rungs: tuple[int, ...] = RUNGS) -> Space:
    """The micro-kernels of the device that a library was compiled for."""
    hardware = hardware_of(gemm)
    level = hardware.level("L1")
    memory = hardware.memory(level.memory)
    capacity = memory.capacity_bytes // memory.shared_by
    chains = chains_of(every_strategy(gemm), transpose_b)
    return Space(chains, level.min_utilization * capacity, level.max_utilization * capacity, rungs)


def kernels_library(gemm: Any) -> GemmKernel:
    """A library that runs any chain of the link table; kept beside other scratch of the evaluation once compiled."""
    chains = chains_of(every_strategy(gemm), transpose_b=False)
    about = f"{gemm.library.identity} {len(chains)} {chains[0]} {chains[-1]}"
    folder = Path(tempfile.gettempdir()) / f"vortex-eval-{os.getuid()}"
    target = folder / f"rivals-{hashlib.sha256(about.encode()).hexdigest()[:16]}.vortex"
    if not target.is_file():
        folder.mkdir(mode=0o700, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        widened(gemm, chains).save(partial)
        partial.replace(target)
    return GemmKernel(read(target))
