"""Products of bfloat16, int8 and float16 on CPUs: results, residues, what is refused, and that both selectors agree."""

from __future__ import annotations

import itertools
import mmap
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest
from legalized import legalize, zen5
from mirrors import mirror
from priced import computed

import vortex
from vortex import operators as ops
from vortex.affinity import cpu_flags
from vortex.dtypes import WORDS
from vortex.epilogue import NOTHING
from vortex.errors import DtypeError, OperandError, ShapeError, SpecError
from vortex.hardware import HardwareSpec
from vortex.launcher import UNREAD, left_unread
from vortex.plans import LaunchPlan, OperandB, Shape
from vortex.rkernel import decompose
from vortex.shapes import shape_of
from vortex.sieve import sieve
from vortex.specs import load_spec

RNG = np.random.default_rng(3)
FLAGS = {"bfloat16": "avx512_bf16", "int8": "avx512_vnni", "float16": "f16c"}
ELEMENTS = {"bfloat16": ml_dtypes.bfloat16, "int8": np.int8, "float16": np.float16}
DTYPES = tuple(FLAGS)


TILES = "amx_tile" in cpu_flags()
"""Whether this machine multiplies bfloat16 and int8 in tiles besides: all tests of libraries are run with both."""


MULTIPLIERS = ["vectors", *["tiles"] * TILES, pytest.param("legalized", marks=pytest.mark.emulate)]


@pytest.fixture(autouse=True, params=MULTIPLIERS)
def multiplier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHOSEN, "by", request.param)
    if request.param == "legalized":
        legalize(monkeypatch)


CHOSEN = {"by": "vectors"}


def hardware(dtype: str) -> HardwareSpec:
    """What libraries of this dtype are compiled for here."""
    if CHOSEN["by"] == "legalized":
        if dtype == "float16":
            pytest.skip("it is widened, by what AVX2 has too")
        return zen5(0.6)
    if not {"avx2", "fma", FLAGS[dtype]} <= cpu_flags() or (dtype != "float16" and "avx512bw" not in cpu_flags()):
        pytest.skip(f"this machine has no {FLAGS[dtype]}, which products of {dtype} are built on here")
    if CHOSEN["by"] == "vectors":
        return needs.few_register_tiles(0.6).without_tiles()
    if dtype == "float16":
        pytest.skip("AMX has no tiles of float16 here")
    return needs.few_register_tiles(1.0)


def library(dtype: str, out: str = "", chain: ops.Epilogue = NOTHING) -> Any:
    return compiled(dtype, out or ("int32" if dtype == "int8" else "float32"), chain, hardware(dtype))


@cache
def compiled(dtype: str, out: str, chain: ops.Epilogue, spec: HardwareSpec) -> Any:
    return vortex.compile(ops.Gemm(dtype=dtype, out_dtype=out, epilogue=chain), spec)


def without_dots_of_bfloat16() -> HardwareSpec:
    """This machine as if nothing in it multiplied bfloat16: the elements are made float32 on their way in."""
    if CHOSEN["by"] == "legalized":
        pytest.skip("it is widened, by what AVX2 has too")
    spec = needs.few_register_tiles().without_tiles()
    spec = spec.model_copy(update={"instructions": tuple(i for i in spec.instructions if i.dtype != "bfloat16")})
    assert spec.words("bfloat16") is WORDS["bfloat16 widened"]
    return spec


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """All of int8, or integers whose products and sums are exact in float32."""
    low, high = (-128, 128) if dtype == "int8" else (-8, 9)
    return RNG.integers(low, high, shape).astype(np.float32).astype(ELEMENTS[dtype])


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def stored(matrix: np.ndarray, transposed: bool, gap: int) -> np.ndarray:
    """The matrix with `gap` elements between its lines, as it is or transposed."""
    matrix = matrix.T if transposed else matrix
    room = np.zeros((matrix.shape[0], matrix.shape[1] + gap), matrix.dtype)
    room[:, : matrix.shape[1]] = matrix
    return room[:, : matrix.shape[1]]


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_k_add_to_sums_that_no_second_cache_holds(dtype: str) -> None:
    gemm, k = library(dtype), 2100
    a, b = drawn(dtype, 523, k), drawn(dtype, k, 519)
    expected, packed = exact(a, b), gemm.pack(b)
    plans = gemm.plans(523, 519, k, threads=2, packed=True)
    stepped = {plan.index: plan for plan in plans if plan.strategy.stage.tiled and plan.strategy.l1.k * 2 < k}
    assert stepped
    for plan in stepped.values():
        assert np.array_equal(gemm.run(plan, a, packed, np.empty_like(expected, gemm(a, packed).dtype)), expected), plan


