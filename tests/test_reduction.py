"""Sums, maxima and means over axes of any tensor, against NumPy and float64."""

import itertools
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vortex
from vortex import operators as ops
from vortex import specs
from vortex.errors import DeviceError, DtypeError, LibraryError, OperandError, ShapeError, UnknownNameError
from vortex.operators import rebuilt
from vortex.operators import settings as fields
from vortex.reduction import KINDS, Reduce, neighbours, normalized_axes
from vortex.reduction_compiler import computed, grain_bytes
from vortex.reduction_launcher import ReduceKernel
from vortex.reduction_tiles import Family, best_chain, choose_rows, sieve
from vortex.rkernel import Loop, decompose

EPSILON = float(np.finfo(np.float32).eps)
NUMPY = {"sum": np.sum, "max": np.max, "mean": np.mean}
EXTENTS = st.one_of(st.integers(0, 5), st.sampled_from((1, 7, 15, 16, 17, 31, 127, 128, 129)))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReduceKernel]:
    """One library of each kind, through a file."""
    folder = tmp_path_factory.mktemp("reduce")
    found = {}
    for kind in KINDS:
        vortex.compile(Reduce(kind), hw="native", cache=False).save(folder / f"{kind}.vortex")
        found[kind] = vortex.load(folder / f"{kind}.vortex")
    return found


