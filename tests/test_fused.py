"""Ring 2: a library whose store stage does something, against the NumPy reference and against the plain library."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conftest import compiled, dots
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gemm import guarded, run_in_child

import vortex
from vortex import DtypeError, OperandError, ShapeError, UnknownNameError
from vortex import operators as ops
from vortex.fused import FusedGemm
from vortex.plans import Grid, LaunchPlan, OperandB, Region

CHAIN = ops.bias() >> ops.relu() >> ops.scale(per="row") >> ops.residual()
RNG = np.random.default_rng(3)


def integers(*shape: int) -> np.ndarray:
    """Small integers: every product, sum and scale of them is exact in float32."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def operands(m: int, n: int) -> dict[str, np.ndarray]:
    return {"bias": integers(n), "scale": integers(m), "residual": integers(m, n)}


def expected(a: np.ndarray, b: np.ndarray, extras: dict[str, np.ndarray]) -> np.ndarray:
    return ops.Gemm(epilogue=CHAIN).reference(a, b, **extras)


@pytest.fixture(scope="module")
def fused() -> FusedGemm:
    kernel = compiled(ops.Gemm(epilogue=CHAIN))
    assert isinstance(kernel, FusedGemm)
    return kernel


def test_every_small_shape(fused: FusedGemm) -> None:
    a, b, extras = integers(19, 19), integers(19, 35), operands(19, 35)
    for m, n, k in itertools.product(range(20), range(36), (0, 1, 2, 7, 19)):
        left, right = np.ascontiguousarray(a[:m, :k]), np.ascontiguousarray(b[:k, :n])
        some = {
            "bias": extras["bias"][:n],
            "scale": extras["scale"][:m],
            "residual": np.ascontiguousarray(extras["residual"][:m, :n]),
        }
        assert np.array_equal(fused(left, right, **some), expected(left, right, some)), (m, n, k)


def test_regions_take_their_part_of_every_operand(fused: FusedGemm) -> None:
    """Two by two regions, one perhaps of the dot family: each starts at its own row and column of the tensors."""
    m, n, k = 37, 70, 29
    a, b, extras = integers(m, k), integers(n, k), operands(m, n)
    dots = [index for index, strategy in enumerate(fused.strategies) if strategy.stage.dot]
    outer = next(p.index for p in fused.plans(m, n, k, transpose_b=True, threads=1) if not p.strategy.stage.dot)
    for last in (outer, *dots):
        corners = [(0, 0, 21, 64, outer), (0, 64, 21, 6, outer), (21, 0, 16, 64, outer), (21, 64, 16, 6, last)]
        regions = tuple(Region(*x[:4], Grid(2, 1), x[4], np.float32(0)) for x in corners)
        plan = LaunchPlan(outer, fused.strategies[outer], Grid(1, 1), 0.0, 2, regions, "VI")
        out = np.full((m, n), np.nan, np.float32)
        fused.run(plan, a, b, out, transpose_b=True, **extras)
        assert np.array_equal(out, expected(a, b.T, extras))


def test_bands_of_a_turned_product_are_stored_where_they_belong(fused: FusedGemm) -> None:
    m, k = 37, 600
    n = int(fused.manifest.rates.l2_bytes) // (4 * k) * 2 + 37
    a, b, extras = integers(m, k), integers(n, k), operands(m, n)
    turned = [p for p in fused.plans(m, n, k, transpose_b=True, threads=1) if p.strategy.stage.swap]
    for plan in turned:
        out = np.full((m, n), np.nan, np.float32)
        fused.run(plan, a, b, out, transpose_b=True, **extras)
        assert np.array_equal(out, expected(a, b.T, extras)), plan
    assert turned or not any(s.stage.swap and s.stage.pack_b for s in fused.strategies)


@pytest.mark.parametrize("kind", list(OperandB))
@pytest.mark.parametrize("transpose_a", [False, True])
def test_every_strategy(fused: FusedGemm, kind: OperandB, transpose_a: bool) -> None:
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    flags = {"transpose_a": transpose_a, "transpose_b": transposed}
    shapes = [(37, 150, 60), (500, 6, 33), (5, 70, 3000), (1, 40, 2500), (130, 1, 700), (260, 270, 1100)]
    for m, n, k in [
        *shapes,
        (256, 256, 600),
    ]:  # the last one's rows crowd L2 and are on many pages, so that k is taken in steps
        n = max(n, 16) if packed else n
        a, b, extras = integers(m, k), integers(k, n), operands(m, n)
        left = np.ascontiguousarray(a.T) if transpose_a else a
        right = fused.pack(b) if packed else np.ascontiguousarray(b.T) if transposed else b
        wanted = expected(a, b, extras)
        plans = fused.plans(m, n, k, threads=2, packed=packed, **flags)
        assert plans
        for plan in plans:
            room = np.full((m, n + 9), np.nan, np.float32)
            out = room[:, 4 : 4 + n]
            fused.run(plan, left, right, out, **flags, **extras)
            assert np.array_equal(out, wanted), (m, n, k, plan)
            assert np.isnan(np.delete(room, np.s_[4 : 4 + n], axis=1)).all(), f"{plan} wrote outside out"


