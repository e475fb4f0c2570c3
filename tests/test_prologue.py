"""Chains on A: batches, groups and narrow elements, each element of A exactly once and nothing else."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest
from legalized import legalize, zen5
from test_words import hardware, without_dots_of_bfloat16

import vortex
from vortex import OperandError, UnknownNameError
from vortex import operators as ops
from vortex.batch_launcher import BatchGemmKernel
from vortex.dtypes import WORDS
from vortex.grouped_launcher import GroupedGemmKernel
from vortex.hardware import HardwareSpec
from vortex.operators import compiled_as, rebuilt, settings
from vortex.plans import OperandB
from vortex.rkernel import decompose
from vortex.sieve import sieve
from vortex.specs import load_spec

CHAIN = ops.relu() >> ops.scale(2.0) >> ops.clamp(1.0, 6.0)
"""Exact on integers, and another thing done twice; what lies past an edge becomes 1."""
TRANSPOSES = list(itertools.product((False, True), repeat=2))
RNG = np.random.default_rng(11)
BATCHES = [
    ((4,), (4,), 3, 5, 7),
    ((2, 3), (1, 3), 17, 33, 66),
    ((3,), (), 1, 40, 129),
    ((3,), (), 9, 40, 129),
    ((), (5,), 8, 1, 31),
    ((), (3,), 8, 30, 31),
    ((2, 2), (2, 1), 40, 70, 513),
    ((2,), (2,), 5, 6, 0),
]
"""Batch axes of A and of B, m, n and k: some are shared, some of those folded into rows or columns of one product."""


LEGALIZED = "bfloat16 by AVX2"
ELEMENTS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def integers(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small integers: every product and sum of them is exact in float32."""
    return RNG.integers(-4, 5, shape).astype(ELEMENTS[dtype])


def stored(matrices: np.ndarray, transposed: bool, padding: int) -> np.ndarray:
    """With `padding` elements after every line, as they are or each transposed."""
    lines = matrices.swapaxes(-1, -2) if transposed else matrices
    room = np.zeros([*lines.shape[:-1], lines.shape[-1] + padding], matrices.dtype)[..., : lines.shape[-1]]
    room[...] = lines
    return room


def check_batches(bmm: BatchGemmKernel) -> None:
    """Every layout, packed B's, sums added to, and every plan."""
    operator, dtype = bmm.operator, bmm.manifest.dtype
    for of_a, of_b, m, n, k in BATCHES:
        a, b = integers(*of_a, m, k, dtype=dtype), integers(*of_b, k, n, dtype=dtype)
        expected = operator.reference(a, b)
        for turn_a, turn_b in TRANSPOSES:
            left, right = stored(a, turn_a, m % 3), stored(b, turn_b, n % 2)
            flags = {"transpose_a": turn_a, "transpose_b": turn_b}
            assert np.array_equal(bmm(left, right, **flags), expected), (of_a, of_b, m, n, k, flags)
            packed = bmm.pack(right, transpose=turn_b)
            assert np.array_equal(bmm(left, packed, transpose_a=turn_a), expected), (of_a, of_b, m, n, k, flags)
        out = bmm(a, b)
        assert np.array_equal(bmm(a, b, out=out, accumulate=True), 2 * expected)
        products = int(np.prod(expected.shape[:-2], initial=1))
        for plan in bmm.plans(products, m, n, max(k, 1), threads=2):
            assert np.array_equal(bmm.run(plan, a, b, np.empty_like(out)), expected), plan
    by_head = integers(30, 90, dtype=dtype).reshape(30, 3, 30).transpose(1, 0, 2)
    x, out = integers(5, 30, dtype=dtype), np.empty((5, 3, 30), np.float32)
    bmm(x, by_head, out=out.swapaxes(0, 1))  # columns of one product, whose A is shared
    assert np.array_equal(out.swapaxes(0, 1), operator.reference(x, by_head))


def check_groups(kernel: GroupedGemmKernel) -> None:
    dtype = kernel.manifest.dtype
    for rows, n, k in [([3, 0, 40, 1], 33, 130), ([1, 1, 1], 5, 3), ([70], 20, 64), ([0, 0], 4, 4)]:
        a, b = integers(sum(rows), k, dtype=dtype), integers(len(rows), k, n, dtype=dtype)
        expected = kernel.operator.reference(a, b, rows)
        for turn_a, turn_b in TRANSPOSES:
            left, right = stored(a, turn_a, 1), stored(b, turn_b, 2)
            assert np.array_equal(kernel(left, right, rows, transpose_a=turn_a, transpose_b=turn_b), expected)
            packed = kernel.pack(right, transpose=turn_b)
            assert np.array_equal(kernel(left, packed, rows, transpose_a=turn_a), expected)


@needs.a_compiler
def test_products_of_a_batch(small: Any) -> None:
    bmm = vortex.compile(ops.BatchGemm(prologue=CHAIN), small)
    assert all(strategy.stage.pack_a and not strategy.stage.swap for strategy in bmm.strategies)
    check_batches(bmm)
    assert f"load   {CHAIN} on A while it is packed" in str(bmm.explain(4, 3, 5, 7))


