"""What the spec of an NVIDIA GPU may say, and how its figures must agree.

The same kind of file as for CPUs, marked `kind = "gpu"`: base SI integers, a source beside each, and second witnesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from vortex.cache import digest
from vortex.dtypes import ITEM_BYTES
from vortex.errors import SpecError
from vortex.figures import (
    BytesPerSecond,
    CacheBytes,
    Count,
    Figures,
    Flops,
    Hertz,
    Name,
    Nanoseconds,
    Quantity,
    readable,
    refusal,
)
from vortex.hardware import TOLERANCE, Level

WARP = 32
"""Threads of a warp, on every NVIDIA GPU."""
CP_ASYNC, FULL_RATE, TMA = 80, 86, 90
"""The architectures from which on shared memory can be filled past the registers, a scheduler has 32 lanes of float32
(16 before), and shared memory can be filled by one thread for all."""

Dtype = Literal["float32", "tfloat32", "float16", "bfloat16", "int8"]
Kind = Literal["fma", "mma", "wgmma"]
Pipeline = Annotated[int, Quantity("clock cycles", 1, 1000, "give cycles, not nanoseconds")]
PerCycle = Annotated[int, Quantity("flop per cycle", 2, 2**20, "count a multiply-add as two, of one SM in one cycle")]
BytesPerCycle = Annotated[int, Quantity("bytes per cycle", 1, 2**20, "give bytes of one instance in one cycle")]
Architecture = Annotated[str, StringConstraints(pattern=r"^sm_[0-9]{2,3}a?$")]
Flag = Annotated[bool, Field(strict=True)]


class GpuInstruction(Figures):
    """A multiply-add that the innermost level can be built from, with float32 accumulators."""

    name: Name
    """The instruction as PTX spells it, for people: `mma.m16n8k16.f16`."""
    kind: Kind
    """`fma` of one thread on a CUDA core; `mma` of a warp or `wgmma` of a warpgroup on a Tensor Core."""
    dtype: Dtype
    """The element type of A and B."""
    m: Count
    """Rows of C that one instruction computes; 1 of an fma."""
    n: Count
    """Columns of C that one instruction computes; 1 of an fma, and of wgmma the most (any multiple of 8 up to it)."""
    k: Count
    """Products that one instruction adds to each element; 1 of an fma."""
    flops_per_cycle_per_sm: PerCycle
    """Multiply and add operations of one SM in one cycle, by this instruction alone."""
    clock_hz: Hertz
    """The clock that the datasheet's peak of this instruction is given at."""
    peak_flops_per_s: Flops
    """The datasheet's peak of the whole device; must be SMs x flops_per_cycle_per_sm x clock_hz."""
    latency_cycles: Pipeline
    """Cycles until the result can be accumulated on: what independent instructions have to cover."""

    @property
    def flops(self) -> int:
        """Operations of one instruction of a warp (of wgmma: of a warpgroup)."""
        return 2 * self.m * self.n * self.k * (WARP if self.kind == "fma" else 1)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        shape = f"{self.m}x{self.n}x{self.k}"
        depth = self.k * ITEM_BYTES[self.dtype]
        expected, right = {
            "fma": ("1x1x1 in float32", (self.m, self.n, self.k, self.dtype) == (1, 1, 1, "float32")),
            "mma": ("16x8 with 16 or 32 bytes of k", (self.m, self.n) == (16, 8) and depth in (16, 32)),
            "wgmma": (
                "64 rows, a multiple of 8 columns up to 256, 32 bytes of k",
                self.m == 64 and self.n % 8 == 0 and self.n <= 256 and depth == 32,
            ),
        }[self.kind]
        if not right or (self.kind != "fma" and self.dtype == "float32"):
            given = f"{self.kind} of {shape} on {self.dtype}"
            raise refusal(given, f"{expected}; float32 on CUDA cores only", "see the matrix shapes of the PTX manual")
        return self


