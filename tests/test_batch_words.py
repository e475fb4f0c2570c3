"""Batched and grouped products of narrow elements, and with epilogues: every library of products has their doors."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest
from test_batch import random_shapes
from test_words import DTYPES, RNG, drawn, hardware

import vortex
from vortex import DtypeError, OperandError, ShapeError, UnknownNameError
from vortex.batch_launcher import BatchGemmKernel
from vortex.grouped_launcher import GroupedGemmKernel
from vortex.operators import BatchGemm, GroupedGemm, bias, cast, relu, residual, scale

SUMS = {"int8": "int32"}
REQUANTIZED = scale() >> bias() >> relu() >> cast("uint8")
CHAIN = bias() >> relu() >> scale(per="row") >> residual()
"""Of the libraries that test_words and test_fused compile as well."""
TRANSPOSES = list(itertools.product((False, True), repeat=2))


def batched(dtype: str) -> BatchGemmKernel:
    return vortex.compile(BatchGemm(dtype, out_dtype=SUMS.get(dtype, "float32")), hardware(dtype))


def grouped(dtype: str) -> GroupedGemmKernel:
    return vortex.compile(GroupedGemm(dtype, out_dtype=SUMS.get(dtype, "float32")), hardware(dtype))


def stored(matrices: np.ndarray, transposed: bool, padding: int) -> np.ndarray:
    """With `padding` elements after every line, as they are or each transposed."""
    lines = matrices.swapaxes(-1, -2) if transposed else matrices
    room = np.zeros([*lines.shape[:-1], lines.shape[-1] + padding], matrices.dtype)[..., : lines.shape[-1]]
    room[...] = lines
    return room


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_batch_layout_and_broadcast(dtype: str) -> None:
    bmm = batched(dtype)
    cases = [((4,), (4,), 3, 5, 7), ((2, 3), (1, 3), 17, 33, 66), ((3,), (), 1, 40, 129), ((), (5,), 8, 1, 31)]
    for of_a, of_b, m, n, k in [*cases, ((2, 2), (2, 1), 40, 70, 513), ((2,), (2,), 5, 6, 0)]:
        a, b = drawn(dtype, *of_a, m, k), drawn(dtype, *of_b, k, n)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        for turn_a, turn_b in TRANSPOSES:
            left, right = stored(a, turn_a, m % 3), stored(b, turn_b, n % 2)
            flags = {"transpose_a": turn_a, "transpose_b": turn_b}
            assert np.array_equal(bmm(left, right, **flags), expected), (of_a, of_b, m, n, k, flags)
            packed = bmm.pack(right, transpose=turn_b)
            assert np.array_equal(bmm(left, packed, transpose_a=turn_a), expected)
        out = bmm(a, b)
        assert np.array_equal(bmm(a, b, out=out, accumulate=True), 2 * expected)
        for plan in bmm.plans(int(np.prod(expected.shape[:-2], initial=1)), m, n, max(k, 1), threads=2)[:3]:
            assert np.array_equal(bmm.run(plan, a, b, np.empty_like(out)), expected), plan


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_any_height(dtype: str) -> None:
    kernel = grouped(dtype)
    for rows, n, k in [([3, 0, 40, 1], 33, 130), ([1, 1, 1], 5, 3), ([70], 20, 64), ([0, 0], 4, 4)]:
        a, b = drawn(dtype, sum(rows), k), drawn(dtype, len(rows), k, n)
        expected = GroupedGemm().reference(a.astype(np.float32), b.astype(np.float32), rows)
        for turn_a, turn_b in TRANSPOSES:
            left, right = stored(a, turn_a, 1), stored(b, turn_b, 2)
            assert np.array_equal(kernel(left, right, rows, transpose_a=turn_a, transpose_b=turn_b), expected)
            assert np.array_equal(
                kernel(left, kernel.pack(right, transpose=turn_b), rows, transpose_a=turn_a), expected
            )


@needs.a_compiler
def test_unsigned_by_signed_bytes() -> None:
    bmm, a, b = batched("int8"), RNG.integers(0, 256, (3, 5, 70)).astype(np.uint8), drawn("int8", 3, 70, 20)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(bmm(a, b), expected) and np.array_equal(bmm(a, bmm.pack(b)), expected)


@needs.a_compiler
def test_any_byte_of_a_may_stand_for_zero() -> None:
    a, b = RNG.integers(0, 256, (3, 5, 70)).astype(np.uint8), drawn("int8", 3, 70, 20)
    expected = (a.astype(np.int64) - 77) @ b.astype(np.int64)
    assert np.array_equal(batched("int8")(a, b, zero_a=77), expected)
    assert np.array_equal(grouped("int8")(a.reshape(15, 70), b, [5, 5, 5], zero_a=77), expected.reshape(15, 20))
    with pytest.raises(OperandError, match=r"a .*zero point"):
        batched("int8")(a, b, zero_a=-1)


@needs.a_compiler
def test_tensors_of_torch_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    bmm = batched("bfloat16")
    a, b = (torch.randint(-8, 9, shape).bfloat16() for shape in ((2, 3, 9, 40), (2, 1, 40, 21)))
    expected = torch.matmul(a.double(), b.double())
    for right in (b, bmm.pack(b), b.transpose(-1, -2).contiguous().transpose(-1, -2)):
        out = bmm(a, right)
        assert out.dtype == torch.float32 and torch.equal(out.double(), expected)


@needs.a_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_mirror_picks_the_same_plan(dtype: str) -> None:
    bmm = batched(dtype)
    selector = bmm.manifest.selector()
    for shape, threads in random_shapes(500, 4):
        plan = selector.select(shape, threads)
        assert bmm.native_choice(shape, threads) == (plan.index, plan.grid, plan.workers), (shape, threads)


def integers(*shape: int) -> np.ndarray:
    """Small integers: every product, sum and scale of them is exact in float32."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