def exact(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small whole numbers: sums of them have one value in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


class TestOperator:
    def test_every_setting_comes_back(self):
        for kind in KINDS:
            assert rebuilt("reduce", fields(Reduce(kind))) == Reduce(kind)
        assert ops.named("reduce") == ops.Reduce("sum")

    def test_unknown_kinds_and_dtypes_are_refused(self):
        with pytest.raises(UnknownNameError, match=r"'product'.*'sum', 'max', 'mean'"):
            Reduce("product")  # type: ignore[arg-type]
        with pytest.raises(DtypeError, match=r"float16.*float32"):
            Reduce(dtype="float16")  # type: ignore[arg-type]

    def test_counts(self):
        tile = {"outer": 3, "depth": 5, "inner": 7}
        assert Reduce().flops(tile) == 105
        assert Reduce().bytes(tile) == 4 * (105 + 21)

    def test_reference(self):
        x = exact((3, 4, 5))
        for kind, axis in itertools.product(KINDS, (None, 0, (0, 2))):
            np.testing.assert_allclose(Reduce(kind).reference(x, axis), NUMPY[kind](x.astype(float), axis=axis))
        assert np.isnan(Reduce("mean").reference(np.zeros((0, 2)), 0)).all()

    def test_axes_are_counted_from_the_front(self):
        assert normalized_axes(None, 3) == (0, 1, 2)
        assert normalized_axes((-1, 0), 3) == (0, 2)
        assert neighbours((0, 1, 3)) == [(0, 2), (3, 4)]
        for wrong in (3, -4, "x", (0, 0), 0.5, (0, -3)):
            with pytest.raises(ShapeError, match="axis="):
                normalized_axes(wrong, 3)


@pytest.mark.parametrize("hw", ["epyc-zen5", "xeon-e5-2680v3"])
class TestSieve:
    def test_a_loop_set_of_its_own(self, hw: str):
        levels = decompose(Reduce(), specs.load_spec(hw)).levels
        assert [level.loop("depth") for level in levels] == [Loop.TEMPORAL_REDUCTION] * 2 + [Loop.PARALLEL]
        assert levels[0].loop("outer") is Loop.TEMPORAL_SPATIAL

    def test_tiles_fit_the_registers_and_hide_the_latency(self, hw: str):
        spec = specs.load_spec(hw)
        isa, found = spec.instruction("float32"), sieve(decompose(Reduce(), spec))
        assert {tile.family for tile in found.tiles} == set(Family)
        for tile in found.tiles:
            assert min(8, isa.issue_per_cycle * isa.latency_cycles) <= tile.rows * tile.vectors < isa.registers
        counts = [admitted.count for admitted in found.admitted]
        assert counts == sorted(counts, reverse=True) and counts[-1] == len(found.tiles)

    def test_short_rows_go_many_at_a_time_and_long_ones_alone(self, hw: str):
        spec = specs.load_spec(hw)
        lanes = spec.instruction("float32").lanes
        tiles = best_chain(computed(sieve(decompose(Reduce(), spec)).tiles, spec))
        assert tiles[choose_rows(tiles, 10_000, 4, 1, lanes)].tile.rows == lanes
        if lanes > 8:  # more streams than prefetchers follow
            assert tiles[choose_rows(tiles, 10_000, 1 << 14, 1, lanes)].tile.rows == 1
        assert tiles[choose_rows(tiles, lanes - 1, 4, 1, lanes)].tile.rows == 1
        assert tiles[choose_rows(tiles, 10_000, 4, 2, lanes)].tile.rows == 1
        assert grain_bytes(spec) > 0


@needs.a_compiler
class TestResults:
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_against_numpy(self, kernels: dict[str, ReduceKernel], data: st.DataObject):
        kind = data.draw(st.sampled_from(KINDS))
        extents = data.draw(st.lists(EXTENTS, max_size=4))
        while np.prod(extents) > 300_000:
            extents.pop()
        shape = tuple(extents)
        axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, max(0, len(shape) - 1)), max_size=len(shape))))
        axis = None if axes is None else tuple(axes)
        keepdims = data.draw(st.booleans())
        x = exact(shape)
        reduced = [shape[a] for a in (range(len(shape)) if axis is None else axis)]
        kept = [e for a, e in enumerate(shape) if axis is not None and a not in axis]
        if kind == "max" and 0 in reduced and 0 not in kept:
            with pytest.raises(ShapeError, match="maximum"):
                kernels[kind](x, axis, keepdims=keepdims)
            return
        found = kernels[kind](x, axis, keepdims=keepdims)
        if kind == "max" and 0 in reduced:
            assert found.size == 0
            return
        expected = Reduce(kind).reference(x, axis, keepdims)
        assert found.shape == np.shape(expected)
        # A mean over axes that are no neighbours is a mean of means, each rounded.
        np.testing.assert_allclose(found, expected, rtol=0, atol=3 * 8 * EPSILON if kind == "mean" else 0)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((70_001,), 0), ((3, 65_536), 1), ((2, 70_000, 3), 1), ((1100, 200), 0), ((40, 4103), 0), ((5, 9, 40_000), 2)],
    )
    def test_depths_that_are_cut_into_chunks(self, kernels: dict[str, ReduceKernel], kind: str, shape, axis: int):
        x = exact(shape)
        np.testing.assert_allclose(kernels[kind](x, axis), Reduce(kind).reference(x, axis), rtol=2 * EPSILON)

    def test_a_second_sweep_is_cut_too(self, kernels: dict[str, ReduceKernel]):
        """A row that repeats one element: a long depth in little memory."""
        depth = (1 << 29) + 12_345
        assert kernels["sum"](np.broadcast_to(np.float32(0.5), (depth,))) == np.float32(depth // 2)

    def test_sums_lose_little(self, kernels: dict[str, ReduceKernel]):
        """One chain of additions would lose a thousand times as much on this one."""
        x = np.random.default_rng(1).random((3_000_000, 1), np.float32)
        exactly = x.sum(dtype=np.float64)
        for view in (x, x.T):
            assert abs(kernels["sum"](view) - exactly) < 4 * EPSILON * exactly

    @pytest.mark.parametrize("kind", KINDS)
    def test_not_a_number_anywhere_wins(self, kernels: dict[str, ReduceKernel], kind: str):
        for shape, axis in (((20, 37), 1), ((37, 20), 0), ((3, 300), 1)):
            for place in range(shape[axis]):
                for bad in (np.float32(np.nan), -np.float32(np.nan)):
                    x = exact(shape)
                    x[(2, place) if axis else (place, 2)] = bad
                    found = kernels[kind](x, axis)
                    np.testing.assert_array_equal(np.isnan(found), np.isnan(NUMPY[kind](x, axis=axis)))

    @pytest.mark.parametrize("kind", KINDS)
    def test_infinities(self, kernels: dict[str, ReduceKernel], kind: str):
        x = exact((4, 33))
        x[0, 5], x[1, 7], x[2, 3], x[2, 30] = np.inf, -np.inf, np.inf, -np.inf
        x[3] = -np.inf
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isfinite(kernels[kind](x, 1)), np.isfinite(NUMPY[kind](x, axis=1)))
            np.testing.assert_allclose(kernels[kind](x, 1), NUMPY[kind](x, axis=1), rtol=1e-6)

    def test_nothing(self, kernels: dict[str, ReduceKernel]):
        empty = np.empty((3, 0, 2), np.float32)
        assert (kernels["sum"](empty, 1) == 0).all()
        assert np.isnan(kernels["mean"](empty, 1)).all()
        assert kernels["max"](empty, 0).shape == (0, 2)
        assert kernels["sum"](np.empty((0, 0), np.float32)) == 0
        with pytest.raises(ShapeError, match="maximum"):
            kernels["max"](empty, 1)

    def test_views(self, kernels: dict[str, ReduceKernel]):
        x = exact((40, 50, 60))
        views = (x[:, 3:, :], x[5:, :, 7:], x[::2], x.transpose(1, 0, 2), x.T, x[:, :, 3], x[0].T, x[3:4, :, ::60])
        for view in views:
            for axis in range(view.ndim):
                try:
                    found = kernels["sum"](view, axis)
                except ShapeError as refusal:
                    assert "contiguous copy" in str(refusal)
                    found = kernels["sum"](np.ascontiguousarray(view), axis)
                np.testing.assert_array_equal(found, view.sum(axis=axis))
        assert kernels["sum"](x[::3, 4, 5]) == x[::3, 4, 5].sum()
        frozen = x.copy()
        frozen.flags.writeable = False
        assert kernels["max"](frozen) == x.max()

    def test_torch(self, kernels: dict[str, ReduceKernel]):
        torch = pytest.importorskip("torch")
        x = torch.from_numpy(exact((6, 7, 8)))
        found = kernels["sum"](x, 1)
        assert isinstance(found, torch.Tensor) and torch.equal(found, x.sum(1))
        with pytest.raises(OperandError, match="detach"):
            kernels["sum"](torch.ones(3, requires_grad=True))

    @pytest.mark.parametrize("kind", ["sum", "mean"])
    def test_the_same_bits_on_any_number_of_threads(self, kernels: dict[str, ReduceKernel], kind: str):
        draw = np.random.default_rng(2)
        for shape, axis in (
            ((300_000,), 0),
            ((1000, 999), 1),
            ((100_003, 17), 1),
            ((999, 1000), 0),
            ((7, 3001, 40), 1),
            ((5, 90_000), 1),
        ):
            x = draw.random(shape, np.float32) - np.float32(0.5)
            results = []
            for threads in (1, 2, 3, 7):
                vortex.set_num_threads(threads)
                results.append(kernels[kind](x, axis))
            for other in results[1:]:
                np.testing.assert_array_equal(results[0].view(np.int32), other.view(np.int32))

    def test_out(self, kernels: dict[str, ReduceKernel]):
        x = exact((5, 6, 7))
        out = np.full((5, 7), np.nan, np.float32)
        assert kernels["sum"](x, 1, out) is out
        np.testing.assert_array_equal(out, x.sum(1))
        kept = np.empty((1, 6, 1), np.float32)
        np.testing.assert_array_equal(kernels["max"](x, (0, 2), kept, keepdims=True), x.max((0, 2), keepdims=True))

    def test_the_mirror_chooses_alike(self, kernels: dict[str, ReduceKernel]):
        kernel = kernels["sum"]
        draw = np.random.default_rng(3)
        for rows, depth in draw.integers(1, (1 << 16, 1 << 15), (2000, 2)) >> draw.integers(0, 14, (2000, 2)):
            rows, depth = max(1, int(rows)), max(1, int(depth))
            mirrored = choose_rows(kernel.strategies, rows, depth, 1, kernel.manifest.lanes)
            plan = kernel.plan((rows, depth), 1)
            sweep = plan.sweeps[0]
            if sweep.chunks == 1:
                assert sweep.index == mirrored and plan.tiles == (kernel.strategies[mirrored],)
            else:
                assert plan.tiles[0].tile.rows == 1