@needs.a_compiler
@pytest.mark.parametrize(("dtype", "widened"), [*((dtype, False) for dtype in DTYPES), ("bfloat16", True)])
def test_every_residue_and_layout(dtype: str, widened: bool) -> None:
    gemm = compiled(dtype, "float32", NOTHING, without_dots_of_bfloat16()) if widened else library(dtype)
    extents = [(m, n, k) for m in (1, 2, 7, 27) for n in (1, 16, 17, 50) for k in (1, 2, 3, 4, 5, 31, 66, 131)]
    for place, (m, n, k) in enumerate([*extents, (63, 200, 1025), (300, 33, 700), (5, 900, 2050), (3, 3, 0)]):
        a, b = drawn(dtype, m, k), drawn(dtype, k, n)
        expected = exact(a, b)
        for turn_a, turn_b in itertools.product((False, True), repeat=2):
            gap = (place + turn_a) % 3
            left, right = stored(a, turn_a, gap), stored(b, turn_b, gap)
            plain = gemm(left, right, transpose_a=turn_a, transpose_b=turn_b)
            packed = gemm(left, gemm.pack(right, transpose=turn_b), transpose_a=turn_a)
            assert np.array_equal(plain, expected) and np.array_equal(packed, expected), (m, n, k, turn_a, turn_b)


@needs.a_compiler
def test_unsigned_by_signed_bytes() -> None:
    gemm = library("int8")
    for m, n, k in [(1, 1, 1), (5, 40, 63), (70, 90, 300)]:
        a, b = RNG.integers(0, 256, (m, k)).astype(np.uint8), drawn("int8", k, n)
        assert np.array_equal(gemm(a, b), exact(a, b)) and np.array_equal(gemm(a, gemm.pack(b)), exact(a, b))


@needs.a_compiler
@pytest.mark.parametrize(("m", "n", "k"), [(17, 8, 8), (40, 64, 136), (300, 200, 1024)])
def test_what_torch_gives(m: int, n: int, k: int) -> None:
    """Extents that torch takes: more than 16 rows, multiples of 8 besides."""
    torch = pytest.importorskip("torch")
    a, b = drawn("int8", m, k), drawn("int8", k, n)
    expected = torch._int_mm(torch.from_numpy(a), torch.from_numpy(b))
    assert np.array_equal(library("int8")(a, b), expected.numpy())


