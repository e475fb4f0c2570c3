"""Candidates of GPUs: warp tiles, block tiles that are multiples of them, and kernels for a layout of operands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vortex.candidates import Tile
from vortex.dtypes import ITEM_BYTES

WARP = 32
"""Threads of a warp, on every NVIDIA GPU."""
WARPGROUP = 4
"""Warps that issue one wgmma together."""
INSTRUCTION_ROWS = 64
"""Rows of a wgmma, one warpgroup."""
SWIZZLED = 64
"""Columns of B that TMA brings together where B is given by rows."""
BARRIER_BYTES = 8
OUTGOING_BYTES = 2048
"""Of a warp on Hopper: 16 rows of 64 halves of C on their way out."""
CLUSTERS = (1, 2)
"""Blocks of a cluster on Hopper. Two of 128 x 256 draw two thirds of what they do alone from L2 (of square tiles three
quarters); four would draw half, and are not generated."""


class Backend(str, Enum):  # noqa: UP042  # a library is also opened by Python 3.10, which has no StrEnum
    """What computes, and in which form: each is one code generator."""

    CUDA_CORE = "cuda_core"
    TENSOR_CORE = "tensor_core"
    HOPPER = "tensor_core_hopper"
    SKINNY = "skinny"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class BlockStrategy:
    """A chain of candidates on a GPU: the instruction's shape, the warp's tile, the block's tile, and how C leaves."""

    backend: Backend
    dtype: str
    """Of A and B: float32, tfloat32, float16, bfloat16 or int8. C is float32 for the first two, int32 for the last one,
    else of the same type, unless an epilogue says otherwise."""
    l0: Tile
    """What one warp (HOPPER: one warpgroup) holds in registers; k is what it computes between two reads of operands.

    In the skinny family lanes lie along the axis on which l0 is 32 times `thread`: along k if that is the contiguous
    axis of the long operand, else along its other axis. Warps of a block lie along l1 / l0, k included.
    """
    l1: Tile
    """What one thread block computes; k is the depth of one shared-memory stage. Multiples of l0."""
    thread: Tile
    """The instruction's shape, or on CUDA cores the tile of one thread: (tm, tn, 1), skinny also several of k."""
    stages: int
    """Stages in shared memory; 1 is a single buffer filled without cp.async."""
    store: str = "direct"
    """`direct` from registers to C, or through `shared` memory."""
    cluster: int = 1
    """HOPPER: blocks below one another that run at the same time and have the same columns of B, of which each brings
    its share to all of them."""

    @property
    def grid_tile(self) -> Tile:
        """What the blocks of a cluster compute together."""
        return Tile(self.l1.m * self.cluster, self.l1.n, self.l1.k)

    @property
    def is_turned(self) -> bool:
        """HOPPER: whether the 64 rows of an instruction are columns of C: B^T A^T is computed, for few rows of A."""
        return self.backend is Backend.HOPPER and self.thread.m < INSTRUCTION_ROWS

    @property
    def computing_warps(self) -> int:
        """Warps that multiply; in the skinny family they also share the depth of a stage."""
        side_by_side = (self.l1.m // self.l0.m) * (self.l1.n // self.l0.n)
        if self.backend is Backend.HOPPER:
            return WARPGROUP * side_by_side
        return side_by_side * (self.l1.k // self.l0.k if self.backend is Backend.SKINNY else 1)

    @property
    def warps(self) -> int:
        """All warps of a block: on Hopper one more warpgroup only asks for operands."""
        return self.computing_warps + (WARPGROUP if self.backend is Backend.HOPPER else 0)

    @property
    def threads(self) -> int:
        return WARP * self.warps

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a block tile of A and one of B; the skinny family streams to registers."""
        if self.backend is Backend.SKINNY:
            return 0
        return (self.l1.m + self.l1.n) * self.l1.k * self.item_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: its stages, or what warps that share a depth add up in, or C on its way out."""
        staged = self.stages * self.stage_bytes
        if self.backend is Backend.HOPPER:  # B may come in whole rows of 64 columns; two barriers a stage
            wide = -self.l1.n % SWIZZLED
            staged += self.stages * (wide * self.l1.k * self.item_bytes + 2 * BARRIER_BYTES)
            return staged + (self.computing_warps * OUTGOING_BYTES if self.store == "shared" else 0)
        tile = 4 * self.l1.m * self.l1.n  # in float32: partial sums leave the same way
        if self.backend is Backend.SKINNY:
            return tile * (self.l1.k // self.l0.k) if self.l1.k > self.l0.k else 0
        return max(staged, tile) if self.store == "shared" else staged

    @property
    def accumulators(self) -> int:
        """Float32 accumulators of one thread that multiplies."""
        if self.backend is Backend.SKINNY:
            return self.thread.m * self.thread.n
        return self.l0.m * self.l0.n // (WARP * (WARPGROUP if self.backend is Backend.HOPPER else 1))

    def __str__(self) -> str:
        l0, l1, t = self.l0, self.l1, self.thread
        return (
            f"{self.backend.value} {self.dtype}: instruction {t.m}x{t.n}x{t.k}, L0 {l0.m}x{l0.n}x{l0.k}, "
            f"L1 {l1.m}x{l1.n}x{l1.k}, {self.stages} stages, store {self.store}"
            f"{f', clusters of {self.cluster}' if self.cluster > 1 else ''}"
        )


SHORT = {
    Backend.CUDA_CORE: "cc",
    Backend.TENSOR_CORE: "tc",
    Backend.HOPPER: "hp",
    Backend.SKINNY: "sk",
    "float32": "f32",
    "tfloat32": "tf32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "s8",
}


@dataclass(frozen=True, order=True)
class Variant:
    """One kernel: a strategy for one layout of the operands and one alignment class."""

    strategy: BlockStrategy
    transpose_a: bool
    """A is given as [k, m]."""
    transpose_b: bool
    """B is given as [n, k]."""
    vector_bytes: int
    """16, 8, 4, 2 or 1: every row of A, B and C starts on a multiple of it, and rows are multiples of it long."""

    @property
    def copies(self) -> int:
        """Pieces of a stage that one thread copies to shared memory, skinny to registers; on Hopper TMA copies."""
        strategy, thread = self.strategy, self.strategy.thread
        if strategy.backend is Backend.HOPPER:
            return 0
        if strategy.backend is Backend.SKINNY:
            return -(-(thread.m + thread.n) * thread.k * strategy.item_bytes // self.vector_bytes)
        return -(-strategy.stage_bytes // (strategy.threads * self.vector_bytes))

    @property
    def name(self) -> str:
        """A C identifier, unique and the same in every build."""
        s = self.strategy
        layout = ("t" if self.transpose_a else "n") + ("t" if self.transpose_b else "n")
        return (
            f"{SHORT[s.backend]}_{SHORT[s.dtype]}_{s.l1.m}x{s.l1.n}x{s.l1.k}_l0_{s.l0.m}x{s.l0.n}x{s.l0.k}"
            f"_t{s.thread.m}x{s.thread.n}x{s.thread.k}_s{s.stages}{'_sh' if s.store == 'shared' else ''}"
            f"{f'_c{s.cluster}' if s.cluster > 1 else ''}"
            f"_{layout}_v{self.vector_bytes}"
        )