@needs.a_compiler
class TestPlans:
    @pytest.mark.parametrize(
        ("shape", "axis", "runs"),
        [
            ((70_001,), None, 1),
            ((3, 65_536), 1, 1),
            ((1100, 200), 0, 1),
            ((5, 9, 40), (0, 2), 2),
            ((4, 0), 1, 1),
            ((), None, 1),
        ],
    )
    @pytest.mark.parametrize("threads", [1, 3])
    def test_sweeps_go_over_everything(self, kernels: dict[str, ReduceKernel], shape, axis, runs: int, threads: int):
        plan = kernels["sum"].plan(shape, axis, threads=threads)
        whole = [at for at, sweep in enumerate(plan.sweeps) if sweep.chunks == 1]
        assert len(whole) == runs and whole[-1] == len(plan.sweeps) - 1  # the last of a run leaves results alone
        assert plan.sweeps[0].outer * plan.sweeps[0].depth * plan.sweeps[0].inner == np.prod(np.maximum(shape, 1))
        for sweep, then in itertools.pairwise(plan.sweeps):
            assert sweep.chunk * (sweep.chunks - 1) < sweep.depth <= sweep.chunk * sweep.chunks
            if sweep.chunks > 1:
                assert then.depth == sweep.chunks and then.outer * then.inner == sweep.outer * sweep.inner
        assert all(1 <= sweep.tasks <= sweep.items for sweep in plan.sweeps) and plan.workers <= threads

    def test_more_work_takes_longer_and_threads_share_it(self, kernels: dict[str, ReduceKernel]):
        kernel = kernels["sum"]
        for axis in (0, 1):
            small, large = (kernel.predict((rows, 1024), axis, threads=1) for rows in (1024, 4096))
            assert 3 * small < large
            assert kernel.plan((4096, 1024), axis, threads=2).workers == 2
            assert large / 2.1 < kernel.predict((4096, 1024), axis, threads=2) < large
        assert kernel.predict((4, 8), 1, threads=2) == kernel.predict((4, 8), 1, threads=1)

    def test_the_choice_is_the_cheapest(self, kernels: dict[str, ReduceKernel]):
        for shape in ((500, 768), (40_000, 3), (7, 20_000)):
            found = kernels["max"].explain(shape, 1, threads=1)
            assert found.rivals or shape[0] < 8  # which a tile of eight rows does not serve
            assert all(costs["combine"] >= found.terms["combine"] for _, costs in found.rivals)
            text = str(found)
            assert f"max of {shape[0]}x{shape[1]} over axes 1" in text and "GB/s predicted" in text
            assert ("loses in" in text) == bool(found.rivals) and "L0 FilterByISA" in text
        assert not kernels["max"].explain((500, 768), 0).rivals  # columns have one tile

    def test_selection_is_timed(self, kernels: dict[str, ReduceKernel]):
        assert 0 < kernels["sum"].time_selection((1000, 999), 1, repeats=2000) < 20e-6

    def test_what_is_no_shape_is_refused(self, kernels: dict[str, ReduceKernel]):
        for shape in ((3, -1), (3, 1.5), 7, (1 << 30, 1 << 30)):
            with pytest.raises(ShapeError, match="shape="):
                kernels["sum"].plan(shape)
        with pytest.raises(ShapeError, match="axis=2"):
            kernels["sum"].plan((3, 4), 2)