@needs.a_compiler
def test_any_byte_of_a_may_stand_for_zero() -> None:
    gemm = library("int8")
    for m, n, k in [(1, 1, 1), (5, 40, 63), (70, 90, 300), (3, 20, 2050)]:
        b = drawn("int8", k, n)
        unsigned = RNG.integers(0, 256, (m, k)).astype(np.uint8)
        for a, zeros in ((drawn("int8", m, k), (-128, -3, 127)), (unsigned, (0, 1, 128, 255))):
            for zero in zeros:
                expected = (a.astype(np.int64) - zero) @ b.astype(np.int64)
                for right in (b, stored(b.T, True, 1), gemm.pack(b)):
                    out = gemm(a, right, zero_a=zero)
                    assert np.array_equal(out, expected), (m, n, k, zero)
                    gemm(a, right, out=out, accumulate=True, zero_a=zero)
                    assert np.array_equal(out, 2 * expected)
                plan = gemm.plan(m, n, k, threads=2)
                assert np.array_equal(gemm.run(plan, a, b, np.empty_like(out), zero_a=np.int32(zero)), expected)


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_products_of_operands_as_they_lie(dtype: str) -> None:
    """Few rows by a transposed B, and many by few columns of one, by every plan of the family and as a call."""
    gemm = library(dtype)
    rows = [(drawn(dtype, 32, 300), 0)]
    if dtype == "int8":
        rows += [(rows[0][0], -3), *((RNG.integers(0, 256, (32, 300)).astype(np.uint8), zero) for zero in (0, 1, 255))]
    for m, n, k in [(1, 1, 1), (1, 700, 33), (2, 45, 300), (11, 64, 257), (32, 40, 3), (26, 3, 130), (8, 140, 297)]:
        b = stored(drawn(dtype, k, n), True, 1)
        plans = [plan for plan in gemm.plans(m, n, k, threads=2, transpose_b=True) if plan.strategy.stage.dot]
        assert (len({plan.grid for plan in plans}) > 1) == (min(m, n) <= gemm.manifest.rates.registers)
        for (a, zero), plan in itertools.product(rows, plans):
            left = stored(a[:m, :k], False, 2)
            out = np.zeros((m, n), np.int32 if dtype == "int8" else np.float32)
            given = {"zero_a": zero} if zero else {}
            expected = (left.astype(np.float64) - zero) @ b.T.astype(np.float64)
            assert np.array_equal(gemm.run(plan, left, b, out, transpose_b=True, **given), expected), plan
            gemm(left, b, out=out, transpose_b=True, accumulate=True, **given)
            assert np.array_equal(out, 2 * expected)


@needs.a_compiler
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("dtype", "widened"), [*((dtype, False) for dtype in DTYPES), ("bfloat16", True)])
def test_every_plan_in_any_parts(dtype: str, widened: bool, narrow: bool) -> None:
    """Also in parts that are empty; into sums that lie in the output, and into an output that has no room for them."""
    spec, sums = without_dots_of_bfloat16() if widened else hardware(dtype), "int32" if dtype == "int8" else "float32"
    chain = ops.scale(0.125) if narrow and dtype == "int8" else NOTHING
    gemm = compiled(dtype, dtype if narrow else sums, chain, spec)
    for (m, n, k), turn_a, turn_b in itertools.product([(5, 37, 301), (33, 3, 100)], (False, True), (False, True)):
        a, b = drawn(dtype, m, k), drawn(dtype, k, n)
        left, right = stored(a, turn_a, 1), stored(b, turn_b, 0)
        for packed, zero in itertools.product((False, True), (0, -3) if dtype == "int8" else (0,)):
            product = exact(a, b) - zero * b.sum(0, dtype=np.float64)
            expected = np.clip(np.rint(product / 8), -128, 127) if chain else product
            factor = gemm.pack(right, transpose=turn_b) if packed else right
            flags = {"transpose_a": turn_a, "transpose_b": turn_b and not packed}
            given = {"zero_a": zero} if zero else {}
            for plan in gemm.plans(m, n, k, threads=2, packed=packed, **flags):
                for parts in (2, 3, 23):
                    cut = replace(plan, grid=replace(plan.grid, k=parts))
                    out = np.zeros((m, n + 3), ELEMENTS[dtype] if narrow else sums)
                    if gemm.manifest.rates.cores > 1:
                        gemm.run(cut, left, factor, out[:, :n], **flags, **given)
                        assert np.array_equal(out[:, :n], expected.astype(out.dtype)), (m, n, k, cut)
                        assert not out[:, n:].any()
                    else:  # tiles
                        with pytest.raises(OperandError, match="plan"):
                            gemm.run(cut, left, factor, out[:, :n], **flags, **given)