class GpuMemory(Figures):
    """One place that operands are read from: shared memory of an SM, the L2 of the device, or its DRAM."""

    name: Literal["shared", "l2", "dram"]
    """The word by which levels refer to it."""
    capacity_bytes: CacheBytes
    """Bytes that one instance holds."""
    instances: Count
    """How many there are: the SMs for shared memory, else 1."""
    bytes_per_cycle: BytesPerCycle
    """Bytes that one instance delivers in a cycle of its clock."""
    clock_hz: Hertz
    """The clock that counts those bytes: of the SMs, or of the memory."""
    bandwidth_bytes_per_s: BytesPerSecond
    """Bytes per second of all instances together; must be instances x bytes_per_cycle x clock_hz."""
    latency_ns: Nanoseconds
    """Time from asking for a line to having it, with nothing else under way."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        computed = self.instances * self.bytes_per_cycle * self.clock_hz
        if abs(self.bandwidth_bytes_per_s - computed) > TOLERANCE * computed:
            factors = f"{self.instances} x {self.bytes_per_cycle} x {self.clock_hz}"
            raise refusal(
                f"bandwidth_bytes_per_s = {self.bandwidth_bytes_per_s}",
                f"within {TOLERANCE:.0%} of instances x bytes_per_cycle x clock_hz = {factors} = {computed}",
                f"the sides differ by a factor of {self.bandwidth_bytes_per_s / computed:.3g}: find the wrong figure",
            )
        return self


class GpuSpec(Figures):
    """One NVIDIA GPU, as the compiler sees it."""

    name: Name
    """The word that `hw=` takes; a file carries the same name."""
    kind: Literal["gpu"]
    """What tells this file from the spec of a CPU."""
    arch: Architecture
    """The architecture that machine code is made for: `sm_80`."""
    sms: Count
    """Streaming multiprocessors of the device."""
    clock_hz: Hertz
    """The highest clock of the SMs that the datasheet promises; instructions may have to be content with less."""
    registers_per_sm: Count
    """32-bit registers of an SM."""
    registers_per_thread: Count
    """The most that one thread can have."""
    shared_per_block_bytes: CacheBytes
    """Shared memory that one block may ask for; what an SM has beyond it is taken once per block."""
    threads_per_sm: Count
    """Threads that an SM holds at a time; must be 32 x warps_per_sm."""
    warps_per_sm: Count
    """Warps that an SM holds at a time."""
    threads_per_block: Count
    """Threads that one block may have."""
    blocks_per_sm: Count
    """Blocks that an SM holds at a time."""
    async_copy: Flag
    """Whether cp.async fills shared memory past the registers (sm_80 and later)."""
    tma: Flag
    """Whether one thread can ask for a whole tile, and warpgroups multiply from shared memory (sm_90)."""
    launch_ns: Nanoseconds
    """What a kernel takes that does nothing: from one kernel's end to the next one's."""
    instructions: tuple[GpuInstruction, ...] = Field(min_length=1)
    """The multiply-adds of this device."""
    memories: tuple[GpuMemory, ...] = Field(min_length=3, max_length=3)
    """Shared memory, L2 and DRAM, from the inside out."""
    levels: tuple[Level, ...] = Field(min_length=3, max_length=3)
    """L0, the warp; L1, the thread block; L2, the grid."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _check_names(self)
        _check_limits(self)
        _check_instructions(self)
        _check_memories(self)
        _check_levels(self)
        return self

    def memory(self, name: str) -> GpuMemory:
        """The memory of that name."""
        return {memory.name: memory for memory in self.memories}[name]  # type: ignore[index]

    def level(self, name: str) -> Level:
        """The level of that name."""
        return {level.name: level for level in self.levels}[name]  # type: ignore[index]

    def has(self, kind: str, dtype: str) -> bool:
        """Whether there is an instruction of that kind for operands of that type."""
        return any((row.kind, row.dtype) == (kind, dtype) for row in self.instructions)

    def instruction(self, kind: str, dtype: str) -> GpuInstruction:
        """The fastest instruction of that kind for operands of that type."""
        fitting = [row for row in self.instructions if (row.kind, row.dtype) == (kind, dtype)]
        if not fitting:
            known = ", ".join(row.name for row in self.instructions)
            raise SpecError(f"{self.name}: no {kind} instruction for {dtype}; the spec has {known}")
        return max(fitting, key=lambda row: (row.flops_per_cycle_per_sm, row.k))

    @property
    def schedulers(self) -> int:
        """Warps of one SM that issue in the same cycle: what works in parallel at L0."""
        return self.level("L0").units

    @property
    def shared_reserved_bytes(self) -> int:
        """Shared memory that the system takes of every block."""
        return self.memory("shared").capacity_bytes - self.shared_per_block_bytes

    def summary(self) -> str:
        peak = max(row.peak_flops_per_s for row in self.instructions if row.dtype != "int8")
        return f"{self.sms} SMs, {self.arch}, {peak / 1e12:.0f} TFLOP/s"

    def fingerprint(self) -> str:
        """A hash of every figure: the same for equal specs, whatever file they came from."""
        return digest(self.model_dump(mode="json"))


