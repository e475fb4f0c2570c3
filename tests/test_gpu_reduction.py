"""Reductions on GPUs: sieve, machine code, kernels in the emulator, the choice, and calls through a fake driver."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import emulator
import gpu_doubles
import numpy as np
import pytest
from doors import RUNTIME
from gpu_doubles import DLPackTensor, ExchangeTensor, InterfaceTensor, Launch, StubDriver, aligned
from needs import a_compiler, an_emulator
from products import MAP_NORESERVE, machine_code
from test_codegen_cuda import an_nvrtc, disassembled

import vortex
from vortex import gpu_opened, gpu_reduction_compiler, gpu_reduction_launcher, reduction_plan
from vortex.codegen import cuda_reduction, gpu_reduction_link
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.nvrtc import Compiled
from vortex.errors import CodegenError, DeviceError, DtypeError, LibraryError, OperandError, ShapeError, VortexError
from vortex.gpu_library import DOOR, GpuLibrary, read, verify
from vortex.gpu_operands import CUDA_ERROR, NEEDS_WORKSPACE, ON_HOST, ON_OTHER, REASONS, WRONG_AXES, WRONG_SHAPE
from vortex.gpu_reduction import (
    CHAIN,
    ITEM,
    MOST_BLOCKS,
    NARROW,
    PIECE,
    STEPS,
    WIDE,
    GpuReducePlan,
    ReduceBlock,
    ReduceSelector,
    Sweep,
)
from vortex.gpu_reduction_door import BAD_RANK, BAD_STRIDES, MOST_RANK, NO_KERNEL, TOO_LARGE, ReduceDoor
from vortex.gpu_reduction_launcher import GpuReduce
from vortex.gpu_reduction_sieve import initial_blocks, selector_of, sieve
from vortex.operators import Reduce
from vortex.reduction import KINDS
from vortex.reduction_tiles import Family
from vortex.rkernel import Loop, decompose
from vortex.specs import load_spec

HW, ARCH = "a100", "sm_80"
NUMPY: dict[str, Any] = {"sum": np.sum, "max": np.max, "mean": np.mean}
BLOCKS = (
    ReduceBlock(Family.ROWS, 128, 1, 1),
    ReduceBlock(Family.ROWS, 16, 8, 1),
    ReduceBlock(Family.ROWS, 4, 64, 1),
    ReduceBlock(Family.ROWS, 1, 256, 1),
    ReduceBlock(Family.COLUMNS, 128, 1, 1),
    ReduceBlock(Family.COLUMNS, 2, 2, 32),
    ReduceBlock(Family.COLUMNS, 1, 16, 16),
    ReduceBlock(Family.COLUMNS, 1, 256, 1),
)
"""Without and with a meeting of lanes, of warps, of rows of threads."""
TILES = [pytest.param(block, id=str(block).replace(", threads ", "-")) for block in BLOCKS]
ROOM = 64 << 20
INFINITY = float("inf")


def built(kind: str, path: str) -> None:
    vortex.compile(Reduce(kind), hw=HW, cache=False).save(path)  # type: ignore[arg-type]  # a kind


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    """The library of sums, compiled where no fake driver is."""
    path = tmp_path_factory.mktemp("reduce") / "sum.vortex"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(built, "sum", str(path)).result()
    return read(path)


def of_kind(library: GpuLibrary, kind: str) -> GpuLibrary:
    """The same tiles for another kind, whose machine code is a name only."""
    m = library.manifest
    entries = tuple(replace(e, symbol=e.symbol.replace("_sum_", f"_{kind}_"), file="all.cubin") for e in m.entries)
    manifest = replace(m, settings={**m.settings, "kind": kind}, entries=entries, ptx="")
    code = {"all.cubin": gpu_doubles.cubin([entry.symbol for entry in entries])}
    found = GpuLibrary(manifest, {DOOR: library.parts[DOOR], **code})
    verify(found, "of another kind")
    return found


def with_room(library: GpuLibrary, bytes: int) -> GpuLibrary:
    """The same with another workspace."""
    return replace(library, manifest=replace(library.manifest, workspace_bytes=bytes))


@cache
def emitted(block: ReduceBlock, kind: str, vector: int) -> tuple[str, KernelSource]:
    kernel = cuda_reduction.source(block, kind, vector, ARCH)
    return f"{cuda_reduction.prelude(kind)}\n{kernel.source}", kernel


def whole_numbers(*shape: int, seed: int = 0) -> Any:
    """Small ones: their sums are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-8, 9, shape).astype(np.float32)


def swept(block: ReduceBlock, kind: str, vector: int, x: Any, parts: int = 1, scale: float = 1.0, **how: Any) -> Any:
    """One sweep in the emulator: [outer, chunks, inner]."""
    (text, kernel), (outer, depth, inner) = emitted(block, kind, vector), x.shape
    sweep = ReduceSelector((block,), (1,), RATES).cut(0, x.shape, parts, False)
    x = x.copy()
    x.flags.writeable = False
    y = np.full((outer, sweep.chunks, inner), np.nan, np.float32)
    numbers = [np.int64(each) for each in (outer, depth, inner, sweep.chunk, sweep.chunks)]
    shape = (sweep.blocks,), kernel.block, kernel.shared_bytes
    emulator.run(text, kernel.symbol, *shape, [x, y, *numbers, scale], alignment=vector, **how)
    return y


def chunked(kind: str, x: Any, chunk: int) -> Any:
    starts = range(0, x.shape[1], chunk)
    return np.stack([NUMPY[kind](x[:, at : at + chunk], axis=1) for at in starts], axis=1)


RATES = selector_of(load_spec(HW), BLOCKS, [48] * len(BLOCKS)).rates  # type: ignore[arg-type]  # a GPU's


