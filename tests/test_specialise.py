"""Operators that know extents, and libraries whose rows have the same bits whatever m is."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from conftest import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from priced import found, selector
from test_words import ELEMENTS, hardware

import vortex
from vortex import operators as ops
from vortex.analyzer import (
    CLOSE_FILTERS,
    FILTERS,
    MOST_ARRIVING,
    MOST_OF_FILTERS,
    NARROW,
    analyze,
    arrives,
    choose_panel,
    cover,
    domain,
    families,
    in_numpy,
)
from vortex.axes import extents, fixed
from vortex.batch_launcher import BatchGemmKernel
from vortex.candidates import closure
from vortex.errors import OperandError, ShapeError
from vortex.fused import FusedGemm
from vortex.grouped_launcher import GroupedGemmKernel
from vortex.keys import cache_key, makers
from vortex.launcher import GemmKernel
from vortex.library import Library
from vortex.operators import BatchGemm, GroupedGemm
from vortex.plans import Grid, OperandB, Region, Shape
from vortex.problem import Problem
from vortex.selector import Selector, SlopeTable, problem
from vortex.shapes import shape_of
from vortex.sieve import invariant_in_m
from vortex.specialise import last_vectors, micro_kernels, specialised
from vortex.specs import load_spec
from vortex.stores import TURN_COLUMNS

RNG = np.random.default_rng(31)
MOST_M = 512
N, K = 100, 70
SOME_M = (1, 2, 3, 5, 7, 8, 13, 16, 17, 33, 64, 100, 129, 256, 511)
THIN, DEEP = (7, 300), (24, 9000)
"""(n, k) that an unrestricted library serves by dot products, and by splitting k."""


def test_noise_does_not_choose_the_width_of_panels_of_filters() -> None:
    """Tiles of every width are equally fast but for half a percent at random."""
    spec = load_spec("epyc-zen5")
    plain = [s for s in found(spec).strategies if not (s.stage.pack_a or s.stage.pack_b or s.stage.swap or s.stage.dot)]
    tallest = [s for s in plain if s.l0.m == max(t.l0.m for t in plain if t.l0.n == s.l0.n)]
    of = selector(spec, tallest)
    vectors, rows = np.indices(of.table.seconds.shape)
    filters = domain((64, 512), [OperandB.PACKED], {"n": FILTERS})

    def chosen(close: float) -> set[int]:
        widths = set()
        for seed in range(2):
            noise = np.random.default_rng(seed).uniform(1.0, 1.005, (len(vectors), 1))
            table = SlopeTable((vectors * rows * of.rates.multiply_add * noise).astype(np.float32))
            widths.add(choose_panel(of.rates, table, of.lanes, tallest, filters, None, close))
        return widths

    assert min(chosen(CLOSE_FILTERS)) >= 64 > min(chosen(0.0))


@pytest.mark.parametrize(("more", "expected"), [(1.0, 32), (1.001, 32), (1.004, 48)])
def test_of_panels_that_are_priced_alike_the_narrowest_is_taken(more: float, expected: int) -> None:
    of = selector(load_spec("epyc-zen5"), [s for s in found(load_spec("epyc-zen5")).strategies if s.l0.n in (32, 48)])
    shapes = domain((64, 512), [OperandB.PACKED], {})

    def price(priced: Selector, asked: Sequence[Problem]) -> np.ndarray:
        return np.full((len(asked), len(priced.strategies)), 1.0 if priced.panel == 48 else more, np.float32)

    assert choose_panel(of.rates, of.table, of.lanes, of.strategies, shapes, None, price=price) == expected


@pytest.mark.parametrize(
    ("name", "close", "widest"),
    [("epyc-zen3", 10.0, 16), ("epyc-zen4", 10.0, 64), ("epyc-zen3", 0.0, 16), ("epyc-zen4", 0.0, 48)],
)
def test_a_panel_comes_from_l2_in_a_part_of_the_arithmetic(name: str, close: float, widest: int) -> None:
    """However much better the wider ones are priced: their tiles are low, and read all of a panel for few rows."""
    spec = load_spec(name)
    of = selector(spec, [s for s in found(spec).strategies if s.stage.tiled])
    columns = domain((64, 512), [OperandB.PACKED], {"n": FILTERS})

    def price(priced: Selector, asked: Sequence[Problem]) -> np.ndarray:
        return np.full((len(asked), len(priced.strategies)), 1.0 / priced.panel, np.float32)

    chosen = choose_panel(of.rates, of.table, of.lanes, of.strategies, columns, None, close, price)
    low = {s.l0.n: s.l0.m for s in of.strategies if not s.stage.pack_b}
    assert chosen == widest and min(low) < widest < max(low)
    most = MOST_OF_FILTERS if close else MOST_ARRIVING
    assert chosen == NARROW * of.lanes or arrives(of.rates, of.table, low[chosen], chosen, of.lanes) <= most


@given(st.integers(1, 4000), st.sampled_from([(8, 1), (8, 4), (16, 1), (16, 3), (16, 9), (16, 13)]), st.integers(1, 3))
def test_a_fixed_width_finds_the_vectors_of_every_piece_of_its_rows(columns: int, tile: tuple[int, int], grid: int):
    """Blocks of L2 begin at register tiles; each row of one is cut where its first line begins and the last ends."""
    lanes, width = tile[0], tile[0] * tile[1]
    kept = last_vectors(columns, width, lanes)
    share = math.ceil(math.ceil(columns / width) / grid) * width
    for first in range(0, columns, share):
        last = min(first + share, columns)
        starts = range(16) if columns % 16 and last - first >= TURN_COLUMNS else ()
        cuts = [(first, head, (last - first - head) % 16) for head in starts]
        pieces = [(first, last)]
        for begin, head, tail in cuts:
            pieces += [(begin, begin + head), (begin + head, last - tail), (last - tail, last)]
        for begin, end in pieces:
            whole, rest = divmod(end - begin, width)
            assert (not whole or tile[1] in kept) and (not rest or -(-rest // lanes) in kept), (begin, end)


def test_a_family_for_few_shapes_has_its_place_and_one_for_none_has_not() -> None:
    """A thousand shapes: one that streaming serves a fifth faster, one that dot products serve by a twentieth."""
    strategies = found(load_spec("epyc-zen4")).strategies
    one, other = [s for s in strategies if s.stage.tiled][:2]
    dot, streamed = (next(s for s in strategies if getattr(s.stage, family)) for family in ("dot", "streamed"))
    loss = np.full((1000, 4), 3.0, np.float32)
    loss[:, 0], loss[::2, 1] = 1.01, 1.0
    loss[7] = 1.05, 3.0, 1.0, 3.0
    loss[8] = 1.2, 3.0, 3.0, 1.0
    first = families([one, other, dot, streamed], loss)
    assert first == [3]
    weights = np.ones(1000, np.float32)
    assert cover(loss, weights, 2) == [0, 1] and sorted(cover(loss, weights, 2, first)) == [0, 3]
    assert families([one, other], loss[:, :2]) == [] == families([dot, streamed], loss[:, 2:])


@pytest.mark.parametrize("name", ["epyc-zen5", "epyc-zen4", "epyc-zen3"])
@pytest.mark.parametrize("hints", [{"m": 100000, "n": 16, "k": 8}, {"m": 64, "n": 100, "k": 70}, {"m": 1, "n": 4096}])
def test_what_was_not_expected_is_served_too(name: str, hints: dict[str, int]) -> None:
    """Shapes that families beside the register tiles serve alone, if rows of A lie as they like: those take neither a
    transposed A nor a long k."""
    spec = load_spec(name)
    operator = ops.Gemm(**{axis: ops.often({extent: 1}) for axis, extent in hints.items()})
    lanes = spec.instruction("float32").lanes
    kept = specialised(operator, spec, found(spec), lanes, 16, lambda *_: in_numpy).strategies
    of = selector(spec, kept)
    chosen, shortlists, panel = analyze(kept, of.rates, of.table, lanes, 2, 16, extents(operator))
    assert set(chosen) <= set(kept) and len(set(chosen)) == len(chosen)
    library = replace(of, strategies=chosen, panel=panel, shortlists=shortlists)
    for b, a_is_col, (m, n, k) in itertools.product(OperandB, (False, True), ((5, 16, 1000), (200, 300, 400))):
        asked = problem(Shape(m, n, k, b, a_is_col=a_is_col), Grid(1, 1), 1, of.rates)
        assert library.totals([asked]).min() < 1.0, (b, a_is_col, m, n, k)


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


@pytest.fixture(scope="module")
def fixed_gemm() -> Iterator[GemmKernel]:
    """n and k fixed, and most calls expected to have a few rows."""
    yield compiled(ops.Gemm(n=N, k=K, m=ops.often({1: 3, 64: 1})))


@pytest.fixture(scope="module")
def invariant_gemm() -> Iterator[GemmKernel]:
    """Hints alone: any extents are served."""
    n, k = ops.often(dict.fromkeys((*(n for n, _ in (THIN, DEEP)), N), 1)), ops.often({K: 1, THIN[1]: 1})
    yield vortex.compile(ops.Gemm(m=ops.between(1, MOST_M), n=n, k=k), needs.few_register_tiles(), invariant="m")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def invariant_fused(request: pytest.FixtureRequest) -> FusedGemm:
    chain = ops.bias() >> ops.gelu() >> ops.scale(per="row") >> ops.residual()
    operator = ops.Gemm(request.param, chain, out_dtype="float32", n=DEEP[0], k=DEEP[1])
    spec = needs.few_register_tiles() if request.param == "float32" else hardware(request.param)
    kernel = vortex.compile(operator, spec, invariant="m")
    assert isinstance(kernel, FusedGemm)
    return kernel


def of(kernel: GemmKernel, operator: ops.BatchGemm | ops.GroupedGemm) -> Library:
    """The same machine code as another operator's."""
    changed = replace(kernel.manifest, operator=operator.name, settings=ops.settings(operator))
    return replace(kernel.library, manifest=changed)


