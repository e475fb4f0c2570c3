"""What a hardware spec may say, and how its figures must agree.

A spec is one TOML file per device (`hwspecs/`), in base SI integers with the unit in the field name. A figure that can
be derived from others is given all the same, as a second witness: a file whose two sides disagree is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from vortex.cache import digest
from vortex.dtypes import SOUGHT, WORDS, WordFormat
from vortex.errors import NoInstructionError, SpecError
from vortex.figures import (
    BytesPerSecond,
    CacheBytes,
    CacheCount,
    Count,
    Figures,
    Flops,
    Fraction,
    Hertz,
    LineBytes,
    Name,
    Nanoseconds,
    nearest,
    readable,
    refusal,
)
from vortex.instruction import Instruction as Instruction

TOLERANCE = 0.02
"""How far a figure may lie from the one that others give, for those that a datasheet rounds."""


class Memory(Figures):
    """One place that operands are read from: a cache, or DRAM, which has only a name and the two bandwidths."""

    name: Name
    """The word by which levels refer to it: `l1`, `l2`, `l3`, `dram`."""
    capacity_bytes: CacheBytes = 0
    """Bytes that one instance holds."""
    line_bytes: LineBytes = 0
    """Bytes of one cache line: the least that moves."""
    ways: CacheCount = 0
    """Associativity: how many lines that collide in a set are kept."""
    sets: CacheCount = 0
    """Sets of one instance; sets x ways x line must be the capacity."""
    bandwidth_bytes_per_s: BytesPerSecond
    """Bytes per second that one core alone reads from it in a stream."""
    total_bandwidth_bytes_per_s: BytesPerSecond
    """Bytes per second that all cores of the device read from it together; of a private cache, cores x one."""
    shared_by: CacheCount = 0
    """Cores that share one instance."""

    @property
    def is_cache(self) -> bool:
        return self.capacity_bytes > 0

    @model_validator(mode="after")
    def _agree(self) -> Self:
        cache = ("capacity_bytes", "line_bytes", "ways", "sets", "shared_by")
        if len({getattr(self, field) > 0 for field in cache}) > 1:
            given = ", ".join(f"{field} = {getattr(self, field)}" for field in cache)
            raise refusal(given, "all five (a cache) or none of them (DRAM)", "look them up in the same source")
        product = self.sets * self.ways * self.line_bytes
        if product != self.capacity_bytes:
            ratio = product / self.capacity_bytes
            hint = {1024: " (is the capacity in KiB?)", 1048576: " (is the capacity in MiB?)"}.get(round(ratio), "")
            raise refusal(
                f"capacity_bytes = {self.capacity_bytes}{hint}",
                f"sets x ways x line_bytes = {self.sets} x {self.ways} x {self.line_bytes} = {product}",
                "one of the four figures is wrong",
            )
        return self


class Level(Figures):
    """One rung of the decomposition: where its tile lives, what works in parallel there, how its cost is known."""

    name: Literal["L0", "L1", "L2"]
    """`L0` is the register tile, `L1` the cache tile, `L2` the whole device."""
    memory: Name
    """The memory that its operands come from and, at L1, whose capacity bounds the tile."""
    units: Count
    """What works in parallel at this level: 1, or the cores at the outermost level."""
    analysis: Literal["empirical", "analytical"]
    """`empirical`: candidates are measured where the device is at hand. `analytical`: the cost model ranks them."""
    min_utilization: Fraction = 0.0
    """Least share of the capacity (at L0: of the register file) that a candidate may use. L2 has none to give."""
    max_utilization: Fraction = 1.0
    """Largest share of the capacity (at L0: of the register file) that a candidate may use. L2 has none to give."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.min_utilization < self.max_utilization:
            given = f"min_utilization = {self.min_utilization}, max_utilization = {self.max_utilization}"
            raise refusal(given, "0 <= min_utilization < max_utilization <= 1", "they are fractions, not percent")
        return self


Row = TypeVar("Row", Memory, Level)


