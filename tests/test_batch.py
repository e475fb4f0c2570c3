"""Batched and grouped products of a compiled library: results, plans, refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import OnGpu, Parameter

import vortex
from vortex import DeviceError, DtypeError, OperandError, ShapeError, VortexError, api
from vortex.batch_launcher import BatchGemmKernel
from vortex.grouped_launcher import GroupedGemmKernel, alike_groups
from vortex.library import Library, read, write
from vortex.operators import BatchGemm, Gemm, GroupedGemm, compiled_as
from vortex.operators import settings as fields_of
from vortex.plans import Grid, OperandB, Shape
from vortex.rkernel import Loop, decompose
from vortex.specs import load_spec
from vortex.targets import target

TRANSPOSES = list(itertools.product((False, True), repeat=2))
EXTENTS = st.integers(1, 40)
several = settings(max_examples=150, deadline=None, derandomize=True)


def opened(path: Path, operator: BatchGemm | GroupedGemm) -> Library:
    """Every library of products has the doors of all of them: another manifest makes it another operator's."""
    library = read(path)
    return replace(library, manifest=replace(library.manifest, operator=operator.name, settings=fields_of(operator)))


@pytest.fixture(scope="module")
def bmm(library_path: Path) -> BatchGemmKernel:
    return BatchGemmKernel(opened(library_path, BatchGemm()))


@pytest.fixture(scope="module")
def grouped(library_path: Path) -> GroupedGemmKernel:
    return GroupedGemmKernel(opened(library_path, GroupedGemm()))


def integers(seed: int, *shape: int) -> np.ndarray:
    """Small integers: every product and sum of them is exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def laid_out(matrices: np.ndarray, transposed: bool, order: tuple[int, ...], padding: int) -> np.ndarray:
    """The same numbers with another order of axes in memory, and room between the lines."""
    stored = matrices.swapaxes(-1, -2) if transposed else matrices
    axes = (*order, stored.ndim - 1)
    room = np.full([*(stored.shape[axis] for axis in axes[:-1]), stored.shape[-1] + padding], np.nan, np.float32)
    view = room[..., : stored.shape[-1]].transpose(np.argsort(axes))
    view[...] = stored
    return view


@several
@given(data=st.data())
def test_any_batch_shape_and_layout(bmm: BatchGemmKernel, data: st.DataObject) -> None:
    draw = data.draw
    m, n, k = draw(EXTENTS), draw(EXTENTS), draw(st.integers(0, 70))
    rank = draw(st.integers(0, 2))
    batch = [draw(st.integers(1, 5)) for _ in range(rank)]
    broadcast = draw(st.sampled_from(["neither", "a", "b", "both"]))
    of_a = [1 if broadcast in ("a", "both") and axis == 0 else extent for axis, extent in enumerate(batch)]
    of_b = [
        1 if broadcast == "b" or (broadcast == "both" and axis == 1) else extent for axis, extent in enumerate(batch)
    ]
    if broadcast == "b" and draw(st.booleans()):
        of_b = []
    turn_a, turn_b = draw(st.sampled_from(TRANSPOSES))
    a, b = integers(1, *of_a, m, k), integers(2, *of_b, k, n)
    orders = [draw(st.permutations(range(len(of) + 1))) for of in (of_a, of_b, batch)]
    padding = [draw(st.integers(0, 3)) for _ in range(3)]
    left, right = laid_out(a, turn_a, orders[0], padding[0]), laid_out(b, turn_b, orders[1], padding[1])
    out = laid_out(
        integers(3, *np.broadcast_shapes(tuple(of_a), tuple(of_b)), m, n),
        False,
        orders[2][: len(batch) + 1],
        padding[2],
    )
    before, accumulate = out.astype(np.float64), draw(st.booleans())
    vortex.set_num_threads(draw(st.integers(1, 3)))
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    result = bmm(left, right, out=out, transpose_a=turn_a, transpose_b=turn_b, accumulate=accumulate)
    assert result is out
    assert np.array_equal(out, expected + before if accumulate else expected)
    assert np.array_equal(bmm(left, right, transpose_a=turn_a, transpose_b=turn_b), expected)


@pytest.mark.parametrize(("turn_a", "turn_b"), TRANSPOSES)
def test_packed_operands(bmm: BatchGemmKernel, turn_a: bool, turn_b: bool) -> None:
    for n, batch in itertools.product((1, 3, 20, 70, 200), ((), (1,), (3,), (2, 3))):
        a, b = integers(1, *(2, 3)[2 - len(batch) :], 9, 31), integers(2, *batch, 31, n)
        left = np.ascontiguousarray(a.swapaxes(-1, -2)) if turn_a else a
        right = np.ascontiguousarray(b.swapaxes(-1, -2)) if turn_b else b
        packed = bmm.pack(right, transpose=turn_b)
        assert packed.shape == b.shape and f"n={n}" in repr(packed)
        assert np.array_equal(bmm(left, packed, transpose_a=turn_a), a @ b)


def test_attention_as_models_lay_it_out(bmm: BatchGemmKernel) -> None:
    """[batch, seq, heads, dim] permuted to [batch, heads, seq, dim], and the result back into one matrix."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    batch, seq, heads, dim = 2, 37, 3, 24
    qkv = torch.randn(batch, seq, 3, heads, dim, generator=generator)
    q, k, v = (qkv[:, :, part].permute(0, 2, 1, 3) for part in range(3))
    exact = torch.matmul(q.double(), k.double().transpose(-1, -2))
    for scores in (bmm(q, k, transpose_b=True), bmm(q, k.transpose(-1, -2))):
        assert isinstance(scores, torch.Tensor) and scores.shape == (batch, heads, seq, seq)
        assert torch.allclose(scores.double(), exact, atol=1e-5)
    weights = torch.softmax(scores, -1)
    joined = torch.empty(batch, seq, heads, dim)
    bmm(weights, v, out=joined.permute(0, 2, 1, 3))
    assert torch.allclose(joined, torch.matmul(weights, v).permute(0, 2, 1, 3), atol=1e-5)


