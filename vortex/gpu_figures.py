"""What the cost of a GPU kernel is made of: the device, the kernel, and the call."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.effects import Value


@dataclass(frozen=True)
class GpuRates:
    """What the device does, as the cost model sees it: seconds, seconds per byte, bytes, counts."""

    sms: float
    per_sm: float
    """1 / sms."""
    launch: float
    """Seconds of a kernel that does nothing."""
    l2_byte: float
    """Seconds per byte that all SMs together read from L2, or write to it."""
    port_byte: float
    """Seconds per byte that one SM reads from L2, however few others do."""
    dram_byte: float
    l2_bytes: float
    """Bytes of L2 that operands may count on from one wave to the next."""
    l2_latency: float
    """Seconds from asking for a line to having it in shared memory."""
    miss_latency: float
    """What is added if it comes from DRAM."""
    reduction: float
    """Seconds from the last partial of a split reduction to a reduction kernel that runs."""
    part: float
    """Seconds that each part of a cut reduction adds to that kernel, whose threads read one partial after the other."""


@dataclass(frozen=True)
class BlockCosts:
    """What the model knows of each kernel: one column per field, one row per kernel; floats of one kernel, too."""

    tile_m: Value
    tile_n: Value
    per_tile_m: Value
    """1 / rows of the block tile; the other two likewise."""
    per_tile_n: Value
    per_tile_k: Value
    item: Value
    """Bytes of an element of A and B."""
    out: Value
    """Bytes of an element of C."""
    resident: Value
    """Blocks of this kernel that one SM holds at a time."""
    per_resident: Value
    slots: Value
    """Blocks that the device holds at a time."""
    per_slots: Value
    work: Value
    """Seconds that a stage of one block keeps the busiest unit of its SM: MMA or FMA pipes, shared memory, issue."""
    chain: Value
    """Seconds that a stage takes when its block has the SM to itself: what latency and barriers leave exposed."""
    crowd: Value
    """Seconds that each further block on the SM adds to a stage, beside `chain`: 0 where nothing was measured."""
    serial: Value
    """Latencies of a load that every stage waits for in full: 1 without stages to load ahead into, else 0."""
    waited: Value
    """Seconds of that latency that `chain` has already: of L2 where it was measured, else none."""
    wait: Value
    """Latencies of a load that every stage waits for when loads run as far ahead as stages allow."""
    blank: Value
    """Seconds that each row of a tile outside the operands takes of a load: where TMA fills it with zeros, else 0."""
    fetch: Value
    """Bytes that a load of narrow rows moves, over those it wants."""
    start: Value
    """Seconds until the first load of a block is under way."""
    again: Value
    """Share of a block's start that every further wave pays: less where blocks stay, and load while they store."""
    scatter: Value
    """Bytes that stores of C occupy in the path to L2, over the bytes of C."""
    raster: Value
    """Rows of tiles that consecutive blocks walk down before they step one column on."""
    leak: Value
    """Share of the shorter of arithmetic and loads that shows beside the longer."""
    most_parts: Value
    """Pieces that its reduction may be cut into: 1 where there is no kernel for partial sums."""
    cluster: Value
    """Blocks below one another that bring the columns of B together, each its share to all of them."""
    per_cluster: Value

    @property
    def tiles_at_once(self) -> int:
        """Blocks of one kernel, or clusters of them, that the device holds at a time."""
        return int(self.slots) // int(self.cluster)


@dataclass(frozen=True)
class GpuProblem:
    """The shape of one call."""

    m: Value
    n: Value
    k: Value
    room: Value
    """Copies of C, of the whole batch, that the workspace has room for, in float32."""
    batch: Value
    """Products of this shape in one launch; operands that they share are priced as if each had its own."""
    seen: Value
    """Bytes of A in memory over those of its m x k elements: less than 1 where a filter's taps see the same input."""