class TestOperator:
    @pytest.mark.parametrize("extent", [0, -3, 1.5, True, "many", 1 << 40, {1: 2}])
    def test_what_is_no_extent_is_refused(self, extent: object) -> None:
        with pytest.raises(ShapeError, match=r"n=.*expected a whole number"):
            ops.Gemm(n=extent)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("make", "told"),
        [
            (lambda: ops.between(0, 4), "no extent"),
            (lambda: ops.between(9, 4), "smaller extent first"),
            (lambda: ops.often({}), "without extents"),
            (lambda: ops.often({4: 0.0}), "positive"),
            (lambda: ops.often({4: float("nan")}), "positive"),
            (lambda: ops.often({0: 1.0}), "no extent"),
        ],
    )
    def test_hints_that_say_nothing_are_refused(self, make: object, told: str) -> None:
        with pytest.raises(ShapeError, match=told):
            make()  # type: ignore[operator]

    def test_a_library_remembers_what_its_operator_knew(self) -> None:
        operator = ops.Gemm(n=2304, k=768, m=ops.often({1: 0.9, 128: 0.1}))
        assert ops.rebuilt("gemm", json.loads(json.dumps(ops.settings(operator)))) == operator
        assert fixed(operator) == {"n": 2304, "k": 768} and extents(operator)["m"] == operator.m
        assert fixed(ops.Gemm()) == {}

    def test_a_range_is_seen_by_order_of_magnitude(self) -> None:
        points = [extent for extent, _ in ops.between(1, 512).points]
        assert points == sorted(set(points)) and points[0] == 1 and points[-1] == 512 and len(points) > 6
        assert ops.between(5, 5).points == ((5, 1.0),)

    def test_known_extents_replace_the_lattice(self) -> None:
        known = extents(ops.Gemm(n=40, m=ops.often({1: 3, 64: 1})))
        over = domain((1, 10, 100), [OperandB.PLAIN], known)
        assert {(s.m, s.n, s.k) for s in over.shapes} == set(itertools.product((1, 64), (40,), (1, 10, 100)))
        assert {s.m: w for s, w in zip(over.shapes, over.weights, strict=True)} == {1: 3, 64: 1}

    def test_an_extent_past_the_domain_still_has_one(self) -> None:
        assert domain((100, 4096), [OperandB.PLAIN], extents(ops.Gemm(n=1 << 20, k=1 << 20))).shapes