@needs.a_compiler
def test_groups_of_rows(small: Any) -> None:
    kernel = vortex.compile(ops.GroupedGemm(prologue=CHAIN), small)
    check_groups(kernel)
    found = kernel.explain([3, 40], 33, 130)
    assert all(f"load   {CHAIN} on A while it is packed" in str(told) for told in found.values())


@needs.a_compiler
def test_the_operator_says_how_its_operands_lie(small: Any) -> None:
    operator = ops.BatchGemm(transpose_a=True, transpose_b=True, prologue=CHAIN)
    bmm, a, b = vortex.compile(operator, small), integers(2, 30, 5), integers(2, 7, 30)
    assert np.array_equal(bmm(a, b), operator.reference(a, b))
    assert np.array_equal(bmm(a, bmm.pack(b)), operator.reference(a, b))


@pytest.mark.parametrize("operator", [ops.BatchGemm, ops.GroupedGemm])
def test_their_library_is_that_of_one_product(operator: type[ops.BatchGemm | ops.GroupedGemm]) -> None:
    one = operator(prologue=CHAIN, epilogue=ops.bias(), out_dtype="bfloat16")
    assert compiled_as(one) == ops.Gemm(epilogue=ops.bias(), prologue=CHAIN, out_dtype="bfloat16")
    assert rebuilt(one.name, settings(one)) == one


@pytest.mark.parametrize("operator", [ops.BatchGemm, ops.GroupedGemm])
def test_refused_at_the_door(operator: type[ops.BatchGemm | ops.GroupedGemm]) -> None:
    with pytest.raises(OperandError, match=rf"{operator.__name__}.*no tensors"):
        operator(prologue=ops.bias())
    with pytest.raises(UnknownNameError, match=rf"{operator.__name__}.*chain"):
        operator(prologue="relu")  # type: ignore[arg-type]


NARROW = ["bfloat16", pytest.param(LEGALIZED, marks=pytest.mark.emulate), "bfloat16 widened", "float16"]


@pytest.fixture(params=NARROW)
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The element type, and how it reaches the multiplier where that is not this machine's own way."""
    if request.param == LEGALIZED:
        legalize(monkeypatch)
    return str(request.param)


def machine(words: str) -> HardwareSpec:
    """What libraries of these words are compiled for here: this machine, if it has what multiplies them."""
    if words == LEGALIZED:
        return zen5(0.6)
    return without_dots_of_bfloat16() if words == "bfloat16 widened" else hardware(words)


def narrow(words: str, operator: type[Any] = ops.Gemm, out: str = "float32") -> Any:
    return vortex.compile(operator(words.split()[0], prologue=CHAIN, out_dtype=out), machine(words))


@needs.a_compiler
def test_every_residue_and_layout_of_narrow_elements(words: str) -> None:
    gemm = narrow(words)
    dtype, operator = gemm.manifest.dtype, ops.Gemm(prologue=CHAIN)
    extents = [(m, n, k) for m in (1, 2, 7, 27) for n in (1, 16, 17, 50) for k in (1, 2, 3, 8, 31, 66)]
    for place, (m, n, k) in enumerate([*extents, (63, 200, 1025), (300, 33, 700), (5, 900, 2050), (3, 3, 0)]):
        a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype)
        expected = operator.reference(a, b)
        for turn_a, turn_b in TRANSPOSES:
            left, right = stored(a, turn_a, (place + turn_a) % 3), stored(b, turn_b, place % 2)
            plain = gemm(left, right, transpose_a=turn_a, transpose_b=turn_b)
            packed = gemm(left, gemm.pack(right, transpose=turn_b), transpose_a=turn_a)
            assert np.array_equal(plain, expected) and np.array_equal(packed, expected), (m, n, k, turn_a, turn_b)
        out = gemm(a, b)
        assert np.array_equal(gemm(a, b, out=out, accumulate=True), 2 * expected)
    assert f"load   {CHAIN} on A while it is packed" in str(gemm.explain(30, 40, 50))


@needs.a_compiler
@pytest.mark.parametrize("kind", list(OperandB))
def test_every_plan_of_narrow_elements(words: str, kind: OperandB) -> None:
    gemm = narrow(words)
    dtype, operator = gemm.manifest.dtype, ops.Gemm(prologue=CHAIN)
    assert all(strategy.stage.pack_a and not strategy.stage.dot for strategy in gemm.strategies)
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    for (m, n, k), turn_a in itertools.product([(33, 100, 517), (3, 700, 64), (150, 20, 2000)], (False, True)):
        a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype)
        left, right = stored(a, turn_a, 1), gemm.pack(b) if packed else stored(b, transposed, 1)
        flags = {"transpose_a": turn_a, "transpose_b": transposed}
        plans = gemm.plans(m, n, k, threads=2, packed=packed, **flags)
        assert plans
        for plan in plans:
            out = np.empty((m, n), np.float32)
            gemm.run(plan, left, right, out, **flags)
            assert np.array_equal(out, operator.reference(a, b)), plan


