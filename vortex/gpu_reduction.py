"""Reductions on a GPU: the tile of a block, what a sweep over the operand is predicted to take, and which are chosen.

As `selector` for products: pure Python over plain data. All of it depends on the view alone, never on an address, so
that a shape's sums are added up in one order. A sweep is bound by memory, and a step of a wave of blocks asks for a few
vectors a thread:

    step  = longest + leak * second of latency, lines of an SM, and bytes by the device or an SM's port  (Eq. 2)
    wave  = max(steps * step, instructions of an SM) + start and folds                                  (Eq. 3)
    sweep = launch + waves, and never less than DRAM takes                                              (Eq. 4)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vortex.errors import ShapeError
from vortex.reduction_tiles import Family

ITEM = 4
"""Bytes of an element."""
PIECE = 4
"""Elements that a thread takes at a time: 16 bytes, one access where the operand is aligned to them."""
STEPS = 4
"""Pieces that a thread asks for before it combines the first."""
CHAIN = 8192
"""Additions to one accumulator in a row, at most, before the chunks of a depth are combined: it bounds rounding."""
FILLS = (1, 2, 4)
"""Shares of the blocks that a device holds which the chunks of a depth may fill; not to cut it is tried first."""
SECTOR = 32
"""Bytes of the smallest piece of a line that L2 hands out."""
View = tuple[int, int, int]
"""outer, depth, inner: an operand whose axes between are reduced; priced as a contiguous one, whatever its strides."""
Seconds = dict[int, tuple[float, "Sweep"]]
"""Of a view, by the number of chunks: the sweep that combines them, and what it takes."""
MOST_BLOCKS = 2**31 - 1
"""Of a grid, along x."""
BURST = 64
"""Bytes of the smallest piece that DRAM hands out."""
LINE = 128
"""Bytes of a line, of which L1 looks up one in a cycle."""
STEP_SLOTS, NARROW_SLOTS, BLOCK_SLOTS = 40, 64, 192
"""Instructions of a warp in a step, in one of narrow accesses, and outside of steps: about what sm_80's code has."""
PARAMETERS = ("*X", "*Y", "outer", "depth", "inner", "outer_stride", "depth_stride", "chunk", "chunks", "scale")
"""What every kernel takes: pointers, 64-bit extents and strides of x in elements, a float; as runtime/gpu_reduce.c."""
NARROW, WIDE = 4, 16
"""Bytes of one access: whether rows and base lie on multiples of 16 bytes decides, and changes no order of sums."""


@dataclass(frozen=True)
class ReduceBlock:
    """The tile of a thread block: so many threads along the kept outer axis, the reduced one and the inner one.

    A thread of `ROWS` takes pieces of the depth; of `COLUMNS`, pieces of the inner axis, of one row of depth each.
    """

    family: Family
    rows: int
    along: int
    across: int

    @property
    def threads(self) -> int:
        return self.rows * self.along * self.across

    @property
    def step(self) -> int:
        """Elements of depth that a block takes in one step."""
        return self.along * STEPS * (PIECE if self.family is Family.ROWS else 1)

    @property
    def columns(self) -> int:
        """Outputs along the inner axis."""
        return 1 if self.family is Family.ROWS else self.across * PIECE

    @property
    def chain(self) -> int:
        """The longest depth that adds no more than CHAIN elements to one accumulator."""
        return CHAIN * self.step // STEPS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory in which warps (of columns: rows of threads) meet."""
        if self.family is Family.ROWS:
            return ITEM * self.rows * self.along // 32 if self.along > 32 else 0
        return ITEM * PIECE * self.threads if self.along > 1 else 0

    def symbol(self, kind: str, vector: int) -> str:
        """The name of its kernel."""
        return f"reduce_{kind}_{self.family.value}_{self.rows}x{self.along}x{self.across}_v{vector}"

    def __str__(self) -> str:
        return f"{self.family.value}, threads {self.rows}x{self.along}x{self.across}"