class HardwareSpec(Figures):
    """One device, as the compiler sees it."""

    name: Name
    """The word that `hw=` takes; a file carries the same name."""
    llvm_cpu: Name
    """What LLVM calls this processor (`-mcpu`)."""
    cores: Count
    """Physical cores of the device (all sockets) that a library may use."""
    clock_hz: Hertz
    """Core clock that is sustained while all cores issue vector multiply-adds; not the boost clock."""
    peak_flops_per_s: Flops
    """Multiply and add operations per second of the whole device; must be cores x issue x lanes x 2 x clock."""
    page_bytes: CacheBytes = 0
    """Bytes for which a core keeps one translation of addresses: of a page, or of the host's where those are smaller.
    0: what it keeps spans every operand, or what it does not keep it looks up behind its arithmetic."""
    kept_pages: CacheCount = 0
    """Translations that a core keeps: of more pages, each that it comes back to is looked up anew."""
    thread_start_ns: Nanoseconds
    """Time to hand a task to a thread that waits for one, and to learn that it is done."""
    instructions: tuple[Instruction, ...] = Field(min_length=1)
    """The multiply-add instructions; the widest one of a dtype is used."""
    memories: tuple[Memory, ...] = Field(min_length=3)
    """Caches and DRAM, from the inside out."""
    levels: tuple[Level, ...] = Field(min_length=3, max_length=3)
    """L0, L1 and L2."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.page_bytes > 0) != (self.kept_pages > 0):
            given = f"page_bytes = {self.page_bytes}, kept_pages = {self.kept_pages}"
            raise refusal(given, "both or neither", "leave both out where pages are huge")
        _check_names(self)
        _check_memories(self)
        _check_peak(self)
        _check_levels(self)
        return self

    def memory(self, name: str) -> Memory:
        """The memory of that name."""
        return _named("memory", self.memories, name)

    def level(self, name: str) -> Level:
        """The level of that name."""
        return _named("level", self.levels, name)

    def instruction(self, dtype: str) -> Instruction:
        """The widest instruction for `dtype`; tiles of several rows are wider than vectors."""
        fitting = [i for i in self.instructions if i.dtype == dtype]
        if not fitting:
            known = sorted({i.dtype for i in self.instructions})
            raise NoInstructionError(
                f"{self.name}: no instruction for {dtype!r} ({SOUGHT.get(dtype, 'none that CPUs have')}); "
                f"the spec has instructions for {known}; cast the operands, or name a device that has it"
            )
        return max(fitting, key=lambda i: i.rows * i.lanes)

    def multiplier(self, dtype: str) -> Instruction:
        """The instruction that products of `dtype` are built on: its own, or that of float32 for what is widened."""
        own = any(i.dtype == dtype for i in self.instructions)
        return self.instruction(dtype if own or f"{dtype} widened" not in WORDS else "float32")

    def by_vectors(self, dtype: str) -> Instruction | None:
        """What multiplies `dtype` by vectors, beside the tiles that it may have; None where nothing does."""
        kind = self.multiplier(dtype).dtype
        vectors = (i for i in self.instructions if i.dtype == kind and not i.tiles)
        return max(vectors, key=lambda i: i.lanes, default=None)

    def words(self, dtype: str) -> WordFormat | None:
        """How elements of `dtype` reach that instruction; None as they are."""
        isa = self.multiplier(dtype)
        if isa.dtype != dtype:
            return WORDS.get(f"{dtype} widened")
        return WORDS.get(f"{dtype} tiles" if isa.tiles else dtype)

    def without_tiles(self) -> HardwareSpec:
        """The same device with vector instructions alone: those that weights are widened by."""
        return self.model_copy(update={"instructions": tuple(i for i in self.instructions if not i.tiles)})

    @property
    def features(self) -> frozenset[str]:
        """Every CPU flag that a library for this device needs."""
        return frozenset(flag for i in self.instructions for flag in i.features)

    def summary(self) -> str:
        return f"{self.cores} cores, {self.llvm_cpu}, {self.peak_flops_per_s / 1e9:.0f} GFLOP/s"

    def fingerprint(self) -> str:
        """A hash of every figure: the same for equal specs, whatever file they came from."""
        return digest(self.model_dump(mode="json"))


def _named(kind: str, rows: tuple[Row, ...], name: str) -> Row:
    for row in rows:
        if row.name == name:
            return row
    raise SpecError(f"no {kind} named {name!r}; the spec has {[row.name for row in rows]}")


def _check_names(spec: HardwareSpec) -> None:
    for kind, rows in (("instructions", spec.instructions), ("memories", spec.memories), ("levels", spec.levels)):
        names = [row.name for row in rows]
        if len(set(names)) < len(names):
            raise refusal(f"{kind} named {names}", "a different name for each", "rename or remove the repeated one")


def _check_peak(spec: HardwareSpec) -> None:
    widest = spec.instruction("float32")
    computed = spec.cores * widest.flops_per_cycle * spec.clock_hz
    if abs(spec.peak_flops_per_s - computed) > TOLERANCE * computed:
        factors = f"{spec.cores} x {widest.issue_per_cycle} x {widest.lanes} x 2 x {spec.clock_hz}"
        expected = f"within {TOLERANCE:.0%} of cores x issue x lanes x 2 x clock = {factors} = {computed}"
        remedy = f"the sides differ by a factor of {spec.peak_flops_per_s / computed:.3g}: find which figure is wrong"
        raise refusal(f"peak_flops_per_s = {spec.peak_flops_per_s}", expected, remedy)


def _check_memories(spec: HardwareSpec) -> None:
    *caches, last = spec.memories
    if last.is_cache or not all(cache.is_cache for cache in caches):
        given = ", ".join(f"{m.name} of {m.capacity_bytes} bytes" for m in spec.memories)
        expected = "caches from the inside out, then one memory without capacity, line, ways, sets or shared_by"
        raise refusal(given, expected, "reorder them, or give the last one only its bandwidths")
    for inner, outer in pairwise(caches):
        if inner.capacity_bytes >= outer.capacity_bytes:
            given = f"{inner.name} of {inner.capacity_bytes} bytes before {outer.name} of {outer.capacity_bytes} bytes"
            raise refusal(given, "caches that grow from the inside out", "reorder them, or mend a capacity")
        if inner.shared_by > outer.shared_by:
            given = f"{inner.name} shared by {inner.shared_by} cores inside {outer.name} shared by {outer.shared_by}"
            raise refusal(given, "no fewer cores the further out", "mend a shared_by")
    for memory in spec.memories:
        if memory.shared_by > spec.cores:
            given = f"{memory.name}.shared_by = {memory.shared_by}"
            raise refusal(given, f"at most cores = {spec.cores}", "count the cores that share one instance")
        _check_bandwidths(memory, spec.cores)
    inner = caches[0]
    for instruction in spec.instructions:
        if instruction.vector_bytes > inner.line_bytes:
            given = f"{instruction.name} with lanes = {instruction.lanes} ({instruction.vector_bytes} bytes)"
            expected = f"at most a line of {inner.name}: {inner.line_bytes} bytes"
            raise refusal(given, expected, "lanes counts elements of one register, not bits or bytes")


def _check_bandwidths(memory: Memory, cores: int) -> None:
    one, total = memory.bandwidth_bytes_per_s, memory.total_bandwidth_bytes_per_s
    most = f"cores x bandwidth_bytes_per_s = {cores} x {one} = {cores * one}"
    if memory.shared_by == 1 and abs(total - cores * one) > TOLERANCE * cores * one:
        expected = f"of a private cache, within {TOLERANCE:.0%} of {most}"
    elif not one <= total <= (1 + TOLERANCE * (memory.shared_by == 1)) * cores * one:
        expected = f"between bandwidth_bytes_per_s = {one} and {most}"
    else:
        return
    given = f"{memory.name}.total_bandwidth_bytes_per_s = {total}"
    raise refusal(given, expected, "the total is of all cores of the device together")


def _check_levels(spec: HardwareSpec) -> None:
    order = [memory.name for memory in spec.memories]
    for position, level in enumerate(spec.levels):
        if level.name != f"L{position}":
            raise refusal([row.name for row in spec.levels], "L0, L1, L2 in that order", "reorder the levels")
        if level.memory not in order:
            near = nearest(level.memory, order)
            raise refusal(f"{level.name}.memory = {level.memory!r}", f"one of {order}", f"did you mean {near!r}?")
    _, middle, outer = spec.levels
    places = [order.index(level.memory) for level in spec.levels]
    if places[0] != 0 or places[2] != len(order) - 1 or places[1] not in range(1, places[2]):
        given = f"levels in {[level.memory for level in spec.levels]}"
        raise refusal(given, f"the first, one between, and the last of {order}", "mend a level's memory")
    units = [level.units for level in spec.levels]
    if units != [1, 1, spec.cores]:
        given = f"units of L0, L1, L2 = {units}"
        raise refusal(given, f"[1, 1, cores] = [1, 1, {spec.cores}]", "only the outermost level runs in parallel")
    if (outer.min_utilization, outer.max_utilization) != (0.0, 1.0):
        given = f"L2 with min_utilization = {outer.min_utilization}, max_utilization = {outer.max_utilization}"
        raise refusal(given, "neither: it has no tile, it takes the whole shape", "leave both out")
    if outer.analysis != "analytical":
        raise refusal(f"L2.analysis = {outer.analysis!r}", "'analytical'", "its shape is known only at run time")
    for isa in spec.instructions:
        _check_register_tile(isa, spec.levels[0])
    registers = max(i.registers * i.vector_bytes for i in spec.instructions)
    room = int(spec.memory(middle.memory).capacity_bytes * middle.max_utilization)
    if room < registers:
        given = f"L1 may use {room} bytes of {middle.memory} (max_utilization = {middle.max_utilization})"
        expected = f"room for the tile below it, which can fill the register file: {registers} bytes"
        raise refusal(given, expected, "raise max_utilization, or mend the capacity")


def _check_register_tile(isa: Instruction, level: Level) -> None:
    """The least tile of L0 has one row: accumulators, the vector that stays, the one that streams through, a mask."""
    others, what = 2 + isa.mask_registers, "operands and a lane mask" if isa.mask_registers else "operands"
    least = max(isa.in_flight, level.min_utilization * isa.registers) + others
    if least > isa.registers * level.max_utilization:
        raise refusal(
            f"{isa.name} with {isa.registers} registers, of which L0 may use {level.max_utilization:.0%}",
            f"{least:.0f} at least: issue x latency = {isa.issue_per_cycle} x {isa.latency_cycles} accumulators that "
            f"keep the unit busy, L0.min_utilization = {level.min_utilization}, and {others} for {what}",
            "mend the figure that is wrong, or the utilization of L0",
        )


def spec_from(data: Mapping[str, Any], source: str) -> HardwareSpec:
    """A validated spec from plain data; `source` names it in error messages."""
    try:
        return HardwareSpec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError(readable(HardwareSpec, error, source, data)) from error