@needs.a_compiler
def test_batches_and_groups_of_narrow_elements(words: str) -> None:
    check_batches(narrow(words, ops.BatchGemm))
    check_groups(narrow(words, ops.GroupedGemm))


@needs.a_compiler
def test_an_epilogue_and_a_narrow_output_behind_it(words: str) -> None:
    dtype = words.split()[0]
    operator = ops.Gemm(dtype, ops.bias() >> ops.relu(), CHAIN)
    gemm = vortex.compile(operator, machine(words))
    for m, n, k in [(5, 33, 40), (60, 100, 301)]:
        a, b, bias = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype), integers(n)
        expected = operator.reference(a, b, bias=bias).astype(np.float32).astype(ELEMENTS[dtype])
        assert np.array_equal(gemm(a, b, bias=bias), expected)


ROUNDED = ops.scale(1.7) >> ops.clamp(-4.5, 4.5)
"""On bfloat16, steps whose results have to be rounded."""


def loaded(words: str, chain: ops.Epilogue, lanes: int, llvm_cpu: str, path: Path) -> None:
    """An object with the load stages of A."""
    from vortex.codegen.cpu_words_load import columns_kernel, rows_kernel
    from vortex.codegen.lower import compile_object, cpu_target

    stages = [kernel(WORDS[words], lanes, chain) for kernel in (rows_kernel, columns_kernel)]
    compile_object(stages, cpu_target(llvm_cpu), path)


@needs.a_compiler
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("words", ["bfloat16", "bfloat16 widened", "float16 widened"])
def test_load_stages_alone(words: str, lanes: int, tmp_path: Path) -> None:
    """Those of dot instructions run where there are none: both halves of every word, rounded to the nearest even."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_words_load import COLUMNS_SYMBOL, ROWS_SYMBOL
    from vortex.codegen.link import link

    loaded(words, ROUNDED, lanes, "x86-64-v3", tmp_path / "load.o")
    link(tmp_path / "load.so", [tmp_path / "load.o"], [])
    stages = ctypes.CDLL(str(tmp_path / "load.so"))
    element, per_word = ELEMENTS[WORDS[words].element], WORDS[words].per_word
    for rows, k in [(1, 1), (3, 2), (lanes, 5), (lanes + 5, 2 * lanes), (13, 4 * lanes + 3)]:
        a = RNG.standard_normal((rows, k)).astype(element)
        a[0, 0] = np.nan
        expected = (a.astype(np.float32) * np.float32(1.7)).clip(-4.5, 4.5).astype(element if per_word > 1 else None)
        words_of_k = -(-k // per_word)
        for symbol, source in ((ROWS_SYMBOL, stored(a, False, 3)), (COLUMNS_SYMBOL, stored(a, True, 2))):
            run = getattr(stages, symbol)
            run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4
            target = np.zeros((rows, words_of_k + lanes), np.float32)
            run(source.ctypes.data, target.ctypes.data, k, rows, source.strides[0] // source.itemsize, target.shape[1])
            found = target.view(element if per_word > 1 else np.float32)[:, :k]
            assert np.array_equal(found, expected, equal_nan=True), (symbol, rows, k)


@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
def test_machine_code_of_dot_instructions_has_the_steps(tmp_path: Path) -> None:
    """Two chains a vector of words by rows, in registers, and two for each vector of a block by columns."""
    pytest.importorskip("tvm")
    spec = load_spec("epyc-zen5")
    lanes = spec.multiplier("bfloat16").lanes
    found = {}
    for name, chain in (("plain", ops.Epilogue()), ("begun", ops.relu() >> ops.scale(1.7))):
        loaded("bfloat16", chain, lanes, spec.llvm_cpu, tmp_path / f"{name}.o")
        command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / f"{name}.o")]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        parts = [part.partition("<vortex_words_") for part in text.split("\n\n") if "<vortex_words_" in part]
        found[name] = {part[2].partition(">")[0]: part[2] for part in parts}
    for stage, chains in (("rows", 2), ("columns", 2 * lanes)):
        plain, begun = (found[name][stage] for name in ("plain", "begun"))
        assert "vmulps" not in plain and "vmaxps" not in plain
        assert begun.count("vmulps") >= chains and begun.count("vmaxps") >= chains
        assert not any("mm" in line and "(%rsp)" in line for line in begun.splitlines() if stage == "rows")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_strategies_of_narrow_elements_load_a(dtype: str) -> None:
    for spec in (load_spec("epyc-zen5"), load_spec("xeon-e5-2680v3")):
        found = sieve(decompose(ops.Gemm(dtype, prologue=ops.relu()), spec))
        assert found.admitted[-1].filter == "FilterByPrologue" and found.strategies
        assert all(s.stage.pack_a and s.stage.tiled and not s.stage.swap for s in found.strategies)


@pytest.mark.parametrize("operator", [ops.Gemm, ops.BatchGemm, ops.GroupedGemm])
def test_integers_are_refused(operator: type[Any]) -> None:
    with pytest.raises(OperandError, match="integers have no prologue"):
        vortex.compile(operator(prologue=ops.relu()), "epyc-zen5", dtype="int8")