@dataclass(frozen=True)
class Sweep:
    """One kernel over x[outer, depth, inner]: a result for each of `chunks` pieces of the depth, whole if it is one."""

    index: int
    block: ReduceBlock
    outer: int
    depth: int
    inner: int
    chunk: int
    chunks: int
    is_warm: bool
    """Whether x was written just before, and L2 holds it."""

    @property
    def blocks(self) -> int:
        return -(-self.outer // self.block.rows) * self.chunks * -(-self.inner // self.block.columns)

    @property
    def suits_wide(self) -> bool:
        """Whether pieces begin on multiples of 16 bytes where the operand does."""
        return (self.depth if self.block.family is Family.ROWS else self.inner) % PIECE == 0

    @property
    def outputs(self) -> int:
        return self.outer * self.chunks * self.inner

    @property
    def bytes(self) -> int:
        """Read and written."""
        return ITEM * (self.outer * self.depth * self.inner + self.outputs)


@dataclass(frozen=True)
class ReduceRates:
    """What the device does, in seconds and bytes; as `gpu_figures.GpuRates`, and what a thread block is charged."""

    sms: int
    launch: float
    dram_byte: float
    l2_byte: float
    port_byte: float
    l2_bytes: float
    dram_latency: float
    l2_latency: float
    cycle: float
    start: float
    """From a block's begin to its first load."""
    slot: float
    """Seconds in which an SM issues one instruction of a warp."""
    leak: float
    """Share of the shorter of latency and loads that shows beside the longer."""
    fold: float
    """Seconds of one halving of the threads that hold parts of a result."""


def waste(sweep: Sweep) -> float:
    """Bytes that cross over bytes that are wanted: neighbouring threads read runs, which begin within a sector."""
    block = sweep.block
    if block.family is Family.ROWS:
        is_whole = sweep.chunks == 1 and sweep.depth <= block.step
        run, apart = ITEM * min(block.step, sweep.chunk), ITEM * sweep.depth
    else:
        is_whole = block.columns >= sweep.inner
        run, apart = ITEM * min(block.columns, sweep.inner), ITEM * sweep.inner
    if is_whole:
        return 1.0
    return max(1.0, BURST / run) if apart % SECTOR == run % SECTOR == 0 else (run + SECTOR) / run


def lines(sweep: Sweep) -> float:
    """Lines that a piece of every lane of a warp lies in: runs of lanes, as far apart as rows are."""
    block, width = sweep.block, sweep.inner
    x, y = min(32, block.across), min(32, block.along)
    if block.family is Family.ROWS:
        x, y, width = y, 1, sweep.depth
    y = min(y, 32 // x)
    z = min(32 // (x * y), sweep.outer)
    y, run = min(y, sweep.depth), ITEM * min(PIECE * x, width)
    apart = ITEM * sweep.inner * sweep.depth
    of_rows = min(y * max(1.0, run / LINE), ((y - 1) * ITEM * width + run) / LINE)
    return max(1.0, min(z * max(1.0, of_rows), (z - 1) * apart / LINE + of_rows))


def terms(rates: ReduceRates, sweep: Sweep, resident: int) -> dict[str, float]:
    """Predicted seconds of one sweep by term; `resident` blocks fit an SM."""
    block, blocks = sweep.block, sweep.blocks
    steps = max(1, -(-sweep.chunk // block.step))
    in_l2 = sweep.is_warm and sweep.bytes <= rates.l2_bytes
    byte, latency = (rates.l2_byte, rates.l2_latency) if in_l2 else (rates.dram_byte, rates.dram_latency)
    one = ITEM * sweep.outer * sweep.depth * sweep.inner * waste(sweep) / (blocks * steps)
    warps, slots = block.threads // 32, resident * rates.sms
    looked_up = warps * STEPS * (1 if sweep.suits_wide else PIECE) * lines(sweep) * rates.cycle
    issued = warps * (steps * (STEP_SLOTS if sweep.suits_wide else NARROW_SLOTS) + BLOCK_SLOTS) * rates.slot
    edge = rates.start + rates.fold * math.log2(block.along)

    def wave(count: float, hidden: float) -> float:
        most = math.ceil(count / rates.sms)
        loaded = max(count * one * byte, most * one * rates.port_byte)
        _, second, longest = sorted((latency, loaded, most * looked_up))
        return max(steps * (longest + rates.leak * second), most * issued) + edge * hidden

    full = max(0, -(-blocks // slots) - 1)
    read = full * wave(slots, 1 / resident) + wave(blocks - full * slots, 1.0) if full else wave(blocks, 1.0)
    least = sweep.bytes * byte
    told = {"launch": rates.launch, "read": read, "memory": max(0.0, least - read)}
    return told | {"total": rates.launch + max(read, least)}


@dataclass(frozen=True)
class GpuReducePlan:
    """The sweeps of a call, one after the other on the stream, and the predicted seconds."""

    sweeps: tuple[Sweep, ...]
    seconds: float

    @classmethod
    def of(cls, plans: Sequence[GpuReducePlan]) -> GpuReducePlan:
        """Plans one after the other."""
        return cls(tuple(sweep for plan in plans for sweep in plan.sweeps), sum(plan.seconds for plan in plans))

    def __str__(self) -> str:
        told = []
        for sweep in self.sweeps:
            chunks = f" in {sweep.chunks} chunks of {sweep.chunk}" if sweep.chunks > 1 else ""
            told.append(f"{sweep.outer}x{sweep.depth}x{sweep.inner}{chunks} by {sweep.block}, {sweep.blocks} block(s)")
        return "; then ".join(told)


@dataclass(frozen=True)
class ReduceSelector:
    """The tiles of a library with the blocks of each that an SM holds, and the figures of the device."""

    blocks: tuple[ReduceBlock, ...]
    resident: tuple[int, ...]
    rates: ReduceRates

    def seconds(self, sweep: Sweep) -> float:
        return self.terms(sweep)["total"]

    def terms(self, sweep: Sweep) -> dict[str, float]:
        return terms(self.rates, sweep, self.resident[sweep.index])

    def cut(self, index: int, view: View, parts: int, is_warm: bool) -> Sweep:
        """A tile over a view whose depth is cut into so many chunks, or into as few fewer as whole steps make."""
        outer, depth, inner = view
        block = self.blocks[index]
        if parts == 1:
            return Sweep(index, block, outer, depth, inner, max(1, depth), 1, is_warm)
        steps = -(-depth // (parts * block.step))
        chunk = steps * block.step
        return Sweep(index, block, outer, depth, inner, chunk, -(-depth // chunk), is_warm)

    def parts(self, index: int, view: View) -> Iterator[int]:
        """Into how many chunks a tile may cut the depth: few enough for a step each, enough for short chains."""
        block = self.blocks[index]
        least = max(1, -(-view[1] // block.chain))
        most = max(least, view[1] // block.step)
        alone, slots = self.cut(index, view, 1, False).blocks, self.resident[index] * self.rates.sms
        yield from sorted({least, *(min(max(int(slots * fill) // alone, least), most) for fill in FILLS)})

    def firsts(self, index: int, view: View, room: int, is_warm: bool) -> Iterator[tuple[float, Sweep]]:
        """What a tile may begin with, and its seconds. Chunks that would take more than `room` bytes are not cut."""
        every = [self.cut(index, view, parts, is_warm) for parts in self.parts(index, view)]
        fitting = [sweep for sweep in every if sweep.chunks == 1 or ITEM * sweep.outputs <= room]
        for sweep in fitting or [self.cut(index, view, 1, is_warm)]:
            if sweep.blocks <= MOST_BLOCKS:
                yield self.seconds(sweep), sweep

    def second(self, first: Sweep) -> tuple[float, Sweep]:
        """The best sweep over the chunks of another, and its seconds."""
        left = (first.outer, first.chunks, first.inner)
        every = (self.cut(i, left, 1, True) for i in self.serving(left))
        return min(((self.seconds(sweep), sweep) for sweep in every), key=lambda pair: pair[0])

    def completed(self, taken: float, first: Sweep, seconds: Seconds) -> GpuReducePlan:
        """A sweep that takes so long, and the best one over its chunks."""
        if first.chunks == 1:
            return GpuReducePlan((first,), taken)
        if first.chunks not in seconds:
            seconds[first.chunks] = self.second(first)
        more, second = seconds[first.chunks]
        return GpuReducePlan((first, second), taken + more)

    def cheapest(self, firsts: list[tuple[float, Sweep]], seconds: Seconds) -> GpuReducePlan | None:
        """The best plan that begins with one of these sweeps, the first of equals; None where there is none."""
        best: GpuReducePlan | None = None
        for taken, first in sorted(firsts, key=lambda pair: pair[0]):
            more = 0.0 if first.chunks == 1 else self.rates.launch
            if best is not None and taken + more >= best.seconds:
                continue
            plan = self.completed(taken, first, seconds)
            if best is None or plan.seconds < best.seconds:
                best = plan
        return best

    def serving(self, view: View) -> list[int]:
        """Tiles of the family that reads a view along its contiguous axis."""
        family = Family.ROWS if view[2] == 1 else Family.COLUMNS
        return [index for index, block in enumerate(self.blocks) if block.family is family]

    def plans(self, view: View, room: int, is_warm: bool = False) -> Iterator[GpuReducePlan]:
        """The best plan of each tile that serves a view."""
        seconds: Seconds = {}
        for index in self.serving(view):
            if plan := self.cheapest(list(self.firsts(index, view, room, is_warm)), seconds):
                yield plan

    def choose(self, view: View, room: int, is_warm: bool = False) -> GpuReducePlan:
        """The cheapest plan, the first of equals. Raises ShapeError where no grid is large enough."""
        every = [first for index in self.serving(view) for first in self.firsts(index, view, room, is_warm)]
        if (plan := self.cheapest(every, {})) is None:
            raise ShapeError(f"no tile of the library serves {view}; reduce parts of it")
        return plan

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(block), "family": block.family.value} for block in self.blocks]
        return {"blocks": rows, "resident": list(self.resident), "rates": asdict(self.rates)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReduceSelector:
        blocks = tuple(ReduceBlock(**{**row, "family": Family(row["family"])}) for row in data["blocks"])
        return cls(blocks, tuple(data["resident"]), ReduceRates(**data["rates"]))