@needs.a_compiler
@pytest.mark.parametrize(("dtype", "widened"), [*((dtype, False) for dtype in DTYPES), ("bfloat16", True)])
def test_long_reductions_are_split(dtype: str, widened: bool) -> None:
    gemm = compiled(dtype, "float32", NOTHING, without_dots_of_bfloat16()) if widened else library(dtype)
    split = 0
    for m, n, k in [(3, 5, 60_000), (32, 32, 50_000), (32, 40, 50_001)]:
        a, b = drawn(dtype, m, k), drawn(dtype, k, n)
        split += gemm.plan(m, n, k).grid.k > 1
        before = np.ones((m, n), np.int32 if dtype == "int8" else np.float32)
        for count in (1, 2, 3):
            vortex.set_num_threads(count)
            out = before.copy()
            gemm(a, b, out=out, accumulate=True)
            assert np.array_equal(gemm(a, gemm.pack(b)), exact(a, b)) and np.array_equal(out, exact(a, b) + 1)
    assert bool(split) == (gemm.manifest.rates.cores > 1)


@needs.a_compiler
def test_column_sums_of_a_deep_reduction_may_wrap() -> None:
    """Sums modulo 2^32: times its zero point a column sum is past 31 bits, while the product is not."""
    a, b = np.full((2, 140_000), 128, np.uint8), np.full((140_000, 3), -128, np.int8)
    a[1, :5] = 129
    found = library("int8")(a, b, zero_a=128)
    assert found.tolist() == [[0] * 3, [-640] * 3]


@needs.a_compiler
@pytest.mark.parametrize("sign", [-128, 127])
def test_sums_of_the_largest_bytes_do_not_saturate(sign: int) -> None:
    a, b = np.full((3, 5000), -128, np.int8), np.full((5000, 20), sign, np.int8)
    assert (library("int8")(a, b) == -128 * sign * 5000).all()


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulate_and_strided_output(dtype: str) -> None:
    gemm = library(dtype)
    a, b = drawn(dtype, 37, 259), drawn(dtype, 259, 61)
    room = np.zeros((37, 70), np.int32 if dtype == "int8" else np.float32)
    gemm(a, b, out=room[:, :61])
    gemm(a, b, out=room[:, :61], accumulate=True)
    assert np.array_equal(room[:, :61], 2 * exact(a, b)) and not room[:, 61:].any()


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(OperandB))
def test_every_plan_gives_the_same_bits(dtype: str, kind: OperandB) -> None:
    gemm = library(dtype)
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    for m, n, k in [(33, 100, 517), (3, 700, 64), (150, 20, 2000)]:
        a, b = drawn(dtype, m, k), drawn(dtype, k, n)
        right = gemm.pack(b) if packed else stored(b, transposed, 1)
        plans = gemm.plans(m, n, k, threads=2, packed=packed, transpose_b=transposed)
        assert plans
        for plan in plans:
            out = np.empty((m, n), np.int32 if dtype == "int8" else np.float32)
            gemm.run(plan, a, right, out, transpose_b=transposed)
            assert np.array_equal(out, exact(a, b)), plan


@needs.a_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_error_within_the_bound_of_float32_summation(dtype: str) -> None:
    """|computed - exact| <= gamma_k |A| |B|; a dot instruction rounds no more often than a chain of multiply-adds."""
    gemm = library(dtype)
    for m, n, k in [(17, 33, 10), (40, 64, 1000), (9, 50, 9001)]:
        a, b = (RNG.standard_normal(s).astype(ELEMENTS[dtype]) for s in ((m, k), (k, n)))
        magnitude = exact(np.abs(a), np.abs(b))
        bound = k * 2.0**-24 / (1 - k * 2.0**-24)
        assert (np.abs(gemm(a, b) - exact(a, b)) <= bound * magnitude).all()