def test_shared_weights_are_one_product(bmm: BatchGemmKernel) -> None:
    """Rows of a batch that share B, and columns that share A, have the bits of the one product they are."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((6, 50, 300), np.float32), rng.standard_normal((300, 90), np.float32)
    assert np.array_equal(bmm(x, w), bmm.gemm(x.reshape(300, 300), w).reshape(6, 50, 90))
    token = np.ascontiguousarray(x[:, :1])
    assert np.array_equal(bmm(token, w), bmm.gemm(token[:, 0], w)[:, None])
    by_head = w.reshape(300, 3, 30).transpose(1, 0, 2)
    out = np.empty((50, 3, 30), np.float32)
    bmm(x[0], by_head, out=out.transpose(1, 0, 2))
    assert np.array_equal(out.reshape(50, 90), bmm.gemm(x[0], w))


def test_bits_do_not_depend_on_threads(bmm: BatchGemmKernel, grouped: GroupedGemmKernel) -> None:
    rng = np.random.default_rng(6)
    for count, m, n, k in [(3, 5, 5, 64), (7, 1, 90, 300), (2, 130, 40, 500), (5, 60, 3, 700), (40, 24, 24, 64)]:
        a, b = rng.standard_normal((count, m, k), np.float32), rng.standard_normal((count, k, n), np.float32)
        rows = rng.multinomial(count * m, np.full(count, 1 / count))
        results = []
        for threads in (1, 2, 3, 7):
            vortex.set_num_threads(threads)
            results.append((bmm(a, b), grouped(a.reshape(-1, k), b, rows)))
        assert all(np.array_equal(x, y) for result in results for x, y in zip(result, results[0], strict=True))


def test_error_is_that_of_float32_summation(bmm: BatchGemmKernel) -> None:
    rng = np.random.default_rng(8)
    for m, n, k in [(5, 7, 900), (64, 128, 64), (1, 300, 2000)]:
        a, b = rng.standard_normal((4, m, k), np.float32), rng.standard_normal((4, n, k), np.float32)
        turned = b.swapaxes(-1, -2)
        exact, size = np.matmul(a, turned, dtype=np.float64), np.matmul(np.abs(a), np.abs(turned), dtype=np.float64)
        assert (np.abs(bmm(a, b, transpose_b=True) - exact) <= k * 2.0**-24 / (1 - k * 2.0**-24) * size).all()


@several
@given(data=st.data())
def test_groups_of_any_height(grouped: GroupedGemmKernel, data: st.DataObject) -> None:
    draw = data.draw
    rows = draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
    n, k = draw(EXTENTS), draw(st.integers(0, 70))
    turn_a, turn_b = draw(st.sampled_from(TRANSPOSES))
    a, b = integers(1, sum(rows), k), integers(2, len(rows), k, n)
    left = laid_out(a, turn_a, (0,), draw(st.integers(0, 3)))
    right = laid_out(b, turn_b, draw(st.permutations(range(2))), draw(st.integers(0, 3)))
    expected = GroupedGemm().reference(a, b, rows)
    vortex.set_num_threads(draw(st.integers(1, 3)))
    flags = {"transpose_a": turn_a, "transpose_b": turn_b}
    assert np.array_equal(grouped(left, right, rows, **flags), expected)
    out = integers(3, sum(rows), n)
    grouped(left, grouped.pack(right, transpose=turn_b), np.array(rows), out=out, accumulate=True, transpose_a=turn_a)
    assert np.array_equal(out, expected + integers(3, sum(rows), n))


def test_one_tall_group_with_a_deep_reduction(grouped: GroupedGemmKernel) -> None:
    """Where the reduction of a group is split, its parts are added up beside the other groups."""
    rows, n, k = [3, 0, 40, 2], 16, 60_000
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((45, k), (4, k, n)))
    assert np.array_equal(grouped(a, b, rows), GroupedGemm().reference(a, b, rows))


@pytest.mark.parametrize("turn_b", [False, True])
def test_groups_are_a_loop_of_what_torch_gives(grouped: GroupedGemmKernel, turn_b: bool) -> None:
    torch = pytest.importorskip("torch")
    rows, n, k = [40, 0, 1, 130, 7], 96, 250
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((sum(rows), k), np.float32), rng.standard_normal((len(rows), k, n), np.float32)
    parts = torch.from_numpy(a).split(rows)
    expected = torch.cat([torch.mm(part, factor) for part, factor in zip(parts, torch.from_numpy(b), strict=True)])
    found = grouped(a, b.swapaxes(1, 2).copy() if turn_b else b, rows, transpose_b=turn_b)
    assert np.allclose(found, expected.numpy(), rtol=1e-4, atol=1e-3)


def test_transposes_of_the_operator_are_the_default(library_path: Path, tmp_path: Path) -> None:
    operator = BatchGemm(transpose_a=True, transpose_b=True)
    write(opened(library_path, operator), tmp_path / "bmm.vortex")
    kernel = vortex.load(tmp_path / "bmm.vortex")
    assert isinstance(kernel, BatchGemmKernel) and "batch_gemm" in repr(kernel)
    a, b = integers(1, 2, 30, 5), integers(2, 2, 7, 30)
    assert np.array_equal(kernel(a, b), operator.reference(a, b))
    assert np.array_equal(kernel(a, kernel.pack(b)), operator.reference(a, b))
    assert np.array_equal(kernel(a, b.swapaxes(-1, -2), transpose_b=False), operator.reference(a, b))


def test_empty_batches_and_extents(bmm: BatchGemmKernel, grouped: GroupedGemmKernel) -> None:
    for shape_a, shape_b in [
        ((0, 3, 4), (0, 4, 5)),
        ((2, 0, 4), (2, 4, 5)),
        ((2, 3, 4), (2, 4, 0)),
        ((2, 0, 3, 4), (4, 5)),
    ]:
        assert bmm(integers(1, *shape_a), integers(2, *shape_b)).size == 0
    assert np.array_equal(bmm(integers(1, 2, 3, 0), integers(2, 2, 0, 5)), np.zeros((2, 3, 5)))
    assert bmm(integers(1, 0, 3, 4), bmm.pack(integers(2, 0, 4, 50))).shape == (0, 3, 50)
    assert grouped(integers(1, 0, 4), integers(2, 3, 4, 5), [0, 0, 0]).shape == (0, 5)
    assert grouped(integers(1, 0, 4), integers(2, 0, 4, 5), []).shape == (0, 5)


def random_shapes(count: int, seed: int) -> list[tuple[Shape, int]]:
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(count):
        m, n, k = (int(extent) for extent in np.exp(rng.uniform(0, 7.5, 3)))
        batch, kind, is_col = (
            int(np.exp(rng.uniform(0, 7))),
            list(OperandB)[rng.integers(0, 3)],
            bool(rng.integers(0, 2)),
        )
        items = [int(rng.integers(0, batch + 1)) for _ in range(2)]
        lda, ldb = (m if is_col else k) + int(rng.integers(0, 64)), n + k
        shapes.append((Shape(m, n, k, kind, lda, is_col, ldb, batch, *items), int(rng.choice([1, 2, 3, 8]))))
    return shapes


def test_the_mirror_picks_the_same_plan(bmm: BatchGemmKernel) -> None:
    selector = bmm.manifest.selector()
    for shape, threads in random_shapes(800, 1):
        plan = selector.select(shape, threads)
        assert bmm.native_choice(shape, threads) == (plan.index, plan.grid, plan.workers), (shape, threads)


def test_a_large_batch_is_shared_whole_and_a_small_one_is_not_shared(bmm: BatchGemmKernel) -> None:
    many, few = bmm.plan(192, 128, 128, 64, threads=2), bmm.plan(2, 3, 3, 3, threads=2)
    assert many.grid == Grid(1, 1) and many.workers == 2
    assert few.workers == 1
    one = bmm.plan(1, 2000, 2000, 500, threads=2)
    assert one.grid.m * one.grid.n == 2
    assert 1.5 < bmm.predict(192, 128, 128, 64) / bmm.predict(96, 128, 128, 64) < 3


def test_every_plan_gives_the_same_numbers(bmm: BatchGemmKernel) -> None:
    for turn_a, turn_b in TRANSPOSES:
        a, b = integers(1, 5, 19, 33), integers(2, 5, 33, 45)
        left = np.ascontiguousarray(a.swapaxes(-1, -2)) if turn_a else a
        right = np.ascontiguousarray(b.swapaxes(-1, -2)) if turn_b else b
        flags = {"transpose_a": turn_a, "transpose_b": turn_b}
        plans = bmm.plans(5, 19, 45, 33, threads=2, **flags)
        assert {plan.workers for plan in plans} == {1, 2}
        for plan in plans:
            out = np.full((5, 19, 45), np.nan, np.float32)
            bmm.run(plan, left, right, out, **flags)
            assert np.array_equal(out, a @ b), plan


def test_a_foreign_plan_is_refused(bmm: BatchGemmKernel) -> None:
    a = integers(1, 2, 64, 64)
    served = {plan.index for plan in bmm.plans(2, 64, 64, 64, transpose_b=True)}
    others = [plan for plan in bmm.plans(2, 64, 64, 64, threads=1) if plan.index not in served]
    foreign = [plan for plan in others if not plan.strategy.stage.held]  # which turns over any B, if it is told to
    for plan in [*foreign[:1], replace(bmm.plan(2, 64, 64, 64), index=99), replace(bmm.plan(2, 64, 64, 64), workers=0)]:
        with pytest.raises(VortexError, match="plan"):
            bmm.run(plan, a, a, np.empty_like(a), transpose_b=True)


def test_groups_are_priced_as_their_share_of_all_rows(grouped: GroupedGemmKernel) -> None:
    assert [alike_groups(100, m) for m in (1, 10, 60, 100)] == [100, 10, 2, 1]
    shapes = grouped.shapes([10, 80, 0, 10], 64, 32)
    assert [(s.m, s.batch, s.items_b, s.lda) for s in shapes] == [(80, 1, 4, 32), (10, 10, 4, 32)]
    selector = grouped.manifest.selector()
    plans = grouped.plans([10, 80, 0, 10], 64, 32, threads=2)
    expected = [selector.select(shape, 2) for shape in shapes]
    assert [(p.index, p.grid, p.workers) for p in plans.values()] == [(p.index, p.grid, p.workers) for p in expected]


def test_explanations(bmm: BatchGemmKernel, grouped: GroupedGemmKernel) -> None:
    text = str(bmm.explain(192, 128, 128, 64, transpose_b=True, threads=2))
    assert "batch of 192 gemm 128x128x64 (transposed B)" in text and "on 2 thread(s)" in text and "runners-up" in text
    found = grouped.explain([5, 300, 5], 256, 512, threads=2)
    assert list(found) == [300, 5] and "gemm 300x256x512" in str(found[300])


def test_selection_is_timed(bmm: BatchGemmKernel, grouped: GroupedGemmKernel) -> None:
    assert 0 < bmm.time_selection(192, 128, 128, 64, 2000, transpose_b=True) < 20e-6
    alike, different = (grouped.time_selection(rows, 256, 512, 2000) for rows in ([40] * 8, [*range(10, 90, 10)]))
    assert 0 < 3 * alike < different < 8 * 20e-6
    assert grouped.time_selection([0, 0], 256, 512, 10) == 0


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def strided(step: int) -> np.ndarray:
    """Matrices that start `step` bytes apart."""
    return np.lib.stride_tricks.as_strided(floats(2, 4, 4), (2, 4, 4), (step, 16, 4))


MATRICES, OTHERS = floats(2, 4, 4), floats(2, 4, 4)
COLUMNS = floats(2, 4, 4).swapaxes(1, 2)

REFUSED = [
    ("rank", lambda g: g(floats(4), MATRICES), ShapeError, "a has shape .*2 to 4 dim"),
    ("five axes", lambda g: g(floats(1, 1, 1, 4, 4), MATRICES), ShapeError, "a has shape"),
    ("five axes of out", lambda g: g(MATRICES, OTHERS, out=floats(1, 1, 2, 4, 4)), ShapeError, "out .*rank"),
    ("no tensor", lambda g: g([[1.0]], MATRICES), OperandError, "a is a list"),
    ("inner extents", lambda g: g(floats(2, 4, 5), MATRICES), ShapeError, "b .*inner extent"),
    ("batch", lambda g: g(floats(3, 4, 4), MATRICES), ShapeError, "b .*batch axes"),
    ("batch, with out", lambda g: g(floats(3, 4, 4), MATRICES, out=OTHERS), ShapeError, "b .*batch axes"),
    ("batch of out", lambda g: g(MATRICES, OTHERS, out=floats(3, 4, 4)), ShapeError, "out .*batch axes"),
    ("shape of out", lambda g: g(MATRICES, OTHERS, out=floats(2, 4, 5)), ShapeError, "out .*m x n"),
    ("dtype", lambda g: g(MATRICES.astype(np.float64), MATRICES), DtypeError, "a .*float64.*dtype"),
    ("device", lambda g: g(OnGpu(2, 4, 4), MATRICES), DeviceError, "a .*not in host memory"),
    ("gradient", lambda g: g(Parameter(MATRICES), MATRICES, out=OTHERS), OperandError, "a requires grad"),
    ("reversed batch", lambda g: g(MATRICES[::-1], MATRICES), ShapeError, "a .*strides"),
    ("no contiguous axis", lambda g: g(floats(2, 8, 8)[:, ::2, ::2], MATRICES), ShapeError, "a .*strides"),
    ("columns of out", lambda g: g(MATRICES, OTHERS, out=COLUMNS), ShapeError, "out .*strides"),
    ("out is one matrix", lambda g: g(MATRICES, OTHERS, out=strided(0)), ShapeError, "out .*strides"),
    ("out overlaps itself", lambda g: g(MATRICES, OTHERS, out=strided(4)), ShapeError, "out .*strides"),
    ("out is a", lambda g: g(MATRICES, OTHERS, out=MATRICES), OperandError, "a .*overlaps out"),
    ("out is b", lambda g: g(OTHERS, MATRICES, out=MATRICES), OperandError, "b .*overlaps out"),
    ("accumulate into nothing", lambda g: g(MATRICES, OTHERS, accumulate=True), OperandError, "pass out="),
    ("transposed packed", lambda g: g(MATRICES, g.pack(OTHERS), transpose_b=True), OperandError, "drop the flag"),
    ("packed with another k", lambda g: g(floats(2, 4, 5), g.pack(floats(2, 4, 200))), ShapeError, "b .*inner extent"),
    ("foreign packed", lambda g: g(MATRICES, replace(g.pack(OTHERS), identity="")), OperandError, "another library"),
    ("rank to pack", lambda g: g.pack(floats(3)), ShapeError, "b has shape"),
    ("dtype to pack", lambda g: g.pack(MATRICES.astype(np.float64)), DtypeError, "b .*dtype"),
    ("list to pack", lambda g: g.pack([1.0]), DtypeError, "b list"),
    ("gradient to pack", lambda g: g.pack(Parameter(MATRICES)), OperandError, "b requires grad"),
    ("negative batch", lambda g: g.plan(-1, 4, 4, 4), ShapeError, "batch=-1"),
    ("more A's than products", lambda g: g.plan(2, 4, 4, 4, items_a=3), ShapeError, "items_a=3"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused(bmm: BatchGemmKernel, call: object, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as refusal:
        call(bmm)  # type: ignore[operator]
    assert isinstance(refusal.value, VortexError)
    assert (MATRICES == 1).all()


ROWS, GROUPS = floats(6, 4), floats(3, 4, 5)
GROUPED_REFUSED = [
    ("too few rows", lambda g: g(ROWS, GROUPS, [1, 2, 2]), ShapeError, "rows do not divide"),
    ("too many rows", lambda g: g(ROWS, GROUPS, [1, 2, 4]), ShapeError, "rows do not divide"),
    ("negative rows", lambda g: g(ROWS, GROUPS, [-1, 3, 4]), ShapeError, "rows do not divide"),
    ("fractions", lambda g: g(ROWS, GROUPS, [1.0, 2.0, 3.0]), ShapeError, "whole number"),
    ("rows of rows", lambda g: g(ROWS, GROUPS, [[1, 2, 3]]), ShapeError, "whole number"),
    ("too few groups", lambda g: g(ROWS, GROUPS, [1, 5]), ShapeError, "b .*batch axes.*as many matrices"),
    ("batched a", lambda g: g(floats(2, 3, 4), GROUPS, [1, 2, 3]), ShapeError, "a has shape .*two dimensions"),
    ("batched a, out", lambda g: g(floats(2, 3, 4), GROUPS, [1, 2, 3], out=floats(6, 5)), ShapeError, "a .*rank"),
    ("batched out", lambda g: g(ROWS, GROUPS, [1, 2, 3], out=floats(2, 6, 5)), ShapeError, "out .*rank"),
    ("two axes of groups", lambda g: g(ROWS, GROUPS[:, None][:, [0, 0]], [1, 2, 3]), ShapeError, "b .*rank"),
    ("inner extents", lambda g: g(ROWS[:, :3], GROUPS, [1, 2, 3]), ShapeError, "inner extent"),
    ("accumulate into nothing", lambda g: g(ROWS, GROUPS, [1, 2, 3], accumulate=True), OperandError, "pass out="),
    ("negative rows to explain", lambda g: g.explain([-1, 2], 4, 4), ShapeError, "at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "words"), [case[1:] for case in GROUPED_REFUSED], ids=[case[0] for case in GROUPED_REFUSED]
)
def test_refused_groups(grouped: GroupedGemmKernel, call: object, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        call(grouped)  # type: ignore[operator]


def test_operators_refuse_other_dtypes() -> None:
    for operator in (BatchGemm, GroupedGemm):
        with pytest.raises(DtypeError, match="float32"):
            operator(dtype="float64")  # type: ignore[arg-type]


def test_one_library_of_the_cache_serves_all_three(monkeypatch: pytest.MonkeyPatch, library_path: Path) -> None:
    asked: list[object] = []
    monkeypatch.setattr("vortex.api._build", lambda operator, *rest: asked.append(operator) or read(library_path))
    kernels = [vortex.compile(operator, cache=False) for operator in (BatchGemm(transpose_a=True), GroupedGemm())]
    assert asked == [Gemm(), Gemm()]
    assert [type(kernel) for kernel in kernels] == [BatchGemmKernel, GroupedGemmKernel]
    assert kernels[0].operator == BatchGemm(transpose_a=True)


@pytest.mark.parametrize("operator", [BatchGemm("float16"), GroupedGemm("float16")])
def test_gpus_have_kernels_of_their_own_for_several_products(operator: BatchGemm | GroupedGemm) -> None:
    assert api._built_for(operator, target(load_spec("a100"))) == operator


def test_many_small_products_are_worth_two_threads(bmm: BatchGemmKernel) -> None:
    """Entering a nest for each of them is most of the time."""
    assert bmm.plan(192, 5, 64, 5, threads=2).workers == 2


@pytest.mark.parametrize("operator", [BatchGemm(), GroupedGemm()])
def test_batch_axes_are_of_the_outermost_level(operator: BatchGemm | GroupedGemm) -> None:
    spec = load_spec("epyc-zen4")
    low, middle, outer = decompose(operator, spec).levels
    assert outer.loops[0] == (operator.axes[0].name, Loop.PARALLEL)
    assert len(low.loops) == len(middle.loops) == 3
    assert compiled_as(operator) == Gemm()


def test_what_a_tile_costs() -> None:
    tile = {"b": 2, "g": 2, "m": 3, "n": 5, "k": 7}
    assert BatchGemm().flops(tile) == 2 * 2 * 3 * 5 * 7 and BatchGemm().bytes(tile) == 4 * 2 * (21 + 35 + 15)
    assert GroupedGemm().flops(tile) == 2 * 3 * 5 * 7 and GroupedGemm().bytes(tile) == 4 * (21 + 2 * 35 + 15)