def _check_names(spec: GpuSpec) -> None:
    names = [row.name for row in spec.instructions]
    if len(set(names)) < len(names):
        raise refusal(f"instructions named {names}", "a different name for each", "rename or remove the repeated one")
    if [row.name for row in spec.memories] != ["shared", "l2", "dram"]:
        raise refusal([row.name for row in spec.memories], "shared, l2, dram in that order", "reorder the memories")
    if [row.name for row in spec.levels] != ["L0", "L1", "L2"]:
        raise refusal([row.name for row in spec.levels], "L0, L1, L2 in that order", "reorder the levels")


def _check_limits(spec: GpuSpec) -> None:
    if spec.threads_per_sm != WARP * spec.warps_per_sm:
        expected = f"32 x warps_per_sm = 32 x {spec.warps_per_sm} = {WARP * spec.warps_per_sm}"
        raise refusal(f"threads_per_sm = {spec.threads_per_sm}", expected, "one of the two figures is wrong")
    if not WARP <= spec.threads_per_block <= spec.threads_per_sm:
        given = f"threads_per_block = {spec.threads_per_block}"
        raise refusal(
            given, f"between 32 and threads_per_sm = {spec.threads_per_sm}", "look it up for this architecture"
        )
    if spec.blocks_per_sm > spec.warps_per_sm:
        given = f"blocks_per_sm = {spec.blocks_per_sm}"
        raise refusal(given, f"at most warps_per_sm = {spec.warps_per_sm}", "a block has a warp at least")
    if not 16 <= spec.registers_per_thread <= 255:
        raise refusal(f"registers_per_thread = {spec.registers_per_thread}", "between 16 and 255", "count registers")
    if spec.registers_per_sm < spec.threads_per_sm * 16:
        expected = f"16 a thread at least: {16 * spec.threads_per_sm} for threads_per_sm = {spec.threads_per_sm}"
        raise refusal(f"registers_per_sm = {spec.registers_per_sm}", expected, "count registers, not bytes or KiB")
    generation = int(spec.arch.removeprefix("sm_").removesuffix("a"))
    for field, first in (("async_copy", CP_ASYNC), ("tma", TMA)):
        if getattr(spec, field) != (generation >= first):
            given, expected = f"{field} = {getattr(spec, field)} with arch = {spec.arch}", f"true from sm_{first} on"
            raise refusal(given, expected, "mend the flag or the architecture")


def _check_instructions(spec: GpuSpec) -> None:
    if not spec.has("fma", "float32"):
        given = ", ".join(row.name for row in spec.instructions)
        raise refusal(given, "an fma for float32 among them", "every GPU has CUDA cores: add their multiply-add")
    for row in spec.instructions:
        computed = spec.sms * row.flops_per_cycle_per_sm * row.clock_hz
        if abs(row.peak_flops_per_s - computed) > TOLERANCE * computed:
            factors = f"{spec.sms} x {row.flops_per_cycle_per_sm} x {row.clock_hz}"
            raise refusal(
                f"{row.name}.peak_flops_per_s = {row.peak_flops_per_s}",
                f"within {TOLERANCE:.0%} of SMs x flops_per_cycle_per_sm x clock_hz = {factors} = {computed}",
                f"the sides differ by a factor of {row.peak_flops_per_s / computed:.3g}: find which figure is wrong",
            )
        if row.clock_hz > spec.clock_hz:
            given = f"{row.name}.clock_hz = {row.clock_hz}"
            raise refusal(given, f"at most the device's clock_hz = {spec.clock_hz}", "one of the two clocks is wrong")
        if row.kind == "wgmma" and not spec.tma:
            raise refusal(f"{row.name} with arch = {spec.arch}", "wgmma from sm_90 on", "remove the instruction")