@needs.a_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_that_end_at_an_unmapped_page(dtype: str) -> None:
    """Words past the end of k, and lanes past the last column, are not read."""
    import ctypes

    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 4 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guarded in (page, 3 * page):
        assert libc.mprotect(ctypes.c_void_p(base + guarded), ctypes.c_size_t(page), 0) == 0
    gemm, element = library(dtype), np.dtype(ELEMENTS[dtype])

    def at_the_end(values: np.ndarray, end: int) -> np.ndarray:
        size = values.nbytes
        view = np.frombuffer(memory, np.uint8)[end - size : end].view(element).reshape(values.shape)
        view[...] = values
        return view

    for m, n, k in [(3, 5, 7), (13, 17, 33), (1, 1, 1), (9, 37, 6)]:
        a, b = drawn(dtype, m, k), drawn(dtype, k, n)
        for turn_a, turn_b in itertools.product((False, True), repeat=2):
            left = at_the_end(stored(a, turn_a, 0), page)
            right = at_the_end(stored(b, turn_b, 0), 3 * page)
            found = gemm(left, right, transpose_a=turn_a, transpose_b=turn_b)
            assert np.array_equal(found, exact(a, b)), (m, n, k)


@needs.a_compiler
def test_output_of_bfloat16_is_rounded_once() -> None:
    gemm = library("bfloat16", "bfloat16")
    for m, n, k in [(5, 33, 40), (60, 100, 3001)]:
        a, b = drawn("bfloat16", m, k), drawn("bfloat16", k, n)
        out = gemm(a, b)
        assert out.dtype == ml_dtypes.bfloat16
        assert np.array_equal(out, exact(a, b).astype(np.float32).astype(ml_dtypes.bfloat16))


@needs.a_compiler
def test_requantization_is_an_epilogue() -> None:
    chain = ops.scale() >> ops.bias() >> ops.relu() >> ops.cast("uint8")
    gemm = library("int8", "uint8", chain)
    for m, n, k in [(1, 1, 3), (30, 70, 129), (8, 200, 3000)]:
        a, b = drawn("int8", m, k), drawn("int8", k, n)
        scale = RNG.uniform(1e-5, 1e-3, n).astype(np.float32)
        bias = RNG.uniform(-5, 5, n).astype(np.float32)
        expected = chain.reference(exact(a, b), scale=scale, bias=bias)
        for right in (b, gemm.pack(b)):
            found = gemm(a, right, scale=scale, bias=bias)
            assert found.dtype == np.uint8 and np.abs(found.astype(int) - expected.astype(int)).max() <= 1


@needs.a_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_mirror_picks_the_same_plan(dtype: str) -> None:
    gemm, rng, asked = library(dtype), np.random.default_rng(8), []
    for _ in range(1500):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, 8.5, 3)))
        kind = {"transpose_b": bool(rng.integers(2)), "packed": False} if rng.integers(2) else {"packed": True}
        shape = shape_of(m, n, k, transpose_a=bool(rng.integers(2)), ldb=int(rng.integers(2)) * (n + k + 3), **kind)
        asked.append((shape, int(rng.choice([1, 2, 8]))))
    for (shape, threads), expected in zip(asked, mirror(gemm.manifest.selector(), asked), strict=True):
        assert gemm.native_choice(shape, threads)[:2] == (expected.plan.index, expected.plan.grid), shape


@needs.a_compiler
def test_refusals() -> None:
    gemm = library("int8")
    good = drawn("int8", 4, 8)
    with pytest.raises(DtypeError, match="int8 or uint8"):
        gemm(good.astype(np.int16), good.T)
    with pytest.raises(DtypeError, match=r"b .*int8 in this library"):
        gemm(good, good.T.astype(np.uint8))
    with pytest.raises(DtypeError, match="int8"):
        gemm.pack(good.astype(np.float32))
    with pytest.raises(DtypeError, match="int32"):
        gemm(good, good.T, out=np.empty((4, 4), np.float32))
    for a, zero in ((good, 128), (good, -129), (good.view(np.uint8), -1), (good.view(np.uint8), 256)):
        with pytest.raises(OperandError, match=r"a .*zero point.*its bytes can hold"):
            gemm(a, good.T, zero_a=zero)
    with pytest.raises(OperandError, match=r"zero_a=0.5: expected a whole number"):
        gemm(good, good.T, zero_a=0.5)
    with pytest.raises(OperandError, match="elements other than int8"):
        library("bfloat16")(drawn("bfloat16", 4, 8), drawn("bfloat16", 8, 4), zero_a=1)
    with pytest.raises(ShapeError, match="inner extent"):
        gemm(good, good)
    with pytest.raises(OperandError, match="another library"):
        gemm(good, library("bfloat16").pack(drawn("bfloat16", 8, 4)))