class TestCandidates:
    def test_nothing_known_drops_nothing(self) -> None:
        spec = load_spec("epyc-zen5")
        assert specialised(ops.Gemm(), spec, found(spec), 16, 16, lambda *_: in_numpy) is found(spec)

    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 700), st.integers(1, 300), st.integers(1, 5))
    def test_every_residue_has_its_micro_kernel(self, n: int, m: int, grid_n: int) -> None:
        """The vectors of every piece that L2 cuts a fixed n into, each strategy for itself."""
        spec, lanes = load_spec("epyc-zen5"), 16
        for strategy in found(spec).strategies[::997]:
            width = strategy.l0.n
            columns = m if strategy.stage.swap else n
            needed = micro_kernels([strategy], lanes, {"n": n})
            assert needed <= closure([strategy], lanes)
            panels = math.ceil(columns / width)
            step = math.ceil(panels / grid_n) * width
            for first in range(0, columns, step):
                for at in range(first, min(first + step, columns), width):
                    wide = min(width, min(first + step, columns) - at)
                    assert (strategy.l0.m, -(-wide // lanes)) in needed

    def test_fewer_tiles_and_strategies_stay(self) -> None:
        spec = load_spec("epyc-zen5")
        all_of_them = found(spec)
        kept = specialised(ops.Gemm(n=2304, k=768), spec, all_of_them, 16, 16, lambda *_: in_numpy)
        assert len(kept.register_tiles) < 0.9 * len(all_of_them.register_tiles)
        assert set(kept.strategies) < set(all_of_them.strategies)
        assert kept.admitted[-1].filter == "KnownExtents"

    def test_an_invariant_library_has_no_dot_products(self) -> None:
        spec = load_spec("epyc-zen5")
        assert not any(strategy.stage.dot for strategy in invariant_in_m(found(spec)).strategies)


@needs.a_compiler
class TestFixed:
    def test_every_m_is_right(self, fixed_gemm: GemmKernel) -> None:
        """Inside the hint and outside of it, operands in every layout, on several threads."""
        b = integers(K, N)
        packed, turned = fixed_gemm.pack(b), np.ascontiguousarray(b.T)
        for m in (*range(1, 80), 127, 128, 500, 1031):
            a = integers(m, K)
            vortex.set_num_threads(1 + m % 3)
            left = np.ascontiguousarray(a.T)
            assert np.array_equal(fixed_gemm(a, b), a @ b), m
            assert np.array_equal(fixed_gemm(a, packed), a @ b), m
            assert np.array_equal(fixed_gemm(left, b, transpose_a=True), a @ b), m
            assert np.array_equal(fixed_gemm(left, turned, transpose_a=True, transpose_b=True), a @ b), m
            assert np.array_equal(fixed_gemm(a, turned, transpose_b=True), a @ b), m

    def test_every_plan_is_right(self, fixed_gemm: GemmKernel) -> None:
        a, b = integers(45, K), integers(K, N)
        for threads in (1, 3, 4):
            for plan in fixed_gemm.plans(45, N, K, threads=threads):
                assert np.array_equal(fixed_gemm.run(plan, a, b, np.empty((45, N), np.float32)), a @ b), plan

    @pytest.mark.parametrize(("n", "k", "name"), [(N + 1, K, "b"), (N, K - 1, "a"), (1, K, "b")])
    def test_another_extent_is_refused(self, fixed_gemm: GemmKernel, n: int, k: int, name: str) -> None:
        with pytest.raises(ShapeError, match=rf"^{name} .*another extent.*n={N}, k={K}.*compile the operator without"):
            fixed_gemm(reals(5, k), reals(k, n))

    def test_pack_and_plan_refuse_it_too(self, fixed_gemm: GemmKernel) -> None:
        for ask in (lambda: fixed_gemm.pack(reals(K, N + 16)), lambda: fixed_gemm.plan(5, N + 16, K)):
            with pytest.raises(ShapeError, match=f"n={N + 16}: this library is for n={N}, k={K} alone"):
                ask()

    def test_a_saved_library_still_refuses(self, fixed_gemm: GemmKernel, tmp_path: Path) -> None:
        fixed_gemm.save(tmp_path / "fixed.vortex")
        loaded = vortex.load(tmp_path / "fixed.vortex")
        assert np.array_equal(loaded(np.ones((3, K), "f4"), np.ones((K, N), "f4")), np.full((3, N), K, np.float32))
        with pytest.raises(ShapeError, match="another extent"):
            loaded(reals(3, K), reals(K, N + 1))

    def test_there_are_fewer_kernels(self, fixed_gemm: GemmKernel, gemm: GemmKernel) -> None:
        """But where there are few: the six strategies may call all that 16 registers hold."""
        kernels = [len(library.manifest.profile["kernels"]) for library in (fixed_gemm, gemm)]
        assert kernels[0] < kernels[1] or (kernels[0] == kernels[1] and gemm.manifest.rates.registers <= 16)
        assert len(fixed_gemm.strategies) < len(gemm.strategies)
        assert len(fixed_gemm.library.binary) < len(gemm.library.binary)


@needs.a_compiler
class TestInvariance:
    @pytest.mark.parametrize("layout", ["plain", "b transposed", "a transposed", "packed"])
    @pytest.mark.parametrize(("n", "k"), [(N, K), THIN, (1, 129), DEEP])
    def test_a_row_has_the_same_bits_for_every_m(self, invariant_gemm: GemmKernel, n: int, k: int, layout: str) -> None:
        a, b = reals(MOST_M, k), reals(k, n)
        right = invariant_gemm.pack(b) if layout == "packed" else b.T.copy() if layout == "b transposed" else b
        flags = {"transpose_a": layout == "a transposed", "transpose_b": layout == "b transposed"}
        whole = invariant_gemm(a.T.copy() if flags["transpose_a"] else a, right, **flags)
        for m in range(1, MOST_M + 1):
            vortex.set_num_threads(1 + m % 3)
            left = a[:m].T.copy() if flags["transpose_a"] else a[:m]
            assert np.array_equal(invariant_gemm(left, right, **flags), whole[:m]), m

    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
    @pytest.mark.parametrize(("n", "k"), [(N, K), THIN, DEEP])
    def test_batches_and_groups_as_well(self, invariant_gemm: GemmKernel, n: int, k: int, packed: bool) -> None:
        """Through the doors that every library of products has, beside a group of any height."""
        bmm, grouped = (
            BatchGemmKernel(of(invariant_gemm, BatchGemm())),
            GroupedGemmKernel(of(invariant_gemm, GroupedGemm())),
        )
        a, b = reals(2, MOST_M, k), reals(2, k, n)
        right, factors = (bmm.pack(b), grouped.pack(b)) if packed else (b, b)
        whole = bmm(a, right)
        for m in SOME_M:
            vortex.set_num_threads(1 + m % 3)
            assert np.array_equal(bmm(a[:, :m], right), whole[:, :m]), m
            beside = grouped(np.concatenate([a[0, :m], a[1]]), factors, [m, MOST_M])
            assert np.array_equal(beside, np.concatenate([whole[0, :m], whole[1]])), m

    @pytest.mark.parametrize("layout", ["plain", "b transposed", "packed"])
    def test_fused_and_narrow_products_as_well(self, invariant_fused: FusedGemm, layout: str) -> None:
        n, k = DEEP
        element = ELEMENTS.get(invariant_fused.manifest.dtype, np.float32)
        a, b = reals(MOST_M, k).astype(element), reals(k, n).astype(element)
        right = invariant_fused.pack(b) if layout == "packed" else b.T.copy() if layout == "b transposed" else b
        bias, scale, residual = reals(n), reals(MOST_M), reals(MOST_M, n)

        def rows(m: int) -> np.ndarray:
            extras = {"bias": bias, "scale": scale[:m], "residual": residual[:m]}
            return invariant_fused(a[:m], right, transpose_b=layout == "b transposed", **extras)

        whole = rows(MOST_M)
        for m in SOME_M:
            vortex.set_num_threads(1 + m % 3)
            assert np.array_equal(rows(m), whole[:m]), m

    def test_fused_and_narrow_products_refuse_another_extent(self, invariant_fused: FusedGemm) -> None:
        element = ELEMENTS.get(invariant_fused.manifest.dtype, np.float32)
        n, k = DEEP
        for columns, depth, name in [(n + 1, k, "b"), (n, k - 1, "a")]:
            a, b = reals(3, depth).astype(element), reals(depth, columns).astype(element)
            extras = {"bias": reals(columns), "scale": reals(3), "residual": reals(3, columns)}
            with pytest.raises(ShapeError, match=rf"^{name} .*another extent.*n={n}, k={k}"):
                invariant_fused(a, b, **extras)

    def test_layouts_agree_as_well(self, invariant_gemm: GemmKernel) -> None:
        a, b = reals(9, 400), reals(400, 5)
        first = invariant_gemm(a, b)
        assert np.array_equal(first, invariant_gemm(a, b.T.copy(), transpose_b=True))
        assert np.array_equal(first, invariant_gemm(a.T.copy(), b, transpose_a=True))
        assert np.array_equal(first, invariant_gemm(a, invariant_gemm.pack(b)))

    def test_a_free_library_is_not_invariant(self, gemm: GemmKernel) -> None:
        """Else the test above would prove nothing."""
        n, k = 64, 500
        a, b = reals(MOST_M, k), reals(n, k)
        whole = gemm(a, b, transpose_b=True)
        assert any(not np.array_equal(gemm(a[:m], b, transpose_b=True), whole[:m]) for m in range(1, 16))

    def test_explain_prints_what_it_costs(self, invariant_gemm: GemmKernel, gemm: GemmKernel) -> None:
        explained = invariant_gemm.explain(64, 1, 4000, threads=1)
        assert explained.free is not None and explained.free.strategy.stage.dot
        ratio = explained.plan.seconds / explained.free.seconds
        assert ratio > 1 and f"invariant in m: {ratio:.3f}x" in str(explained) and "dot products" in str(explained)
        assert "1.000x the seconds of a library that is not (which takes the same plan)" in str(
            invariant_gemm.explain(200, N, K)
        )
        assert "invariant" not in str(gemm.explain(64, 1, 4000))

    def test_hints_refuse_no_extent(self, invariant_gemm: GemmKernel) -> None:
        for m, n, k in [(1, 1, 1), (3, 1000, 33), (700, 50, 5), (2, 17, 3000)]:
            a, b = integers(m, k), integers(k, n)
            assert np.array_equal(invariant_gemm(a, b), a @ b)

    def test_a_saved_library_is_still_invariant(self, invariant_gemm: GemmKernel, tmp_path: Path) -> None:
        invariant_gemm.save(tmp_path / "invariant.vortex")
        loaded = vortex.load(tmp_path / "invariant.vortex")
        assert loaded.manifest.invariant == "m" and loaded.explain(64, 1, 4000).free is not None
        for shape, threads in [((32, 24, 9000), 2), ((5, 7, 300), 1), ((300, 1, 700), 3)]:
            plan = loaded.manifest.selector().select(shape_of(*shape), threads)
            assert loaded.native_choice(shape_of(*shape), threads) == (plan.index, plan.grid)
            assert plan.grid.k == 1


def test_a_fixed_library_is_not_cut_into_regions(fixed_gemm: GemmKernel) -> None:
    """Regions end on other vectors than its columns do, and it has no micro-kernels for those."""
    m, a, b = 5000, integers(5000, K), integers(K, N)
    for threads in (1, 2):
        assert not fixed_gemm.native_regions(shape_of(m, N, K), threads)[1]
    assert np.array_equal(fixed_gemm(a, b), a @ b)
    plan = fixed_gemm.plan(m, N, K)
    halves = tuple(Region(0, 48 * i, m, 48 + 4 * i, Grid(1, 1), plan.index, np.float32(0)) for i in (0, 1))
    with pytest.raises(OperandError, match="plan"):
        fixed_gemm.run(replace(plan, regions=halves), a, b, np.empty((m, N), np.float32))


class TestDemands:
    @pytest.mark.parametrize("invariant", ["n", "rows", "", 1])
    def test_only_m_can_be_asked_for(self, invariant: object) -> None:
        with pytest.raises(OperandError, match="expected 'm'"):
            vortex.compile(ops.Gemm(), hw="xeon-8255c", invariant=invariant)  # type: ignore[call-overload]

    def test_gpus_promise_neither(self) -> None:
        with pytest.raises(OperandError, match="only products on CPUs"):
            vortex.compile(ops.Gemm(), hw="a100", invariant="m")
        with pytest.raises(ShapeError, match=r"n=2304 on .*leave every extent open"):
            vortex.compile(ops.Gemm(n=2304), hw="a100")

    def test_a_reduction_has_no_rows_to_promise(self) -> None:
        with pytest.raises(OperandError, match="only products on CPUs"):
            vortex.compile(ops.OPERATORS["reduce"](), hw="xeon-8255c", invariant="m")

    def test_the_cache_tells_them_apart(self) -> None:
        spec, made_by = load_spec("xeon-8255c"), makers()
        keys = {
            cache_key(op, spec.fingerprint(), made_by, demand)
            for op in (ops.Gemm(), ops.Gemm(n=5))
            for demand in (None, "m")
        }
        assert len(keys) == 4