def shapes_of(block: ReduceBlock, vector: int) -> Iterator[tuple[int, int, int]]:
    """One element, less than a step, a step, primes, more rows than a block has; extents that the accesses divide."""
    step = vector // ITEM
    for outer, depth, width in ((1, 1, 1), (3, 13, 5), (block.rows + 1, 2 * block.step + 7, 3), (2, block.step, 17)):
        if block.family is Family.ROWS:
            yield outer, -(-depth // step) * step, 1
        else:
            wide = (block.columns + width) if outer == 2 else width + 1
            yield outer, depth, -(-wide // step) * step


class TestOperator:
    def test_a_loop_set_of_its_own(self):
        levels = decompose(Reduce(), load_spec(HW)).levels
        assert [level.compute.split()[0] for level in levels] == ["combine", "rKernel(L0),", "rKernel(L1),"]
        assert all(("depth", Loop.PARALLEL) in level.loops for level in levels)
        assert ("depth", Loop.TEMPORAL_REDUCTION) in levels[0].loops
        assert not any("SHARED" in move.name for level in levels for move in level.loads)


class TestSieve:
    def test_threads_lie_along_the_axes_in_powers_of_two(self):
        for family in Family:
            found = list(initial_blocks(family))
            assert len(set(found)) == len(found)
            assert all(block.threads % 32 == 0 and block.threads <= 256 for block in found)
            assert family is Family.COLUMNS or all(block.across == 1 for block in found)

    @a_compiler
    @an_nvrtc
    def test_few_tiles_are_kept_and_each_filter_told(self, library: GpuLibrary):
        rows = library.manifest.admitted
        for family in Family:
            counts = [row.count for row in rows if row.level == f"{family.value} L1"]
            assert counts == sorted(counts, reverse=True) and 2 <= counts[-1] <= 20
        assert rows[-1].count == len(ReduceSelector.from_json(library.manifest.selector).blocks)

    def test_what_an_sm_holds_bounds_it(self):
        """Of a tile, fewer blocks run at a time where an SM has room for fewer threads."""
        spec: Any = load_spec("t4")
        small = spec.model_copy(update={"threads_per_sm": 256, "warps_per_sm": 8})
        block = ReduceBlock(Family.COLUMNS, 1, 16, 16)
        assert selector_of(spec, [block], [32]).resident == (4,)
        assert selector_of(small, [block], [32]).resident == (1,)

    @pytest.mark.emulate
    @pytest.mark.parametrize("hw", ["h200", "rtx3090", "t4"])
    def test_every_device_has_tiles(self, hw: str):
        found = sieve(decompose(Reduce(), load_spec(hw)))  # type: ignore[arg-type]  # a GPU's
        assert {block.family for block in found.blocks} == set(Family)


@a_compiler
@an_nvrtc
class TestMachineCode:
    def test_nothing_spills(self, library: GpuLibrary):
        for entry in library.manifest.entries:
            assert (entry.spills, entry.stack) == (0, 0) and entry.registers <= 64
            assert np.prod(entry.block) in (128, 256) and entry.block[2] == 1  # CUDA has 64 along z at most

    def test_accesses_are_as_wide_as_they_are_called(self, library: GpuLibrary, tmp_path: Path):
        for name in library.cubins:
            code = disassembled(Compiled(library.parts[name], "", {}), tmp_path)
            for symbol, text in code.items():
                wide = len(re.findall(r"LDG\.E\.128", text))
                assert wide >= 2 * STEPS if symbol.endswith(f"_v{WIDE}") else not wide, symbol
                assert not re.search(r"\b(STL|LDL)\b", text), f"{symbol} keeps something in local memory"

    def test_loads_run_ahead_of_additions(self, tmp_path: Path):
        """Of a full step, several pieces are asked for before the first is combined."""
        text, kernel = emitted(ReduceBlock(Family.ROWS, 1, 256, 1), "sum", WIDE)
        code = disassembled(machine_code(text, ARCH), tmp_path)[kernel.symbol]
        found = re.findall(r"\b(LDG|FADD)\b", code)
        assert found[:STEPS] == ["LDG"] * STEPS

    def test_a_kernel_that_spills_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        resources = {BLOCKS[0].symbol("sum", size): nvrtc_used(spills=4) for size in (WIDE, NARROW)}
        code = Compiled(b"", "", resources)
        monkeypatch.setattr(gpu_reduction_compiler.nvrtc, "COMPILERS", {"nvrtc": lambda text, arch: code})
        with pytest.raises(CodegenError, match="4 bytes of spills"):
            gpu_reduction_compiler.emit_unit("sum", BLOCKS[:1], ARCH, tmp_path / "unit", "nvrtc")

    @pytest.mark.emulate
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90a"])
    def test_every_architecture_and_kind(self, arch: str, kind: str):
        sources = [cuda_reduction.source(block, kind, size, arch) for block in BLOCKS for size in (WIDE, NARROW)]
        code = machine_code("\n".join([cuda_reduction.prelude(kind), *(each.source for each in sources)]), arch)
        assert len(code.resources) == len(sources)
        assert not any(used.spills or used.stack for used in code.resources.values())


def nvrtc_used(spills: int) -> Any:
    from vortex.codegen.nvrtc import Resources

    return Resources(32, 0, spills, 0)


@an_emulator
class TestKernels:
    """Operands lie between guard pages, on addresses as odd as the alignment class allows."""

    @pytest.mark.parametrize("vector", [WIDE, NARROW])
    @pytest.mark.parametrize("block", TILES)
    def test_ragged_shapes(self, block: ReduceBlock, vector: int):
        for place, shape in enumerate(shapes_of(block, vector)):
            x, timing = whole_numbers(*shape), emulator.TIMINGS[place % 2]
            for parts in (1, 2):
                chunk = shape[1] if parts == 1 else -(-shape[1] // (parts * block.step)) * block.step
                assert (swept(block, "sum", vector, x, parts, timing=timing) == chunked("sum", x, chunk)).all(), shape

    @pytest.mark.parametrize("block", [TILES[1], TILES[6]])
    def test_maxima_and_scales(self, block: ReduceBlock):
        for shape in shapes_of(block, NARROW):
            x = whole_numbers(*shape) - 9
            assert (swept(block, "max", NARROW, x)[:, 0] == x.max(axis=1)).all()
            mean = swept(block, "mean", NARROW, x, scale=1 / shape[1])[:, 0]
            assert (mean == x.sum(axis=1) * np.float32(1 / shape[1])).all()

    @pytest.mark.parametrize("block", [TILES[1], TILES[6]])
    def test_not_a_number_anywhere_wins(self, block: ReduceBlock):
        shape = (3, 2 * block.step + 3, 1) if block.family is Family.ROWS else (1, 2 * block.step + 3, 5)
        for at in (0, 1, block.step, shape[1] - 1):
            x = whole_numbers(*shape)
            x[0, at] = np.nan
            x[-1, 1, -1] = INFINITY if shape[0] > 1 else x[-1, 1, -1]
            for kind in ("sum", "max"):
                found = swept(block, kind, NARROW, x)[:, 0]
                with np.errstate(invalid="ignore"):
                    expected = NUMPY[kind](x, axis=1)
                assert np.array_equal(found, expected, equal_nan=True)

    def test_nothing_but_minus_infinity(self):
        x = np.full((1, 9, 1), -INFINITY, np.float32)
        assert (swept(BLOCKS[1], "max", NARROW, x) == -INFINITY).all()

    @pytest.mark.parametrize("block", [TILES[1], TILES[3], TILES[5], TILES[7]])
    def test_narrow_accesses_change_no_bit(self, block: ReduceBlock):
        shape = (3, 3000, 1) if block.family is Family.ROWS else (3, 300, 36)
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        wide, narrow = (swept(block, "sum", vector, x) for vector in (WIDE, NARROW))
        assert wide.tobytes() == narrow.tobytes()

    def test_sums_lose_little(self):
        x = np.random.default_rng(0).random((1, 300_000, 1), np.float32)
        found = swept(BLOCKS[1], "sum", NARROW, x)
        assert abs(found.item() / x.astype(np.float64).sum() - 1) < 1e-5

    @pytest.mark.parametrize("timing", ["eager", "lazy"])
    @pytest.mark.parametrize("block", [TILES[1], TILES[6]])
    def test_offsets_beyond_32_bits(self, block: ReduceBlock, timing: str):
        """The third row begins past 2^31 elements; of each only the first chunk is asked for."""
        inner = 1 if block.family is Family.ROWS else 8
        depth, chunk = ((1 << 30) + 64) // inner, 100
        memory = mmap(-1, 3 * depth * inner * ITEM, flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
        x = np.frombuffer(memory, np.float32).reshape(3, depth, inner)[:, :chunk]
        x[...] = whole_numbers(3, chunk, inner)
        y = np.full((3, 1, inner), np.nan, np.float32)
        text, kernel = emitted(block, "sum", WIDE)
        numbers = [np.int64(each) for each in (3, depth, inner, chunk, 1)]
        geometry = (-(-3 // block.rows),), kernel.block, kernel.shared_bytes
        emulator.run(text, kernel.symbol, *geometry, [x, y, *numbers, 1.0], timing=timing, alignment=WIDE)
        assert (y[:, 0] == x.sum(axis=1)).all()

    @pytest.mark.parametrize("block", [TILES[3], TILES[6]])
    def test_no_race_in_shared_memory(self, block: ReduceBlock):
        shape = (2, block.step + 3, 1) if block.family is Family.ROWS else (1, block.step + 3, 70)
        x = whole_numbers(*shape)
        assert (swept(block, "sum", NARROW, x, traced=True)[:, 0] == x.sum(axis=1)).all()

    @pytest.mark.emulate
    @pytest.mark.parametrize("kind", ["sum", "max"])
    @pytest.mark.parametrize("family", list(Family))
    def test_every_tile_of_the_sieve(self, family: Family, kind: str):
        blocks = [block for block in sieve(decompose(Reduce(), load_spec(HW))).blocks if block.family is family]  # type: ignore[arg-type]  # a GPU's
        for block in blocks:
            for vector in (WIDE, NARROW):
                for place, shape in enumerate(shapes_of(block, vector)):
                    x = whole_numbers(*shape)
                    for parts in (1, 2, 3):
                        chunk = shape[1] if parts == 1 else -(-shape[1] // (parts * block.step)) * block.step
                        found = swept(block, kind, vector, x, parts, timing=emulator.TIMINGS[place % 3])
                        assert (found == chunked(kind, x, chunk)).all(), (block, vector, shape, parts)


def views(count: int, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """Random ones of every proportion, up to 2^38 elements."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        shares = draw.dirichlet((1, 1, 1)) * draw.uniform(0, 38)
        outer, depth, inner = (int(2**share) for share in shares)
        yield outer, depth, 1 if draw.random() < 0.4 else inner


@pytest.fixture(scope="module")
def selector() -> ReduceSelector:
    return selector_of(load_spec(HW), BLOCKS, [48] * len(BLOCKS))  # type: ignore[arg-type]  # a GPU's


class TestSelection:
    def test_every_view_is_covered(self, selector: ReduceSelector):
        """Each sweep goes over all that the one before left, once."""
        for view in views(300):
            plan, left = selector.choose(view, ROOM), view
            for sweep in plan.sweeps:
                assert (sweep.outer, sweep.depth, sweep.inner) == left
                assert (sweep.chunks - 1) * sweep.chunk < sweep.depth <= sweep.chunks * sweep.chunk
                assert 0 < sweep.blocks <= MOST_BLOCKS
                assert sweep.chunks == 1 or sweep.chunk % (PIECE if view[2] == 1 else 1) == 0
                assert (sweep.block.family is Family.ROWS) == (view[2] == 1)
                left = (sweep.outer, sweep.chunks, sweep.inner)
            assert left[1] == 1 and (len(plan.sweeps) == 1 or ITEM * plan.sweeps[0].outputs <= ROOM)

    def test_the_choice_is_the_cheapest(self, selector: ReduceSelector):
        for view in views(100, seed=1):
            rivals = list(selector.plans(view, ROOM))
            assert selector.choose(view, ROOM) == min(rivals, key=lambda plan: plan.seconds)

    def test_few_long_rows_are_cut_and_many_are_not(self, selector: ReduceSelector):
        for long in ((1, 10**8, 1), (1, 10**7, 3), (3, 10**6, 8)):
            assert len(selector.choose(long, ROOM).sweeps) == 2
        for many in ((10**6, 128, 1), (10**5, 10, 3), (64, 100, 4096), (1, 1, 1)):
            assert len(selector.choose(many, ROOM).sweeps) == 1

    def test_without_room_nothing_is_cut(self, selector: ReduceSelector):
        for long in ((1, 10**8, 1), (10, 10**7, 3)):
            assert len(selector.choose(long, 0).sweeps) == 1

    def test_chains_are_short(self, selector: ReduceSelector):
        for view in ((10**5, 10**7, 1), (10**4, 10**6, 4), (1, 10**9, 32)):
            first = selector.choose(view, ROOM).sweeps[0]
            per_thread = -(-first.chunk // first.block.step) * STEPS
            assert per_thread <= CHAIN

    def test_more_work_takes_longer(self, selector: ReduceSelector):
        for outer, depth, inner in ((1000, 1000, 1), (1, 10**6, 64), (10**5, 32, 32)):
            less, more = (selector.choose((outer * by, depth, inner), ROOM).seconds for by in (1, 8))
            assert more > 3 * less

    def test_large_operands_come_at_the_bandwidth_of_memory(self, selector: ReduceSelector):
        dram = load_spec(HW).memory("dram").bandwidth_bytes_per_s
        for view in ((10**5, 10**4, 1), (1, 10**9, 1), (1, 10**5, 10**4), (10**3, 10**3, 10**3), (10**8, 16, 1)):
            plan = selector.choose(view, ROOM)
            assert 0.7 * dram < plan.sweeps[0].bytes / plan.seconds < dram

    def test_it_comes_back_from_a_manifest(self, selector: ReduceSelector):
        assert ReduceSelector.from_json(selector.to_json()) == selector

    def test_a_view_beyond_every_grid_is_refused(self, selector: ReduceSelector):
        with pytest.raises(ShapeError, match="no tile"):
            selector.choose((1 << 39, 1, 1), ROOM)


@pytest.fixture(scope="module")
def chosen_from(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReduceSelector, ReduceDoor]:
    """The tiles that a library for this device has."""
    spec: Any = load_spec(HW)
    blocks = sieve(decompose(Reduce(), spec)).blocks
    mirror = selector_of(spec, blocks, [40] * len(blocks))
    code = gpu_reduction_link.build(mirror, tmp_path_factory.mktemp("native"))
    return mirror, ReduceDoor(code, mirror.blocks)


@a_compiler
class TestNativeSelector:
    def test_it_chooses_what_its_mirror_does(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        """To the bit, with and without room for chunks, of operands in DRAM and in L2."""
        mirror, native = chosen_from
        for place, view in enumerate(views(20_000, seed=2)):
            how = view, 0 if place % 7 == 0 else ROOM >> 4 * (place % 3), place % 5 == 0
            assert native.choose(*how) == mirror.choose(*how), how

    def test_a_choice_takes_microseconds(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        """Generously: the machine is shared."""
        for view in views(100, seed=3):
            assert min(chosen_from[1].time_selection(view, ROOM, False, 100) for _ in range(3)) < 20e-6

    def test_a_view_beyond_every_grid_is_refused(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        with pytest.raises(ShapeError, match="no tile"):
            chosen_from[1].choose((1 << 39, 1, 1), ROOM)

    def test_other_host_code_is_refused(self):
        with pytest.raises(LibraryError, match="compile it again"):
            ReduceDoor(b"", BLOCKS)


def shapes(count: int, seed: int = 0) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Random ones of up to 64 axes, some of them empty, with axes counted from either end, in any order."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        rank = int(draw.integers(0, 9) if draw.random() < 0.9 else draw.integers(9, MOST_RANK + 1))
        most = 36 / max(1, rank)
        shape = tuple(int(2 ** draw.uniform(0, most)) if draw.random() < 0.97 else 0 for _ in range(rank))
        axes = draw.permutation(rank)[: draw.integers(0, rank + 1)]
        chosen = tuple(int(axis) - (rank if draw.random() < 0.5 else 0) for axis in axes)
        yield shape, None if draw.random() < 0.1 else chosen


def laid_out(sweeps: Sequence[Sweep]) -> int:
    """Bytes of all results that are read again, each from a multiple of 256."""
    return sum(-(-ITEM * sweep.outputs // 256) * 256 for sweep in sweeps[:-1])


@a_compiler
class TestRuns:
    def test_they_are_those_of_the_mirror(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        """Views, plans and seconds to the bit, and the workspace."""
        mirror, native = chosen_from
        counts = set()
        for place, (shape, axis) in enumerate(shapes(3000)):
            room = 0 if place % 7 == 0 else ROOM >> 4 * (place % 3)
            every = enumerate(reduction_plan.views(shape, axis))
            expected = tuple((view, mirror.choose(view, room, is_warm=place > 0)) for place, view in every)
            found = native.runs(shape, axis, room)
            assert found.runs == expected, (shape, axis)
            assert found.need == laid_out(found.plan.sweeps), (shape, axis)
            counts.add(len(found.runs))
        assert {1, 2, 3, 4} < counts and max(counts) > 10

    def test_as_many_as_there_can_be(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        """Every other of 64 axes."""
        shape, axes = (1,) * 60 + (5, 2, 3, 4), tuple(range(0, MOST_RANK, 2))
        found = chosen_from[1].runs(shape, axes, ROOM)
        assert [view for view, _ in found.runs] == reduction_plan.views(shape, axes) and len(found.runs) == 32

    @pytest.mark.parametrize(
        "axis",
        [
            *(0, -1, 2, 3, -3, -4, 63, 64, -64, -65, 1 << 70, True, "0", 1.0, np.int64(1), None, (), [2, 0]),
            *((0, 0), (0, -3), (1, -1), (0, 5), (-1, -1), (0, None), (0, "x"), (np.int32(2), 1)),
        ],
    )
    def test_axes_are_refused_where_python_refuses_them(
        self, chosen_from: tuple[ReduceSelector, ReduceDoor], axis: Any
    ):
        shape = (4, 5, 6)
        try:
            expected = reduction_plan.views(shape, axis)
        except ShapeError:
            with pytest.raises(ShapeError, match="has not the axes that are asked for"):
                chosen_from[1].runs(shape, axis, ROOM)
        else:
            assert [view for view, _ in chosen_from[1].runs(shape, axis, ROOM).runs] == expected

    def test_what_is_too_much_is_refused(self, chosen_from: tuple[ReduceSelector, ReduceDoor]):
        native = chosen_from[1]
        with pytest.raises(ShapeError, match="has too many axes; reshape it to at most 64"):
            native.runs((1,) * 65, None, ROOM)
        for shape in ((1 << 40,), (1 << 20, 1 << 20), (1 << 62, 1 << 62), (1 << 62, 0, 1 << 62)):
            with pytest.raises(ShapeError, match="too many elements; reduce parts"):
                native.runs(shape, 0, ROOM)
        with pytest.raises(ShapeError, match="served by no tile of the library; reduce parts"):
            native.runs((1 << 39, 1), 1, ROOM)


def test_every_refusal_of_the_door_has_words():
    source = (RUNTIME / "gpu_refusals.h").read_text()
    numbers = re.search(r"enum \{\s*NOT_A_TENSOR = 1,(.*?)\}", source, re.S)
    assert numbers is not None and 2 + numbers[1].count(",") == len(REASONS)
    names = ["NOT_A_TENSOR", *re.findall(r"[A-Z_0-9]+", numbers[1])]
    known = {"BAD_RANK": BAD_RANK, "BAD_STRIDES": BAD_STRIDES, "TOO_LARGE": TOO_LARGE, "NO_KERNEL": NO_KERNEL}
    known |= {"BAD_DEVICE": ON_HOST, "OTHER_DEVICE": ON_OTHER, "BAD_OUT_SHAPE": WRONG_SHAPE, "BAD_AXES": WRONG_AXES}
    known |= {"NEEDS_WORKSPACE": NEEDS_WORKSPACE, "CUDA_ERROR": CUDA_ERROR}
    assert all(names.index(name) + 1 == number for name, number in known.items())


TYPES = (ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_float)
"""Of the parameters of every kernel, in order."""


def emulating(reduce: GpuReduce) -> Any:
    """A callback that runs every launch in the emulator with exactly what the driver was given."""
    known = {
        block.symbol(reduce.kind, vector): (block, vector)
        for block in reduce.selector.blocks
        for vector in (WIDE, NARROW)
    }

    def run(launch: Launch) -> None:
        block, vector = known[launch.name.decode()]
        text, kernel = emitted(block, reduce.kind, vector)
        given: dict[str, Any] = {}
        for name, kind, address in zip(kernel.args, TYPES, launch.parameters, strict=False):
            given[name] = kind.from_address(address).value
        sizes = {name: np.int64(given[name]) for name in kernel.args[2:7]}
        read, written = (int(sizes["outer"] * sizes[name] * sizes["inner"]) for name in ("depth", "chunks"))

        def array(name: str, count: int) -> Any:
            return np.frombuffer((ctypes.c_char * (ITEM * count)).from_address(given[name] or 1), np.float32, count)

        x = array("*X", read) if read else np.zeros(1, np.float32)
        operands = [emulator.Workspace(x, vector), emulator.Workspace(array("*Y", written), vector)]
        geometry = tuple(launch.grid), tuple(launch.block), launch.shared
        assert given["*X"] % vector == given["*Y"] % vector == 0
        emulator.run(text, kernel.symbol, *geometry, [*operands, *sizes.values(), given["scale"]], seed=1)

    return run


def opened(driver: StubDriver, library: GpuLibrary, kind: str = "sum") -> GpuReduce:
    reduce = GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)
    driver.on_launch(emulating(reduce))
    return reduce


@a_compiler
@an_nvrtc
@an_emulator
class TestCalls:
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((37, 100), 1),
            ((37, 101), -1),
            ((5, 7, 11), 0),
            ((5, 8, 12), (0, 1)),
            ((5, 7, 11), (0, 2)),
            ((2, 3, 4, 5), (0, 2)),
            ((6, 5), None),
            ((6, 5), ()),
            ((1,), 0),
            ((), None),
            ((300_001,), 0),
            ((120_000, 2), 0),
        ],
    )
    def test_against_numpy(self, driver: StubDriver, library: GpuLibrary, shape: tuple[int, ...], axis: Any):
        reduce, x = opened(driver, library), whole_numbers(*shape)
        out = reduce(ExchangeTensor(aligned(x)), axis)
        assert (out.array == np.sum(x, axis=axis)).all() and out.shape == np.sum(x, axis=axis).shape
        plan = reduce.plan(shape, axis)
        assert len(driver.launches) == len(plan.sweeps)
        assert [launch.grid[0] for launch in driver.launches] == [sweep.blocks for sweep in plan.sweeps]

    @pytest.mark.parametrize("kind", ["max", "mean"])
    def test_other_kinds(self, driver: StubDriver, library: GpuLibrary, kind: str):
        reduce = opened(driver, library, kind)
        for shape, axis in (((9, 40), 1), ((4, 6, 8), (0, 2)), ((50_000,), None)):
            x = whole_numbers(*shape)
            expected = np.max(x, axis) if kind == "max" else np.sum(x, axis) * np.float32(np.sum(x, axis).size / x.size)
            assert (reduce(ExchangeTensor(aligned(x)), axis).array == expected).all()

    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    def test_every_kind_of_tensor(self, driver: StubDriver, library: GpuLibrary, kind: Any):
        x, out = whole_numbers(12, 40), aligned(np.zeros((12, 1), np.float32))
        given = kind(out)
        assert opened(driver, library)(kind(aligned(x)), 1, given, keepdims=True) is given
        assert (out == x.sum(axis=1, keepdims=True)).all()

    @pytest.mark.parametrize(("offset", "width", "vector"), [(0, 40, WIDE), (4, 40, NARROW), (0, 41, NARROW)])
    def test_alignment_chooses_the_accesses_and_no_bit(
        self, driver: StubDriver, library: GpuLibrary, offset: int, width: int, vector: int
    ):
        reduce, x = opened(driver, library), np.random.default_rng(0).standard_normal((12, width)).astype(np.float32)
        reference = reduce(ExchangeTensor(aligned(x)), 1).array
        assert reduce(ExchangeTensor(aligned(x, offset)), 1).array.tobytes() == reference.tobytes()
        assert driver.launches[-1].name.decode().endswith(f"_v{vector}")

    def test_nothing(self, driver: StubDriver, library: GpuLibrary):
        empty, out = ExchangeTensor(aligned(np.zeros((3, 0, 2), np.float32))), np.full((3, 2), 7, np.float32)
        assert (opened(driver, library)(empty, 1, ExchangeTensor(aligned(out))).array == 0).all()
        assert np.isnan(opened(driver, library, "mean")(empty, 1).array).all()
        with pytest.raises(ShapeError, match="no element to take the maximum of"):
            opened(driver, library, "max")(empty, 1)
        count = len(driver.launches)
        assert opened(driver, library, "max")(empty, 0).shape == (0, 2) and len(driver.launches) == count

    def test_a_stream_has_its_workspace_once(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = opened(driver, library), whole_numbers(300_001)
        given = ExchangeTensor(aligned(x))
        for stream in (0, 64, 64, 0):
            assert reduce(given, stream=stream).array == x.sum()
        allocated = [tensor.array.nbytes for tensor in ExchangeTensor.allocated]
        assert allocated.count(library.manifest.workspace_bytes) == 2
        assert [launch.stream for launch in driver.launches] == [None, None, 64, 64, 64, 64, None, None]
        assert driver.calls.stub_uncapturable() == 0

    def test_a_lent_workspace(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = opened(driver, library), whole_numbers(300_001)
        lent, out = (
            ExchangeTensor(aligned(np.zeros(4096, np.float32))),
            ExchangeTensor(aligned(np.zeros((), np.float32))),
        )
        assert reduce(ExchangeTensor(aligned(x)), None, out, workspace=lent).array == x.sum()
        assert lent.array.any() and not ExchangeTensor.allocated
        with pytest.raises(OperandError, match="needs a workspace of"):
            reduce(ExchangeTensor(aligned(x)), None, out, workspace=ExchangeTensor(aligned(np.zeros(1, np.float32))))

    def test_the_context_is_left_as_it_was(self, driver: StubDriver, library: GpuLibrary):
        reduce = opened(driver, library)
        pushes = driver.calls.stub_context_pushes()
        reduce(ExchangeTensor(aligned(whole_numbers(4, 4))), 1)
        assert driver.calls.stub_context_pushes() == pushes + 1
        current = ctypes.c_void_p(1)
        driver.calls.cuCtxGetCurrent(ctypes.byref(current))
        assert not current.value

    def test_a_failed_launch_is_told(self, driver: StubDriver, library: GpuLibrary):
        reduce = opened(driver, library)
        before = driver.calls.stub_context_pushes()
        for name in ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"):
            driver.fail(name, 719)
            with pytest.raises(DeviceError, match="could not be computed: CUDA_ERROR_STUB: as the stub was told"):
                reduce(ExchangeTensor(aligned(whole_numbers(4, 4))), 1)
        assert driver.calls.stub_context_pushes() == before + 2
        driver.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))  # what failed to be left


def address(launch: Launch, place: int) -> int:
    """A pointer among the parameters of a launch, while it runs."""
    return ctypes.c_void_p.from_address(launch.parameters[place]).value or 0


def tensor(*shape: int, kind: Any = ExchangeTensor) -> Any:
    return kind(aligned(np.zeros(shape, np.float32)))


class Described:
    """Of a rank that NumPy has not."""

    def __init__(self, *shape: int) -> None:
        self.array = np.zeros(1, np.float32)
        self.__cuda_array_interface__ = InterfaceTensor(self.array).__cuda_array_interface__ | {"shape": shape}


@a_compiler
@an_nvrtc
class TestDoor:
    def test_a_call_is_one_native_call(self, driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch):
        """No other function of the door, and nothing that describes an operand in Python."""
        reduce, native = GpuReduce(library, 0), []
        x, y, out = tensor(300_001), tensor(8, 40), tensor(8)
        reduce(x, None, tensor())
        driver.calls.stub_reset()

        def counted(*given: Any) -> int:
            native.append(given)
            return int(call(*given))

        def unexpected(*given: Any) -> None:
            raise AssertionError(given)

        call = reduce._reduce
        monkeypatch.setattr(reduce, "_reduce", counted)
        for name in [name for name in vars(reduce._door.calls) if name.startswith("vx_")]:
            monkeypatch.setattr(reduce._door.calls, name, unexpected)
        for name in ("describe", "normalized_axes", "empty"):
            monkeypatch.setattr(gpu_reduction_launcher, name, unexpected)
        for given in ((x, None, tensor()), (y, 1, out), (y, (-1,), out)):
            assert reduce(*given) is given[2]
        assert reduce(x, 0, tensor(1), keepdims=True).array.shape == (1,)
        assert len(native) == 4 and driver.calls.stub_launch_count() == 2 + 1 + 1 + 2

    def test_sweeps_go_through_the_workspace_one_after_the_other(self, driver: StubDriver, library: GpuLibrary):
        """Each reads what the one before has written, in places of whole multiples of 256 bytes."""
        reduce, found = GpuReduce(library, 0), []
        driver.on_launch(lambda launch: found.append((address(launch, 0), address(launch, 1))))
        x, out, lent = tensor(3, 5, 700, 5, 3), tensor(5, 5), tensor(1 << 16)
        reduce(x, (0, 2, 4), out, workspace=lent)
        sweeps, room = reduce.plan(x.shape, (0, 2, 4)).sweeps, lent.array.ctypes.data
        assert len(sweeps) == len(found) >= 3 and found[0][0] == x.array.ctypes.data
        assert found[-1][1] == out.array.ctypes.data
        assert [read for read, _ in found[1:]] == [written for _, written in found[:-1]]
        for (_, written), sweep in zip(found[:-1], sweeps, strict=False):
            assert written == room
            room += -(-ITEM * sweep.outputs // 256) * 256
        need = room - lent.array.ctypes.data
        exact = ExchangeTensor(lent.array[: need // ITEM])
        reduce(x, (0, 2, 4), out, workspace=exact)
        with pytest.raises(OperandError, match=f"needs a workspace of {need} bytes"):
            reduce(x, (0, 2, 4), out, workspace=ExchangeTensor(exact.array[:-1]))

    def test_the_last_sweep_divides_a_mean(self, driver: StubDriver, library: GpuLibrary):
        scales: list[float] = []
        driver.on_launch(lambda launch: scales.append(ctypes.c_float.from_address(launch.parameters[7]).value))
        for kind, last in (("mean", np.float32(1 / 21)), ("sum", 1), ("max", 1)):
            reduce = GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)
            scales.clear()
            reduce(tensor(3, 5, 7), (0, 2), workspace=tensor(4096))
            assert scales == [1, last]

    def test_nothing_is_one_sweep_without_a_depth(self, driver: StubDriver, library: GpuLibrary):
        found: list[tuple[int, ...]] = []

        def look(launch: Launch) -> None:
            extents = tuple(ctypes.c_int64.from_address(launch.parameters[place]).value for place in range(2, 7))
            found.append((*extents, *launch.grid))

        driver.on_launch(look)
        for kind in ("sum", "mean"):
            GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)(tensor(300, 0, 20, 0, 2), (1, 3))
        plan = ReduceSelector.from_json(library.manifest.selector).choose((12_000, 1, 1), 0)
        assert found == [(12_000, 0, 1, 1, 1, plan.sweeps[0].blocks, 1, 1)] * 2
        assert GpuReduce(library, 0)(tensor(0, 1 << 15, 4), (0, 1)).shape == (4,)
        count = len(driver.launches)
        for shape, axis in (((0, 4), 1), ((4, 0, 3), (0, 2)), ((0,), ())):
            GpuReduce(of_kind(library, "max"), 0)(tensor(*shape), axis)
        assert len(driver.launches) == count

    def test_strides_that_say_nothing_and_those_that_do(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = GpuReduce(library, 0), aligned(np.zeros(64, np.float32))

        def strided(shape: tuple[int, ...], *steps: int) -> Any:
            return ExchangeTensor(np.lib.stride_tricks.as_strided(x, shape, [ITEM * step for step in steps]))

        dense = (((3, 4), (4, 1)), ((3, 1, 4), (4, 77, 1)), ((1, 4), (-9, 1)), ((0, 4), (9, 9)), ((), ()))
        for shape, steps in dense:
            reduce(strided(shape, *steps), None, tensor())
            reduce(tensor(*shape, 2), -1, strided(shape, *steps))
        odd = (((3, 4), (1, 3)), ((3, 4), (8, 1)), ((2,), (-1,)), ((2, 2), (0, 1)), ((2, 2, 2), (4, 1, 2)))
        for shape, steps in odd:
            with pytest.raises(ShapeError, match=r"x .* is not contiguous; given .*; make a contiguous copy"):
                reduce(strided(shape, *steps), None, tensor())
            with pytest.raises(ShapeError, match=r"out .* is not contiguous"):
                reduce(tensor(*shape, 2), -1, strided(shape, *steps))

    def test_as_many_axes_as_there_are_bits(self, driver: StubDriver, library: GpuLibrary):
        reduce, lent = GpuReduce(library, 0), tensor(1 << 14, kind=InterfaceTensor)
        most = Described(*(1,) * MOST_RANK)
        reduce(most, tuple(range(0, MOST_RANK, 2)), Described(*(1,) * 32), workspace=lent)
        assert len(driver.launches) == 32
        reduce(most, -MOST_RANK, Described(*(1,) * MOST_RANK), keepdims=True)
        assert len(driver.launches) == 33
        more = Described(*(1,) * (MOST_RANK + 1))
        for axis, out in ((None, Described()), (0, Described(*(1,) * MOST_RANK))):
            with pytest.raises(ShapeError, match=r"x \(Described\) has too many axes; .*reshape it to at most 64"):
                reduce(more, axis, out)
        with pytest.raises(ShapeError, match="out is Described; expected shape"):
            reduce(most, 0, more)
        for asked in (reduce.plan, reduce.predict, reduce.explain):
            with pytest.raises(ShapeError, match="has too many axes; reshape it to at most 64"):
                asked((1,) * 65, 0)
        assert len(driver.launches) == 33

    def test_calls_go_to_the_current_stream_or_the_given_one(self, driver: StubDriver, library: GpuLibrary):
        class Stream:
            cuda_stream = 456

        reduce, x, out = GpuReduce(library, 0), tensor(300_001), tensor()
        ExchangeTensor.stream = 123
        for stream in (None, 5, Stream(), None):
            reduce(x, None, out, stream=stream)
        reduce(InterfaceTensor(x.array, stream=31), None, out, workspace=tensor(4096))
        assert [launch.stream for launch in driver.launches] == [
            each for stream in (123, 5, 456, 123, 31) for each in (stream, stream)
        ]
        assert len(ExchangeTensor.allocated) == 3, "a workspace for each stream, kept"

    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    @pytest.mark.parametrize(("shape", "axis"), [((8, 40), 1), ((300_001,), None), ((4, 6, 8), (0, 2))])
    def test_a_graph_can_capture_a_call(
        self, driver: StubDriver, library: GpuLibrary, shape: tuple[int, ...], axis: Any, kind: Any
    ):
        """The driver is not asked for memory, nor to wait, and all that is queued is on the one stream."""
        reduce = GpuReduce(library, 0)
        x, lent = tensor(*shape, kind=kind), tensor(4096)
        out = kind(aligned(np.asarray(np.sum(x.array, axis))))
        for workspace in (lent, lent) if kind is not ExchangeTensor else (None, lent):
            reduce(x, axis, out, stream=77, workspace=workspace)
        assert driver.calls.stub_uncapturable() == 0
        assert [launch.stream for launch in driver.launches] == [77] * 2 * len(reduce.plan(shape, axis).sweeps)

    def test_a_lent_workspace_is_for_its_call_alone(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, lent, used = GpuReduce(library, 0), tensor(300_001), tensor(4096), []
        driver.on_launch(lambda launch: used.append(address(launch, 1)))
        for workspace in (lent, None, lent, None):
            reduce(x, workspace=workspace, stream=9)
        first = lent.array.ctypes.data
        assert used[::4] == [first, first] and used[2] == used[6] != first

    def test_the_interpreter_is_let_go_while_a_call_launches(
        self, driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch
    ):
        told: list[str] = []
        save = ctypes.PYFUNCTYPE(ctypes.c_void_p)(lambda: told.append("save") or 7)
        restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda thread: told.append(f"restore {thread}"))
        addresses = tuple(ctypes.cast(function, ctypes.c_void_p) for function in (save, restore))
        monkeypatch.setattr(gpu_opened, "python_threads", lambda: addresses)
        reduce = GpuReduce(library, 0)
        driver.on_launch(lambda launch: told.append("launch"))
        reduce(tensor(300_001), None, tensor(), workspace=tensor(4096))
        driver.fail("cuLaunchKernel", 719)
        with pytest.raises(DeviceError):
            reduce(tensor(4, 4), 1, tensor(4))
        assert told == ["save", "launch", "launch", "restore 7", "save", "restore 7"]
        reduce(tensor(0, 4), 1, tensor(0))
        assert len(told) == 6, "nothing is launched"

    def test_threads_on_one_stream_do_not_mix_their_sweeps(self, driver: StubDriver, library: GpuLibrary):
        """What one call writes to the workspace is read before another call writes there."""
        reduce, x = GpuReduce(library, 0), tensor(300_001)
        outs = [tensor() for _ in range(8)]
        seen: list[tuple[int, int, int]] = []

        def look(launch: Launch) -> None:
            seen.append((threading.get_ident(), address(launch, 0), address(launch, 1)))
            time.sleep(1e-4)  # others may come between

        reduce(x, None, tensor(), stream=64)
        driver.on_launch(look)
        with ThreadPoolExecutor(len(outs)) as pool:
            calls = [pool.submit(reduce, x, None, out, stream=64) for _ in range(10) for out in outs]
            assert all(call.result() is out for call, out in zip(calls, 10 * outs, strict=True))
        assert len({thread for thread, _, _ in seen}) > 1 and len(seen) == 160
        for (one, source, room), (other, again, _) in zip(seen[::2], seen[1::2], strict=True):
            assert one == other and room == again and source == x.array.ctypes.data
        written = [out for _, _, out in seen[1::2]]
        assert all(written.count(out.array.ctypes.data) == 10 for out in outs)
        assert driver.calls.stub_uncapturable() == 0

    def test_closing_unloads(self, driver: StubDriver, library: GpuLibrary):
        def live() -> tuple[int, int]:
            return driver.calls.stub_live_modules(), driver.calls.stub_live_contexts()

        before = live()
        reduce = GpuReduce(library, 0)
        assert live() == (before[0] + len(library.cubins), before[1] + 1)
        del reduce
        assert live() == before

    def test_parameters_unknown_here(self, driver: StubDriver, library: GpuLibrary):
        first, *others = library.manifest.entries
        manifest = replace(library.manifest, entries=(replace(first, args=("*X", "alpha")), *others))
        with pytest.raises(LibraryError, match=r"takes \('\*X', 'alpha'\), unknown here; compile it again"):
            GpuReduce(replace(library, manifest=manifest), 0)


@a_compiler
@an_nvrtc
class TestRefusals:
    def test_bad_operands(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = GpuReduce(library, 0), whole_numbers(4, 8)
        on_device = ExchangeTensor(aligned(x))

        def out(*shape: int, dtype: Any = np.float32) -> ExchangeTensor:
            return ExchangeTensor(aligned(np.zeros(shape, dtype)))

        cases: Sequence[tuple[tuple[Any, ...], type[VortexError], str]] = (
            (([1.0, 2.0],), OperandError, "x is a list"),
            ((x,), DeviceError, "x .*not in the memory of a CUDA device; copy it"),
            ((on_device, 1, np.zeros(4, np.float32)), DeviceError, "out .*not in the memory"),
            ((ExchangeTensor(x, 3),), DeviceError, r"on another device \(3\)"),
            ((ExchangeTensor(x.astype(np.float16)),), DtypeError, "float32"),
            ((on_device, 1, out(4, dtype=np.float64)), DtypeError, "out"),
            ((on_device, 2), ShapeError, "axis=2"),
            ((on_device, (0, 0)), ShapeError, "twice"),
            ((on_device, 2, out(4)), ShapeError, "axis=2"),
            ((on_device, (0, -2), out(8)), ShapeError, "twice"),
            ((on_device, "1", out(4)), ShapeError, "axis='1'"),
            ((on_device, 1, ExchangeTensor(out(8).array[::2])), ShapeError, "out .* is not contiguous"),
            ((on_device, 0, out(4)), ShapeError, r"expected shape \(8,\)"),
            ((ExchangeTensor(aligned(x).T), 0), ShapeError, "contiguous copy"),
            ((ExchangeTensor(aligned(x)[:, ::2]), 0), ShapeError, "not contiguous"),
            ((on_device, 0, ExchangeTensor(on_device.array[1])), OperandError, "overlaps"),
            ((ExchangeTensor(aligned(x), shift=2),), OperandError, "aligned"),
            (
                (InterfaceTensor(x), 0, InterfaceTensor(np.zeros(8, np.float32), read_only=True)),
                OperandError,
                "read-only",
            ),
        )
        for given, error, told in cases:
            with pytest.raises(error, match=told):
                reduce(*given)
        with pytest.raises(OperandError, match="stream is a str"):
            reduce(on_device, stream="mine")
        for shape in ((4,), (1, 4), (4, 1, 1)):
            with pytest.raises(ShapeError, match=r"expected shape \(4, 1\) for x .*, axis=1"):
                reduce(on_device, 1, out(*shape), keepdims=True)
        assert not driver.launches

    def test_a_bad_workspace(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, out = GpuReduce(library, 0), tensor(300_001), tensor()
        lent = np.zeros(4096, np.float32)
        cases: Sequence[tuple[Any, type[VortexError], str]] = (
            (lent, DeviceError, "workspace .* is not in the memory of a CUDA device"),
            (ExchangeTensor(aligned(lent), 3), DeviceError, r"workspace .* on another device \(3\)"),
            (ExchangeTensor(aligned(lent, 4)), OperandError, "multiple of 16"),
            (ExchangeTensor(aligned(lent[:1])), OperandError, "x .* needs a workspace of .* bytes"),
            (ExchangeTensor(lent[:0]), OperandError, "x .* needs a workspace of .* bytes"),
            ("mine", OperandError, "workspace is a str"),
        )
        for stream in (1, 2):  # the second has one of its own, which is no substitute
            for workspace, error, told in cases:
                with pytest.raises(error, match=told):
                    reduce(x, None, out, stream=stream, workspace=workspace)
            reduce(x, None, out, stream=2)
        with pytest.raises(OperandError, match="cannot say how to allocate"):
            reduce(DLPackTensor(x.array), None, DLPackTensor(out.array), stream=3)
        assert len(driver.launches) == 4

    def test_extents_past_every_grid(self, driver: StubDriver, library: GpuLibrary):
        """Nothing here is read: only its description counts."""
        reduce, item = GpuReduce(library, 0), np.zeros(1, np.float32)

        def endless(*shape: int, shift: int = 0) -> Any:
            steps = [int(ITEM * np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
            return ExchangeTensor(np.lib.stride_tricks.as_strided(item, shape, steps), shift=shift)

        with pytest.raises(ShapeError, match=r"x .* is served by no tile of the library; .*reduce parts of it"):
            reduce(endless(1 << 39, 1), 1, endless(1 << 39, shift=1 << 45))
        with pytest.raises(ShapeError, match=r"x .* has too many elements; .*reduce parts of fewer"):
            reduce(endless(1 << 20, 1 << 20), 1, endless(1 << 20, shift=1 << 45))
        assert not driver.launches
        reduce(endless(1 << 36, 4), 1, endless(1 << 36, shift=1 << 45))
        assert len(driver.launches) == 1

    def test_a_framework_that_cannot_describe_its_tensor(self, driver: StubDriver, library: GpuLibrary):
        class Sparse(ExchangeTensor):
            pass

        reduce = GpuReduce(library, 0)
        Sparse.__dlpack_c_exchange_api__ = gpu_doubles.refusing_exchange(driver)  # type: ignore[attr-defined]
        x, out = Sparse(np.zeros((2, 2), np.float32)), Sparse(np.zeros(2, np.float32))
        for _ in range(2):
            with pytest.raises(DtypeError, match=r"cannot be read .sparse.; given x Sparse"):
                reduce(x, 1, out)

    def test_too_many_streams(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, out = GpuReduce(with_room(library, 1 << 12), 0), tensor(300_001), tensor()
        for stream in range(256):
            reduce(x, None, out, stream=stream + 1)
        with pytest.raises(OperandError, match="one stream too many"):
            reduce(x, None, out, stream=257)
        count = len(driver.launches)
        reduce(x, None, out, stream=257, workspace=tensor(4096))
        reduce(tensor(4, 8), 1, stream=258)
        assert len(driver.launches) == count + 3

    def test_gradients(self, driver: StubDriver, library: GpuLibrary):
        class Parameter(ExchangeTensor):
            requires_grad = True  # type: ignore[assignment]

        with pytest.raises(OperandError, match="requires grad"):
            GpuReduce(library, 0)(Parameter(aligned(whole_numbers(2, 2))))

    def test_another_architecture(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(major=9)
        with pytest.raises(DeviceError, match="jit=True"):
            GpuReduce(library, 0)
        assert GpuReduce(library, 0, jit=True).code.endswith("translated by the driver")


@a_compiler
@an_nvrtc
class TestLibrary:
    def test_it_is_known_for_what_it_is(self, library: GpuLibrary, tmp_path: Path):
        reduce = vortex.load(self.saved(library, tmp_path))
        assert isinstance(reduce, GpuReduce) and repr(reduce).startswith("<vortex reduce sum for a100")
        assert set(library.parts) == {DOOR, *library.cubins, *(name.replace("cubin", "ptx") for name in library.cubins)}
        assert len(library.manifest.entries) == 2 * len(reduce.strategies)

    @staticmethod
    def saved(library: GpuLibrary, folder: Path) -> Path:
        GpuReduce(library).save(folder / "sum.vortex")
        return folder / "sum.vortex"

    def test_plans_tell_why(self, library: GpuLibrary):
        reduce = GpuReduce(library)
        told = reduce.explain((8, 512, 768), (0, 2))
        assert isinstance(told.plan, GpuReducePlan) and told.plan == reduce.plan((8, 512, 768), (0, 2))
        assert told.plan.seconds == reduce.predict((8, 512, 768), (0, 2))
        assert 0 < reduce.time_selection((8, 512, 768), (0, 2), repeats=10) < 1e-3
        assert all(costs["total"] >= told.terms["total"] for _, costs in told.rivals)
        text = str(told)
        assert all(word in text for word in ("GB/s predicted", "runners-up", "FilterByVariety", "computed"))
        with pytest.raises(ShapeError, match="axis=3"):
            reduce.plan((8, 512, 768), 3)
        with pytest.raises(ShapeError, match="shape="):
            reduce.predict((-1,))

    def test_it_says_what_is_missing_where_no_device_is(self, library: GpuLibrary, tmp_path: Path):
        program = (
            "import sys, vortex\n"
            "reduce = vortex.load(sys.argv[1])\n"
            "assert reduce.predict((512, 768), 1) > 0\n"
            "assert not {'tvm', 'pydantic', 'torch'} & set(sys.modules)\n"
            "try: reduce([1.0])\n"
            "except vortex.errors.DeviceError as error: print(error)\n"
        )
        told = gpu_doubles.in_child(program, str(self.saved(library, tmp_path)))
        assert "runs on no device" in told
