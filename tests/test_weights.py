"""Products with quantized weights: results against what the weights stand for, every plan, packing, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirrors import mirror

import vortex
from vortex import operators as ops
from vortex.candidates import WIDEST_PANEL
from vortex.dtypes import GROUPS, WEIGHT_BITS
from vortex.epilogue import NOTHING
from vortex.errors import DeviceError, DtypeError, OperandError, ShapeError
from vortex.launcher import GemmKernel
from vortex.plans import Grid
from vortex.rkernel import decompose
from vortex.shapes import shape_of
from vortex.sieve import sieve
from vortex.specs import load_spec

FORMATS = (
    ("float32", ops.Weights("int4", group=32, zeros=True)),
    ("float32", ops.Weights("int8")),
    ("bfloat16", ops.Weights("int4", group=64)),
    ("bfloat16", ops.Weights("int8", zeros=True)),
)
"""Of A, and of B."""
ELEMENTS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
CHAIN = ops.bias() >> ops.gelu()
"""Of the first format."""


def chain_of(weights: ops.Weights) -> ops.Epilogue:
    return CHAIN if weights.group == 32 else NOTHING


@cache
def library(dtype: str, weights: ops.Weights) -> Any:
    operator = ops.Gemm(dtype=dtype, out_dtype="float32", weights=weights, epilogue=chain_of(weights))
    return vortex.compile(operator, needs.few_register_tiles(0.5 if dtype == "float32" else 0.7))


def extras(weights: ops.Weights, n: int) -> dict[str, np.ndarray]:
    return {"bias": np.linspace(-1, 1, n, dtype=np.float32)} if chain_of(weights) else {}


def drawn(weights: ops.Weights, n: int, k: int, seed: int = 5) -> tuple[np.ndarray, ...]:
    """Any weights and zero points, and scales that are powers of two: all is exact, and so are short sums."""
    rng, groups = np.random.default_rng(seed), weights.scales(k)
    q = rng.integers(-weights.largest - 1, weights.largest + 1, (k, n)).astype(np.int8)
    scales = np.exp2(rng.integers(-3, 4, (groups, n))).astype(np.float32)
    zeros = rng.integers(-weights.largest - 1, weights.largest + 1, (groups, n)).astype(np.int8)
    return (q, scales, zeros) if weights.zeros else (q, scales)


@needs.a_compiler
@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=str)
def test_every_residue_and_layout(dtype: str, weights: ops.Weights) -> None:
    """Groups, words and panels that are not full, k of one element and of none."""
    gemm, rng, chain = library(dtype, weights), np.random.default_rng(6), chain_of(weights)
    extents = [(m, n, k) for m in (1, 30) for n in (1, 17, 100) for k in (0, 1, 7, 31, 32, 33, 70, 1027)]
    for m, n, k in [*extents, (150, 200, 2100)]:
        parts = drawn(weights, n, k)
        a = rng.integers(-4, 5, (m, k)).astype(ELEMENTS[dtype])
        expected = chain.reference(a.astype(np.float64) @ weights.dequantize(*parts), **extras(weights, n))
        turned = gemm.pack(*(np.ascontiguousarray(part.T) for part in parts), transpose=True)
        packed = gemm.pack(*parts)
        assert np.array_equal(packed.data, turned.data)
        for left, flag in ((a, False), (np.ascontiguousarray(a.T), True)):
            found = gemm(left, packed, transpose_a=flag, **extras(weights, n))
            assert np.abs(found - expected).max(initial=0) <= (1e-6 if chain else 0) * np.abs(expected).max(
                initial=1
            ), (m, n, k)


@needs.a_compiler
def test_the_bits_are_those_of_the_float32_that_weights_stand_for(gemm: GemmKernel) -> None:
    """Widening rounds each weight once, and the chain of multiply-adds is that of outer products of float32."""
    dtype, weights = FORMATS[1]
    mine, rng = library(dtype, weights), np.random.default_rng(7)
    for m, n, k in [(1, 100, 900), (37, 130, 517)]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        q, scales = weights.quantize(b)
        wide = weights.dequantize(q, scales)
        outer = next(p for p in gemm.plans(m, n, k, threads=1) if not p.strategy.stage.dot and not p.regions)
        plan = replace(outer, grid=Grid(1, 1))  # a row may have its k cut, as it pays here
        assert np.array_equal(mine(a, mine.pack(q, scales)), gemm.run(plan, a, wide, np.empty((m, n), np.float32)))


@needs.a_compiler
@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=str)
def test_every_plan_and_number_of_threads_gives_the_same_bits(dtype: str, weights: ops.Weights) -> None:
    gemm, rng = library(dtype, weights), np.random.default_rng(8)
    for m, n, k in [(33, 100, 517), (2, 300, 5000)]:
        a = rng.standard_normal((m, k)).astype(ELEMENTS[dtype])
        b = gemm.pack(*weights.quantize(rng.standard_normal((k, n)).astype(np.float32)))
        vortex.set_num_threads(1)
        expected = gemm(a, b, **extras(weights, n))
        vortex.set_num_threads(2)
        assert np.array_equal(gemm(a, b, **extras(weights, n)), expected)
        turned = gemm(np.ascontiguousarray(a.T), b, transpose_a=True, **extras(weights, n))
        assert np.array_equal(turned, expected)  # k is cut where A is turned
        for plan in gemm.plans(m, n, k, threads=2):
            found = gemm.run(plan, a, b, np.empty((m, n), np.float32), **extras(weights, n))
            assert np.array_equal(found, expected), plan


@needs.a_compiler
def test_accumulate_and_an_output_with_gaps() -> None:
    for dtype, weights in FORMATS[1:]:
        gemm, parts = library(dtype, weights), drawn(weights, 61, 259)
        a, room = np.ones((37, 259), ELEMENTS[dtype]), np.zeros((37, 70), np.float32)
        for _ in range(2):
            gemm(a, gemm.pack(*parts), out=room[:, :61], accumulate=True)
        expected = 2 * (a.astype(np.float32) @ weights.dequantize(*parts))
        assert np.array_equal(room[:, :61], expected) and not room[:, 61:].any()


@needs.a_compiler
@pytest.mark.parametrize("place", [0, 3])
def test_the_mirror_picks_the_same_plan(place: int) -> None:
    gemm, rng, asked = library(*FORMATS[place]), np.random.default_rng(9), []
    for _ in range(600):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, 8.5, 3)))
        shape = shape_of(m, n, k, transpose_a=bool(rng.integers(2)), packed=True)
        asked.append((shape, int(rng.choice([1, 2, 8]))))
    for (shape, threads), expected in zip(asked, mirror(gemm.manifest.selector(), asked), strict=True):
        assert gemm.native_choice(shape, threads)[:2] == (expected.plan.index, expected.plan.grid), shape
        assert expected.plan.seconds < 1e10


@needs.a_compiler
def test_a_saved_library_knows_its_weights(tmp_path: Path) -> None:
    dtype, weights = FORMATS[0]
    library(dtype, weights).save(tmp_path / "w.vortex")
    again, parts = vortex.load(tmp_path / "w.vortex"), drawn(weights, 40, 64)
    found = again(np.ones((2, 64), np.float32), again.pack(*parts), **extras(weights, 40))
    assert again.weights == weights and found.shape == (2, 40) and "plan" in str(again.explain(2, 40, 64))


@needs.a_compiler
def test_refusals() -> None:
    gemm = library(*FORMATS[0])
    q, scales = np.zeros((64, 5), np.int8), np.ones((2, 5), np.float32)
    zeros = np.zeros((2, 5), np.int8)
    a, bias = np.zeros((3, 64), np.float32), np.zeros(5, np.float32)
    with pytest.raises(OperandError, match=r"without scales.*\(2, 5\)"):
        gemm.pack(q)
    with pytest.raises(ShapeError, match=r"scales .*does not fit q; expected float32 scales of shape \(2, 5\)"):
        gemm.pack(q, scales[:1], zeros)
    with pytest.raises(ShapeError, match=r"expected float32 scales of shape \(64, 1\)"):
        gemm.pack(q, scales, zeros, transpose=True)
    with pytest.raises(DtypeError, match=r"q .*wrong dtype.*int8 that int4 can hold"):
        gemm.pack(q.astype(np.int32), scales, zeros)
    with pytest.raises(DtypeError, match=r"scales .*wrong dtype"):
        gemm.pack(q, scales.astype(np.float64), zeros)
    with pytest.raises(OperandError, match=r"without zeros.*int4 in groups of 32 with zero points; pass them"):
        gemm.pack(q, scales)
    with pytest.raises(OperandError, match=r"with zeros, .*weights of this library are int8 in columns; .*drop them"):
        library(*FORMATS[1]).pack(q, scales[:1], zeros[:1])
    with pytest.raises(ShapeError, match=r"zeros .*does not fit q; expected int8 zeros of shape \(2, 5\)"):
        gemm.pack(q, scales, zeros[:1])
    with pytest.raises(DtypeError, match=r"zeros .*wrong dtype.*expected int8 zeros"):
        gemm.pack(q, scales, zeros.astype(np.uint8))
    for wide in (8, -9):
        with pytest.raises(OperandError, match=r"int8 that int4 can hold; clip"):
            gemm.pack(np.full((64, 5), wide, np.int8), scales, zeros)
    with pytest.raises(OperandError, match=r"b .*is not packed.*pack\(q, scales\)"):
        gemm(a, np.zeros((64, 5), np.float32), bias=bias)
    with pytest.raises(OperandError, match="another library"):
        other = library(*FORMATS[1])
        other(a, gemm.pack(q, scales, zeros))
    with pytest.raises(ShapeError, match="inner extent"):
        gemm(a[:, :63], gemm.pack(q, scales, zeros), bias=bias)


def test_operators_that_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"Weights\('int3'\): expected one of \['int4', 'int8'\]"):
        ops.Weights("int3")
    with pytest.raises(ShapeError, match="group=24"):
        ops.Weights("int4", group=24)
    with pytest.raises(DtypeError, match="expected Weights"):
        ops.Gemm(weights="int4")  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="expected float32, bfloat16 or float16"):
        ops.Gemm(dtype="int8", weights=ops.Weights())
    with pytest.raises(DtypeError, match="one or the other"):
        ops.Gemm(prologue=ops.relu(), weights=ops.Weights())
    with pytest.raises(DeviceError, match="only CPU libraries"):
        vortex.compile(ops.Gemm(weights=ops.Weights()), "a100")


@given(
    st.sampled_from(sorted(WEIGHT_BITS)), st.sampled_from(GROUPS), st.booleans(), st.integers(0, 80), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_quantized_weights_are_within_half_a_step(
    dtype: str, group: int, zeros: bool, k: int, n: int, transpose: bool
) -> None:
    """Within a whole one where the zero point is rounded too."""
    weights = ops.Weights(dtype, group=group, zeros=zeros)
    b = (np.random.default_rng(k).standard_normal((k, n)) + 2 * zeros).astype(np.float32)
    q, scales, *more = weights.quantize(b.T if transpose else b, transpose=transpose)
    back = weights.dequantize(q, scales, *more, transpose=transpose)
    steps = np.repeat(scales.T if transpose else scales, group or max(k, 1), axis=0)[:k]
    assert q.max(initial=0) <= weights.largest and q.min(initial=0) >= -weights.largest - zeros
    assert (np.abs((back.T if transpose else back) - b) <= (1.0001 if zeros else 0.5001) * steps).all()
    assert len(more) == zeros and all(part.shape == scales.shape and part.dtype == np.int8 for part in more)


@pytest.mark.parametrize("hardware", ["epyc-zen5", "xeon-e5-2680v3"])
@pytest.mark.parametrize(("group", "dtype"), [(0, "bfloat16"), (16, "float16"), (256, "float32"), (128, "bfloat16")])
def test_steps_of_k_begin_with_a_group(hardware: str, group: int, dtype: str) -> None:
    spec, weights = load_spec(hardware), ops.Weights("int8", group=group)
    rkernel = decompose(ops.Gemm(dtype=dtype, weights=weights), spec)
    found, isa, words = sieve(rkernel), spec.multiplier(dtype), rkernel.words
    assert words and words.weights == weights and words.element == dtype
    assert found.strategies
    for strategy in found.strategies:
        assert (
            strategy.l1.k * words.per_word % (group or 1) == 0 and not strategy.stage.pack_b and not strategy.stage.swap
        )
    for tile in found.register_tiles:
        rows, vectors = tile.m, tile.n // isa.lanes
        assert vectors <= WIDEST_PANEL and rows * vectors + min(rows, vectors) + words.in_flight <= isa.registers
