"""Reductions on GPUs: sieve, machine code, kernels in the emulator, the choice, and calls through a fake driver."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import emulator
import gpu_doubles
import numpy as np
import pytest
from gpu_doubles import DLPackTensor, ExchangeTensor, InterfaceTensor, Launch, StubDriver, aligned
from needs import a_compiler, an_emulator
from products import MAP_NORESERVE, machine_code
from test_codegen_cuda import an_nvrtc, disassembled

import vortex
from vortex import gpu_reduction_compiler
from vortex.codegen import cuda_reduction, gpu_reduction_link
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.nvrtc import Compiled
from vortex.errors import CodegenError, DeviceError, DtypeError, LibraryError, OperandError, ShapeError, VortexError
from vortex.gpu_library import DOOR, GpuLibrary, read, verify
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
from vortex.gpu_reduction_launcher import GpuReduce, is_dense, laid_out
from vortex.gpu_reduction_native import NativeSelector
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
def chosen_from(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReduceSelector, NativeSelector]:
    """The tiles that a library for this device has."""
    spec: Any = load_spec(HW)
    blocks = sieve(decompose(Reduce(), spec)).blocks
    mirror = selector_of(spec, blocks, [40] * len(blocks))
    code = gpu_reduction_link.build(mirror, tmp_path_factory.mktemp("native"))
    return mirror, NativeSelector(code, mirror.blocks)


@a_compiler
class TestNativeSelector:
    def test_it_chooses_what_its_mirror_does(self, chosen_from: tuple[ReduceSelector, NativeSelector]):
        """To the bit, with and without room for chunks, of operands in DRAM and in L2."""
        mirror, native = chosen_from
        for place, view in enumerate(views(20_000, seed=2)):
            how = view, 0 if place % 7 == 0 else ROOM >> 4 * (place % 3), place % 5 == 0
            assert native.choose(*how) == mirror.choose(*how), how

    def test_a_choice_takes_microseconds(self, chosen_from: tuple[ReduceSelector, NativeSelector]):
        """Generously: the machine is shared."""
        for view in views(100, seed=3):
            assert min(chosen_from[1].time_selection(view, ROOM, False, 100) for _ in range(3)) < 20e-6

    def test_a_view_beyond_every_grid_is_refused(self, chosen_from: tuple[ReduceSelector, NativeSelector]):
        with pytest.raises(ShapeError, match="no tile"):
            chosen_from[1].choose((1 << 39, 1, 1), ROOM)

    def test_other_host_code_is_refused(self):
        with pytest.raises(LibraryError, match="compile it again"):
            NativeSelector(b"", BLOCKS)


def test_memory_of_results_that_are_read_again():
    sweep = Sweep(0, BLOCKS[0], 5, 100, 1, 50, 2, False)
    assert laid_out([sweep]) == ((None,), 0)
    assert laid_out([replace(sweep, outer=65), sweep, sweep]) == ((0, 768, None), 1024)


def test_what_is_dense():
    assert (
        is_dense((3, 4), (4, 1)) and is_dense((3, 1, 4), (4, 77, 1)) and is_dense((0, 4), (9, 9)) and is_dense((), ())
    )
    assert not is_dense((3, 4), (1, 3)) and not is_dense((3, 4), (8, 1)) and not is_dense((2,), (-1,))


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
        driver.fail("cuLaunchKernel", 719)
        with pytest.raises(DeviceError, match="cuLaunchKernel"):
            reduce(ExchangeTensor(aligned(whole_numbers(4, 4))), 1)


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
        assert not driver.launches

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