def test_same_bits_on_any_number_of_threads(fused: FusedGemm) -> None:
    for m, n, k in [(130, 257, 1025), (300, 31, 64), (7, 900, 40), (3, 5, 200_000)]:
        a, b, extras = RNG.random((m, k), np.float32), RNG.random((k, n), np.float32), operands(m, n)
        results = []
        for count in (1, 2, 3):
            vortex.set_num_threads(count)
            results += [fused(a, b, **extras), fused(a, b, **extras)]
        assert all(np.array_equal(result, results[0]) for result in results), (m, n, k)


def test_same_bits_in_registers_and_through_memory(fused: FusedGemm) -> None:
    """With A by rows and k in one step sums are finished in registers, with A by columns in a tile that is in L1."""
    for m, n, k in [(37, 150, 60), (500, 70, 20), (90, 33, 17), (61, 16, 9), (37, 150, 0)]:
        a, b = RNG.standard_normal((m, k), np.float32), RNG.standard_normal((k, n), np.float32)
        extras = {name: RNG.standard_normal(x.shape, np.float32) for name, x in operands(m, n).items()}
        found = []
        for left, transpose_a in [(a, False), (np.ascontiguousarray(a.T), True)]:
            for plan in fused.plans(m, n, k, transpose_a=transpose_a, threads=1):
                if dots(fused, plan) == {False}:
                    out = np.full((m, n), np.nan, np.float32)
                    found.append(fused.run(plan, left, b, out, transpose_a=transpose_a, **extras))
        assert len(found) > 4 and all(np.array_equal(found[0], other) for other in found)


def touch_only_operands(kernel: FusedGemm) -> None:
    vortex.set_num_threads(1)
    for (at_end, gap), (m, n, k) in itertools.product(
        [(True, 0), (False, 0), (True, 37)], [(1, 1, 1), (3, 17, 5), (14, 33, 7), (61, 65, 30), (99, 5, 70)]
    ):
        a, b, extras = integers(m, k), integers(k, n), operands(m, n)
        wanted = expected(a, b, extras)
        around = {name: guarded(np.atleast_2d(x), at_end) for name, x in extras.items()}
        around = {name: x if name == "residual" else x[0] for name, x in around.items()}
        left, right, out = (guarded(x, at_end, gap) for x in (a, b, np.zeros((m, n), np.float32)))
        for plan in kernel.plans(m, n, k, threads=1):
            kernel.run(plan, left, right, out, **around)
            assert np.array_equal(out, wanted), (m, n, k, plan)


def test_nothing_outside_the_operands_is_touched(fused: FusedGemm) -> None:
    """Every strategy on operands between unmapped pages, in a child process: a stray access would kill it."""
    assert run_in_child(touch_only_operands, fused) == 0


def test_a_chain_too_long_for_registers() -> None:
    operator = ops.Gemm(epilogue=ops.bias() >> ops.gelu())
    kernel = compiled(operator)
    for m, n, k in [(37, 150, 60), (500, 16, 16), (5, 70, 3000), (130, 1, 700), (4, 20, 0)]:
        a, b, bias = integers(m, k), integers(k, n), integers(n) / 8
        wanted, within = operator.reference(a, b, bias=bias), 3e-7 * np.maximum(1, np.abs(a @ b + bias))
        for plan in kernel.plans(m, n, k, threads=2):
            out = np.full((m, n), np.nan, np.float32)
            kernel.run(plan, a, b, out, bias=bias)
            assert np.all(np.abs(out - wanted) <= within), (m, n, k, plan)


def test_accumulate_adds_before_the_epilogue(fused: FusedGemm) -> None:
    for m, n, k in [(7, 50, 30), (40, 3, 200), (64, 64, 3000), (2500, 40, 3000)]:  # the last in bands of rows
        a, b, c, extras = integers(m, k), integers(k, n), integers(m, n), operands(m, n)
        wanted = CHAIN.reference(c + a @ b, **extras)
        assert np.array_equal(fused(a, b, out=c, accumulate=True, **extras), wanted), (m, n, k)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_strides(fused: FusedGemm, data: st.DataObject) -> None:
    """Operands in the middle of larger ones, plain or transposed; nothing outside `out` is written."""
    m, n, k = (data.draw(st.integers(0, most), label) for most, label in ((40, "m"), (70, "n"), (50, "k")))
    flags = {name: data.draw(st.booleans(), name) for name in ("transpose_a", "transpose_b")}
    a, b, extras = integers(m, k), integers(k, n), operands(m, n)

    def inside(matrix: np.ndarray, transposed: bool = False) -> np.ndarray:
        matrix = matrix.T if transposed else matrix
        left, right = (data.draw(st.integers(0, 5)) for _ in range(2))
        room = np.full((matrix.shape[0], left + matrix.shape[1] + right), np.nan, np.float32)
        room[:, left : left + matrix.shape[1]] = matrix
        return room[:, left : left + matrix.shape[1]]

    out = inside(np.zeros((m, n), np.float32))
    given_extras = extras | {"residual": inside(extras["residual"])}
    fused(inside(a, flags["transpose_a"]), inside(b, flags["transpose_b"]), out=out, **flags, **given_extras)
    assert np.array_equal(out, expected(a, b, extras))
    room = out.base
    if m and n and room is not None:
        assert np.isnan(room).sum() == room.size - out.size