def test_a_dtype_without_an_instruction_names_it_and_what_there_is() -> None:
    with pytest.raises(DtypeError, match=r"vpdpbusd.*\['float32'\]") as told:
        vortex.compile(ops.Gemm(dtype="int8"), "xeon-e5-2680v3")
    assert isinstance(told.value, SpecError)


@pytest.mark.parametrize(
    ("hardware", "dtype", "instruction", "words"),
    [
        ("epyc-zen5", "int8", "vpdpbusd-zmm", "int8"),
        ("epyc-zen5", "bfloat16", "vdpbf16ps-zmm", "bfloat16"),
        ("epyc-zen5", "float16", "vfmadd231ps-zmm", "float16 widened"),
        ("xeon-e5-2680v3", "bfloat16", "vfmadd231ps-ymm", "bfloat16 widened"),
        ("xeon-8255c", "int8", "vpdpbusd-zmm", "int8"),
    ],
)
def test_the_instruction_comes_from_the_spec(hardware: str, dtype: str, instruction: str, words: str) -> None:
    spec = load_spec(hardware)
    assert spec.multiplier(dtype).name == instruction and spec.words(dtype) is WORDS[words]
    found = sieve(decompose(ops.Gemm(dtype=dtype), spec))
    isa, in_flight = spec.multiplier(dtype), WORDS[words].in_flight
    for tile in found.register_tiles:
        rows, vectors = tile.m, tile.n // isa.lanes
        assert rows * vectors + min(rows, vectors) + in_flight <= isa.registers
    assert any(s.stage.tiled for s in found.strategies) and not any(s.stage.swap for s in found.strategies)
    assert sum(s.stage.dot for s in found.strategies) == 1


def test_arrays_of_bfloat16_are_read_where_they_lie() -> None:
    """By their addresses, as float32 arrays are; those of other types of ml_dtypes are looked at in Python."""
    gemm = library("bfloat16", "bfloat16")
    a, b, out = drawn("bfloat16", 5, 7), drawn("bfloat16", 7, 9), np.empty((5, 9), ml_dtypes.bfloat16)
    if gemm._arrays is left_unread:
        pytest.skip("this interpreter's arrays are not read by address")
    assert gemm._arrays(id(a), id(b), id(out), 0) == 0
    assert (out.astype(np.float32) == exact(a, b).astype(ml_dtypes.bfloat16)).all()
    small = a.astype(ml_dtypes.float8_e4m3fn)
    assert gemm._arrays(id(small), id(b), id(out), 0) == UNREAD
    with pytest.raises(DtypeError, match=r"cannot be read|cast the operand"):
        gemm(small, b, out)
    out.flags.writeable = False
    with pytest.raises(OperandError, match="out is read-only"):
        gemm(a, b, out)


