"""An instruction that the innermost level of a CPU is built from, as a hardware spec tells of it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from vortex.dtypes import ITEM_BYTES
from vortex.figures import Count, Cycles, Figures, Name, refusal


class Instruction(Figures):
    """The fused multiply-add, or the dot product, that the innermost level is built from."""

    name: Name
    """The instruction and its register, for people: `vfmadd231ps-zmm`."""
    dtype: Literal["float32", "bfloat16", "int8"]
    """The element type of its operands; bfloat16 and int8 are dot products of the two or four neighbours in a word."""
    lanes: Count
    """Accumulators of one vector register, of 32 bits each: 16 for AVX-512, 8 for AVX2."""
    registers: Count
    """Architectural vector registers: what a register tile, its operands included, must fit in."""
    issue_per_cycle: Count
    """Instructions of this kind that one core starts in a cycle."""
    rows: Count = 1
    """Rows of accumulators in one register: 1 for vectors, 16 for the tiles of AMX."""
    depth: Count = 1
    """Words along k that one instruction takes: 1 for vectors, 16 for the tiles of AMX."""
    cycles: Count = 1
    """Cycles in which `issue_per_cycle` of them start: 1 for most vectors, 16 for the tiles of AMX."""
    latency_cycles: Cycles
    """Cycles until a result can be used: issue x latency independent accumulators keep the unit busy."""
    features: tuple[Name, ...] = Field(min_length=1)
    """CPU flags that code built for this instruction needs, spelled as `/proc/cpuinfo` spells them."""

    @property
    def vector_bytes(self) -> int:
        return self.lanes * 4

    @property
    def flops_per_cycle(self) -> int:
        operations = self.rows * self.lanes * self.depth * (4 // ITEM_BYTES[self.dtype]) * 2
        return self.issue_per_cycle * operations // self.cycles

    @property
    def tiles(self) -> bool:
        """Whether its registers are tiles of several rows."""
        return self.rows > 1

    @property
    def in_flight(self) -> float:
        """Independent accumulators that keep its unit busy."""
        return self.issue_per_cycle * self.latency_cycles / self.cycles

    @property
    def least_accumulators(self) -> float:
        """The same, and of tiles half the registers: fewer load more tiles for each product than L1 can give."""
        return max(self.in_flight, self.registers / 2 if self.tiles else 0.0)

    @property
    def mask_registers(self) -> int:
        """Vector registers that a lane mask takes: AVX-512 has others for masks, and AMX masks nothing."""
        return int(not self.tiles and not any(flag.startswith("avx512") for flag in self.features))

    def tall(self, rows: int) -> int:
        """Registers that hold `rows` rows of accumulators."""
        return -(-rows // self.rows)

    def step_cycles(self, rows: int, vectors: int) -> float:
        """Cycles in which a register tile of `rows` x `vectors` vectors takes one word of k, were it never held up."""
        return self.tall(rows) * vectors * self.cycles / (self.issue_per_cycle * self.depth)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.lanes & (self.lanes - 1):
            raise refusal(f"lanes = {self.lanes}", "a power of two", "count elements of one register, not bits")
        if self.registers < 4:
            expected = "at least 4: an accumulator, two operands and one spare"
            raise refusal(f"registers = {self.registers}", expected, "count the architectural vector registers")
        tiled = (self.rows, self.depth, self.lanes) == (16, 16, 16) and self.dtype != "float32"
        if (self.rows, self.depth) != (1, 1) and not tiled:
            given = f"rows = {self.rows}, depth = {self.depth}, lanes = {self.lanes}, dtype = {self.dtype!r}"
            expected = "rows and depth of 1 (vectors), or 16 rows, depth and lanes of bfloat16 or int8 (tiles of AMX)"
            raise refusal(given, expected, "leave rows and depth out for a vector instruction")
        return self