@needs.a_compiler
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (40,)])
def test_operands_of_an_epilogue_have_batch_axes_or_do_without(small: Any, batch: tuple[int, ...]) -> None:
    operator = BatchGemm(epilogue=CHAIN)
    bmm = vortex.compile(operator, small)
    some = [batch, tuple(1 for _ in batch), (*batch[:-1], 1) if batch else ()]
    for m, n, k, shared in [(5, 21, 9, False), (1, 64, 30, True), (33, 3, 70, True), (20, 150, 300, False)]:
        a, b = integers(*batch, m, k), integers(*(() if shared else batch), k, n)
        for axes in some:
            extras = {"bias": integers(*axes, n), "scale": integers(*batch, m), "residual": integers(*batch, m, n)}
            expected = operator.reference(a, b, **extras)
            assert np.array_equal(bmm(a, b, **extras), expected), (m, n, k, axes)
            alike = {"bias": integers(n), "scale": integers(*axes, m), "residual": integers(*axes, m, n)}
            expected = operator.reference(a, b, **alike)
            assert np.array_equal(bmm(a, bmm.pack(b), **alike), expected), (m, n, k, axes)
        extras = {"bias": integers(n), "scale": integers(m), "residual": integers(m, n)}
        expected = operator.reference(a, b, **extras)
        for plan in bmm.plans(max(1, int(np.prod(batch))), m, n, k, threads=2):
            assert np.array_equal(bmm.run(plan, a, b, np.empty_like(a @ b), **extras), expected), plan


@needs.a_compiler
def test_shared_factors_fold_with_their_epilogue(small: Any) -> None:
    """Columns that share A, rows that share B, and what cannot be folded because an operand is of each product."""
    operator = BatchGemm(epilogue=CHAIN)
    bmm = vortex.compile(operator, small)
    x, w = integers(6, 5, 30), integers(30, 90)
    by_head, out = w.reshape(30, 3, 30).transpose(1, 0, 2), np.empty((5, 3, 30), np.float32)
    for of_bias, of_scale in itertools.product([(30,), (3, 30)], [(5,), (3, 5)]):
        extras = {
            "bias": integers(*of_bias),
            "scale": integers(*of_scale),
            "residual": integers(5, 3, 30).swapaxes(0, 1),
        }
        bmm(x[0], by_head, out=out.swapaxes(0, 1), **extras)
        assert np.array_equal(out.swapaxes(0, 1), operator.reference(x[0], by_head, **extras))
    for rows in (1, 5):
        for of_bias, of_scale in itertools.product([(90,), (6, 90)], [(rows,), (6, rows)]):
            extras = {"bias": integers(*of_bias), "scale": integers(*of_scale), "residual": integers(6, rows, 90)}
            assert np.array_equal(bmm(x[:, :rows], w, **extras), operator.reference(x[:, :rows], w, **extras))