def test_explain_names_the_steps(fused: FusedGemm) -> None:
    assert "store  bias per column >> relu >> times scale per row" in str(fused.explain(100, 100, 100))
    assert [operand.name for operand in fused.operands] == ["bias", "scale", "residual"]


REFUSED = [
    ("missing", {"residual": None}, UnknownNameError, "residual is missing.*residual .m, n"),
    ("unknown", {"shift": np.ones(4, np.float32)}, UnknownNameError, "unknown operand 'shift'"),
    ("extent of a column", {"bias": np.ones(5, np.float32)}, ShapeError, "bias .*does not fit"),
    ("extent of a row", {"scale": np.ones(4, np.float32)}, ShapeError, "scale .*does not fit"),
    ("shape", {"residual": np.ones((4, 6), np.float32)}, ShapeError, "residual .*does not fit"),
    ("rank", {"bias": np.ones((1, 4), np.float32)}, ShapeError, "bias .*rank"),
    ("dtype", {"bias": np.ones(4)}, DtypeError, "bias .*is float32 in this library"),
    ("strides", {"bias": np.ones(8, np.float32)[::2]}, ShapeError, "bias .*strides"),
    ("columns", {"residual": np.ones((4, 6), np.float32).T}, ShapeError, "residual .*strides"),
    ("no tensor", {"bias": [0.0] * 4}, OperandError, "bias is a list|is no tensor"),
]


@pytest.mark.parametrize(("changes", "error", "told"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(fused: FusedGemm, changes: dict[str, object], error: type[Exception], told: str) -> None:
    a, b = integers(6, 3), integers(3, 4)
    extras = {name: value for name, value in (operands(6, 4) | changes).items() if value is not None}
    with pytest.raises(error, match=told):
        fused(a, b, **extras)


def test_an_operand_may_not_overlap_the_output(fused: FusedGemm) -> None:
    a, b, extras = integers(6, 3), integers(3, 4), operands(6, 4)
    with pytest.raises(OperandError, match=r"residual .*overlaps out"):
        fused(a, b, out=extras["residual"], **extras)
    with pytest.raises(OperandError, match="read-only"):
        out = np.zeros((6, 4), np.float32)
        out.flags.writeable = False
        fused(a, b, out=out, **extras)
    with pytest.raises(OperandError, match="another library"):
        fused(a, replace(fused.pack(b), identity="other"), **extras)


@pytest.fixture(scope="module")
def narrow() -> FusedGemm:
    """Another element type of the output, and steps before the product."""
    operator = ops.Gemm(prologue=ops.relu() >> ops.scale(2), epilogue=ops.scale(0.125) >> ops.cast("int8"))
    kernel = compiled(operator)
    assert isinstance(kernel, FusedGemm)
    return kernel


def test_narrow_outputs_on_every_plan(narrow: FusedGemm) -> None:
    for m, n, k in [(37, 150, 60), (500, 6, 33), (5, 70, 3000), (1, 40, 2500), (130, 1, 700), (3, 0, 5), (9, 20, 0)]:
        a, b = integers(m, k), integers(k, n)
        wanted = np.clip(np.rint(np.maximum(a, 0) * 2 @ b * 0.125), -128, 127).astype(np.int8)
        assert np.array_equal(narrow(a, b), wanted), (m, n, k)
        assert np.array_equal(narrow(a, b.T.copy(), transpose_b=True), wanted), (m, n, k)
        assert np.array_equal(narrow(a.T.copy(), b, transpose_a=True), wanted), (m, n, k)
        for plan in narrow.plans(m, n, k, threads=2):
            room = np.full((m, n + 3), 99, np.int8)
            narrow.run(plan, a, b, room[:, 1 : 1 + n])
            assert np.array_equal(room[:, 1 : 1 + n], wanted), (m, n, k, plan)
            assert (np.delete(room, np.s_[1 : 1 + n], axis=1) == 99).all()
    a, b = integers(30, 200), integers(200, 100)
    assert np.array_equal(narrow(a, narrow.pack(b)), narrow(a, b))


def test_sums_cannot_be_added_to_a_narrow_output(narrow: FusedGemm) -> None:
    a, b, out = integers(6, 3), integers(3, 4), np.zeros((6, 4), np.int8)
    with pytest.raises(OperandError, match="drop accumulate"):
        narrow(a, b, out=out, accumulate=True)
    with pytest.raises(DtypeError, match="out is int8"):
        narrow(a, b, out=np.zeros((6, 4), np.float32))
    assert "load   relu >> times 2" in str(narrow.explain(6, 4, 3))


def test_tensors_of_pytorch(narrow: FusedGemm) -> None:
    torch = pytest.importorskip("torch")
    a, b = integers(6, 3), integers(3, 4)
    result = narrow(torch.from_numpy(a), torch.from_numpy(b))
    assert result.dtype == torch.int8 and np.array_equal(result.numpy(), narrow(a, b))