def _check_memories(spec: GpuSpec) -> None:
    shared, l2, _ = spec.memories
    if (shared.instances, shared.clock_hz) != (spec.sms, spec.clock_hz):
        given = f"shared.instances = {shared.instances}, shared.clock_hz = {shared.clock_hz}"
        raise refusal(given, f"sms = {spec.sms}, clock_hz = {spec.clock_hz}", "shared memory belongs to an SM")
    if not shared.capacity_bytes // 2 < spec.shared_per_block_bytes <= shared.capacity_bytes:
        given = f"shared_per_block_bytes = {spec.shared_per_block_bytes}"
        expected = f"more than half and at most all of shared.capacity_bytes = {shared.capacity_bytes}"
        raise refusal(given, expected, "give what a block may opt in to, not the 48 KiB that it has unasked")
    for inner, outer in pairwise(spec.memories):
        inside, outside = inner.instances * inner.capacity_bytes, outer.instances * outer.capacity_bytes
        if outer.name == "dram" and inside >= outside:
            given = f"{inner.name} of {inside} bytes in all before {outer.name} of {outside}"
            raise refusal(given, "more bytes in DRAM", "mend a capacity")
        if inner.bandwidth_bytes_per_s <= outer.bandwidth_bytes_per_s:
            given = f"{inner.name} of {inner.bandwidth_bytes_per_s} bytes/s inside {outer.name} of "
            expected = "less bandwidth the further out"
            raise refusal(f"{given}{outer.bandwidth_bytes_per_s}", expected, "mend a bandwidth")
        if inner.latency_ns >= outer.latency_ns:
            given = f"{inner.name} of {inner.latency_ns} ns inside {outer.name} of {outer.latency_ns} ns"
            raise refusal(given, "more latency the further out", "mend a latency")
    if l2.instances != 1 or spec.memory("dram").instances != 1:
        given = f"l2.instances = {l2.instances}, dram.instances = {spec.memory('dram').instances}"
        raise refusal(given, "1 of each", "give the figures of the whole device")


def _check_levels(spec: GpuSpec) -> None:
    l0, l1, l2 = spec.levels
    if [level.memory for level in spec.levels] != ["shared", "shared", "dram"]:
        given = f"levels in {[level.memory for level in spec.levels]}"
        expected = "shared (L0 reads from it), shared (it bounds the tile of L1), dram"
        raise refusal(given, expected, "mend a level's memory")
    if (l1.units, l2.units) != (1, spec.sms):
        given = f"units of L1, L2 = {l1.units}, {l2.units}"
        raise refusal(given, f"1 and sms = {spec.sms}", "blocks of one SM share its units; SMs work in parallel")
    fma = spec.instruction("fma", "float32")
    if fma.flops_per_cycle_per_sm % (2 * l0.units):
        given = f"L0.units = {l0.units}"
        expected = f"a divisor of the {fma.flops_per_cycle_per_sm // 2} CUDA cores that {fma.name} speaks of"
        raise refusal(given, expected, "count the warp schedulers of an SM")
    if (l2.min_utilization, l2.max_utilization, l2.analysis) != (0.0, 1.0, "analytical"):
        given = f"L2 with utilization {l2.min_utilization} to {l2.max_utilization}, {l2.analysis}"
        raise refusal(given, "no utilization, and analytical", "its shape is known only at run time")


def gpu_spec_from(data: Mapping[str, Any], source: str) -> GpuSpec:
    """A validated spec from plain data; `source` names it in error messages."""
    try:
        return GpuSpec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError(readable(GpuSpec, error, source, data)) from error