class TestHeld:
    """B in words in registers, rows of A streaming past: bfloat16 by dot instructions, without tiles."""

    @staticmethod
    def gemm(out: str = "bfloat16", chain: ops.Epilogue = NOTHING) -> Any:
        made = library("bfloat16", out, chain)
        if not WORDS[made.manifest.words].held:
            pytest.skip("tiles are as quick where a product is tall")
        assert any(strategy.stage.held for strategy in made.strategies)
        return made

    @staticmethod
    def plans(gemm: Any, m: int, n: int, k: int, **how: Any) -> tuple[list[LaunchPlan], LaunchPlan]:
        """Those of the family on every grid, and one of register tiles."""
        found = gemm.plans(m, n, k, threads=2, **how)
        held = [plan for plan in found if plan.strategy.stage.held]
        assert held
        return held, next(plan for plan in found if plan.strategy.stage.tiled)

    @pytest.mark.parametrize("kind", ["plain", "transposed", "packed"])
    def test_every_short_k_has_the_bits_of_outer_products(self, kind: str) -> None:
        """Odd ones too, whose last word is half of the next row's; two steps of k; heights that leave rows over."""
        gemm, transposed = self.gemm(), kind == "transposed"
        deepest = 2 * next(strategy.l0.k for strategy in gemm.strategies if strategy.stage.held)
        for k in (*range(1, deepest + 6), 2 * deepest - 1, 2 * deepest, 2 * deepest + 1):
            for m, n in ((1, 5), (13, 16), (300, 21)) if k % 5 else ((270, 100),):
                around = RNG.standard_normal((m, k + 3)).astype(np.float32)
                around[:, k:] = np.nan
                a, b = (x.astype(ml_dtypes.bfloat16) for x in (around, RNG.standard_normal((k, n))))
                a, given = a[:, :k], np.ascontiguousarray(b.T) if transposed else b
                right = gemm.pack(b) if kind == "packed" else given
                flags = {"transpose_b": True} if transposed else {}
                plans, outer = self.plans(gemm, m, n, k, lda=k + 3, packed=kind == "packed", **flags)
                expected, out = (np.full((m, n), 7, ml_dtypes.bfloat16) for _ in "eo")
                gemm.run(outer, a, right, expected, **flags)
                for plan in plans:
                    out[:] = 7
                    gemm.run(plan, a, right, out, **flags)
                    assert out.tobytes() == expected.tobytes(), (m, n, k, plan)

    @pytest.mark.parametrize("chain", [ops.bias() >> ops.relu() >> ops.residual(), ops.bias() >> ops.gelu()], ids=str)
    def test_chains_in_registers_and_apart(self, chain: ops.Epilogue) -> None:
        gemm = self.gemm("bfloat16", chain)
        for m, n, k in ((70, 21, 17), (270, 37, 70)):
            a, b = drawn("bfloat16", m, k), drawn("bfloat16", k, n)
            shapes = {x.name: (n,) if x.per == "column" else (m, n) for x in chain.operands}
            given = {name: RNG.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}
            expected, out = (np.empty((m, n), ml_dtypes.bfloat16) for _ in "eo")
            plans, outer = self.plans(gemm, m, n, k)
            gemm.run(outer, a, b, expected, **given)
            for plan in plans:
                gemm.run(plan, a, b, out, **given)
                assert out.tobytes() == expected.tobytes()

    def test_it_adds_to_what_is_there(self) -> None:
        gemm, a, b = self.gemm("float32"), drawn("bfloat16", 3001, 16), drawn("bfloat16", 16, 12)
        out = RNG.integers(-4, 5, (3001, 12)).astype(np.float32)
        expected = out + exact(a, b)
        for plan in self.plans(gemm, 3001, 12, 16)[0]:
            added = out.copy()
            gemm.run(plan, a, b, added, accumulate=True)
            assert (added == expected).all()

    @pytest.mark.parametrize("name", ["epyc-zen4", "epyc-zen5"])
    def test_it_is_chosen_for_a_tall_product_of_short_k(self, name: str) -> None:
        costs = computed(load_spec(name), "bfloat16")
        for m in (3001, 5000):
            assert costs.select(Shape(m, 12, 16), 1).strategy.stage.held

    def test_a_turned_a_is_not_read_so(self) -> None:
        gemm = self.gemm()
        assert self.plans(gemm, 5000, 12, 16)[0]
        assert not any(plan.strategy.stage.held for plan in gemm.plans(5000, 12, 16, transpose_a=True))