@needs.a_compiler
class TestRefusals:
    def test_bad_operands(self, kernels: dict[str, ReduceKernel]):
        x = exact((4, 5))
        run = kernels["sum"]
        for wrong, error, told in (
            (([1.0, 2.0],), OperandError, "expected a tensor"),
            ((x.astype(np.float64),), DtypeError, "float32"),
            ((x, 2), ShapeError, "axis=2"),
            ((x, 0, np.empty(4, np.float32)), ShapeError, r"expected shape \(5,\)"),
            ((x, 0, np.empty(5, np.float64)), DtypeError, "out"),
            ((x, 0, np.empty(10, np.float32)[::2]), ShapeError, "contiguous"),
            ((x, 0, x[1]), OperandError, "overlaps"),
            ((x[:, ::-1], 0), ShapeError, "strides"),
            ((np.zeros((4, 6), np.float32)[:, ::2], 0), ShapeError, "contiguous copy"),
            ((np.zeros(17, np.uint8)[1:].view(np.float32),), OperandError, "aligned"),
        ):
            with pytest.raises(error, match=told):
                run(*wrong)
        locked = np.empty(5, np.float32)
        locked.flags.writeable = False
        with pytest.raises(OperandError, match="read-only"):
            run(x, 0, locked)

    def test_another_machine(self, kernels: dict[str, ReduceKernel], tmp_path: Path):
        library = kernels["sum"].library
        foreign = replace(library, manifest=replace(library.manifest, features=("abacus",)))
        with pytest.raises(DeviceError, match="abacus"):
            ReduceKernel(foreign)
        with pytest.raises(LibraryError):
            ReduceKernel(replace(library, binary=b"none"))