@needs.a_compiler
def test_groups_have_epilogues_of_their_own(small: Any) -> None:
    operator = GroupedGemm(epilogue=CHAIN)
    kernel, rows, n, k = vortex.compile(operator, small), [3, 0, 40, 1], 37, 50
    a, b = integers(44, k), integers(4, k, n)
    for of_bias in ((n,), (1, n), (4, n)):
        extras = {"bias": integers(*of_bias), "scale": integers(44), "residual": integers(44, n)}
        told = {**extras, "bias": extras["bias"][0]} if of_bias == (1, n) else extras
        assert np.array_equal(kernel(a, b, rows, **extras), operator.reference(a, b, rows, **told))
    before = integers(44, n)
    extras = {"bias": integers(4, n), "scale": np.ones(44, np.float32), "residual": np.zeros((44, n), np.float32)}
    summed = GroupedGemm().reference(a, b, rows) + before + np.repeat(extras["bias"], rows, axis=0)
    assert np.array_equal(kernel(a, b, rows, out=before.copy(), accumulate=True, **extras), np.maximum(summed, 0))


@needs.a_compiler
def test_experts_are_requantized() -> None:
    operator = GroupedGemm("int8", epilogue=REQUANTIZED)
    kernel, rows = vortex.compile(operator, hardware("int8")), [30, 2, 0, 5]
    a, b = drawn("int8", 37, 129), drawn("int8", 4, 129, 70)
    extras = {"scale": RNG.uniform(1e-5, 1e-3, (4, 70)), "bias": RNG.uniform(-5, 5, 70)}
    extras = {name: value.astype(np.float32) for name, value in extras.items()}
    found = kernel(a, b, rows, **extras)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - operator.reference(a, b, rows, **extras).astype(int)).max() <= 1
    with pytest.raises(OperandError, match="accumulate"):
        kernel(a, b, rows, out=found, accumulate=True, **extras)


@needs.a_compiler
def test_refusals(small: Any) -> None:
    bmm, grouped_gemm = (vortex.compile(kind(epilogue=CHAIN), small) for kind in (BatchGemm, GroupedGemm))
    a, good = integers(3, 4, 4), {"bias": integers(4), "scale": integers(4), "residual": integers(3, 4, 4)}
    wrong = [
        ({"bias": integers(5)}, ShapeError, r"bias .*does not fit the output.*\[n\] or \[\.\.\., n\]"),
        ({"bias": integers(2, 4)}, ShapeError, "bias .*batch axes"),
        ({"scale": integers(3, 5)}, ShapeError, "scale .*does not fit"),
        ({"residual": integers(1, 3, 4, 4)[..., ::2]}, ShapeError, "residual .*strides|residual .*does not fit"),
        ({"residual": integers(2, 4, 4)}, ShapeError, "residual .*batch axes"),
        ({"residual": integers(3, 4, 4).swapaxes(1, 2)}, ShapeError, "residual .*strides"),
        ({"bias": integers(1, 1, 1, 4)}, ShapeError, "bias .*rank"),
        ({"bias": np.zeros(4)}, DtypeError, "bias is float32 in this library"),
        ({"bias": "no"}, OperandError, "bias .*no tensor"),
        ({"other": integers(4)}, UnknownNameError, "unknown operand 'other'"),
    ]
    for change, kind, words in wrong:
        with pytest.raises(kind, match=words):
            bmm(a, a, **{**good, **change})
    with pytest.raises(UnknownNameError, match="bias is missing"):
        bmm(a, a)
    out = np.empty((3, 4, 4), np.float32)
    with pytest.raises(OperandError, match=r"residual .*overlaps out"):
        bmm(a, a, out=out, **{**good, "residual": out})
    of_groups = {"bias": integers(2, 4), "scale": integers(12), "residual": integers(12, 4)}
    with pytest.raises(ShapeError, match=r"bias .*batch axes"):
        grouped_gemm(a.reshape(12, 4), a, [4, 4, 4], **of_groups)
    with pytest.raises(ShapeError, match=r"scale .*does not fit"):
        grouped_gemm(a.reshape(12, 4), a, [4, 4, 4], **{**of_groups, "bias": integers(4), "scale": integers(4)})


def test_what_narrow_products_are_stored_as() -> None:
    assert BatchGemm("int8").store.out == "int32" and GroupedGemm("bfloat16").store.out == "bfloat16"
    assert BatchGemm("bfloat16").reference(np.ones((2, 3), ml_dtypes.bfloat16), np.ones((3, 1))).tolist() == [[3], [3]]
