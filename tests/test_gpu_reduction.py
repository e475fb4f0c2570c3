"""Reductions on GPUs: sieve, machine code, kernels in the emulator, and the choice, in Python and in native code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import emulator
import numpy as np
import pytest
from needs import a_compiler, an_emulator
from products import MAP_NORESERVE, machine_code
from reductions import ARCH, HW, emitted, whole_numbers
from test_codegen_cuda import an_nvrtc, disassembled

from vortex import gpu_reduction_compiler, reduction_plan
from vortex.codegen import cuda_reduction, gpu_reduction_link
from vortex.codegen.nvrtc import Compiled
from vortex.errors import CodegenError, LibraryError, ShapeError
from vortex.gpu_library import GpuLibrary
from vortex.gpu_reduction import (
    CHAIN,
    ITEM,
    MOST_BLOCKS,
    NARROW,
    PIECE,
    STEPS,
    WIDE,
    ReduceBlock,
    ReduceSelector,
    Sweep,
)
from vortex.gpu_reduction_door import MOST_RANK, ReduceDoor
from vortex.gpu_reduction_sieve import initial_blocks, selector_of, sieve
from vortex.operators import Reduce
from vortex.reduction import KINDS
from vortex.reduction_tiles import Family
from vortex.rkernel import Loop, decompose
from vortex.specs import load_spec

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


@pytest.fixture(scope="module")
def library(reduction_library: GpuLibrary) -> GpuLibrary:
    return reduction_library


def swept(block: ReduceBlock, kind: str, vector: int, x: Any, parts: int = 1, scale: float = 1.0, **how: Any) -> Any:
    """One sweep in the emulator: [outer, chunks, inner]. Strides are those of `x`."""
    (text, kernel), (outer, depth, inner) = emitted(block, kind, vector), x.shape
    sweep = ReduceSelector((block,), (1,), RATES).cut(0, x.shape, parts, False)
    x = x.view()
    x.flags.writeable = False
    y = np.full((outer, sweep.chunks, inner), np.nan, np.float32)
    numbers = [np.int64(each) for each in (outer, depth, inner, *steps_of(x), sweep.chunk, sweep.chunks)]
    shape = (sweep.blocks,), kernel.block, kernel.shared_bytes
    emulator.run(text, kernel.symbol, *shape, [x, y, *numbers, scale], alignment=vector, **how)
    return y


def steps_of(x: Any) -> tuple[int, int]:
    """The strides that a kernel is told, in elements."""
    return x.strides[0] // ITEM, x.strides[1] // ITEM


def within(shape: tuple[int, int, int], room: tuple[int, int, int]) -> Any:
    """Whole numbers of a shape that lie in a larger tensor."""
    x = np.full(room, np.nan, np.float32)[: shape[0], : shape[1], : shape[2]]
    x[...] = whole_numbers(*shape)
    return x


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

    @pytest.mark.parametrize("vector", [WIDE, NARROW])
    @pytest.mark.parametrize("block", TILES)
    def test_operands_that_lie_in_larger_ones(self, block: ReduceBlock, vector: int):
        """Nothing between rows, columns and layers is looked at."""
        gap = vector // ITEM
        for outer, depth, inner in shapes_of(block, vector):
            room = (outer, depth + gap, 1) if inner == 1 else (outer, depth + 2, inner + gap)
            x = within((outer, depth, inner), room)
            assert (swept(block, "sum", vector, x)[:, 0] == x.sum(axis=1)).all()

    @pytest.mark.parametrize("block", TILES[:4])
    def test_rows_whose_elements_are_apart(self, block: ReduceBlock):
        for outer, depth, _ in shapes_of(block, NARROW):
            for x in (within((outer, depth, 1), (outer, depth, 3)), whole_numbers(depth, outer, 1).transpose(1, 0, 2)):
                for parts in (1, 2):
                    chunk = depth if parts == 1 else -(-depth // (parts * block.step)) * block.step
                    assert (swept(block, "sum", NARROW, x, parts) == chunked("sum", x, chunk)).all()

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
        numbers = [np.int64(each) for each in (3, depth, inner, *steps_of(x), chunk, 1)]
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
