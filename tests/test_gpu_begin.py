"""Kernels with a prologue: every family in the emulator, machine code that stays in registers, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulator import EmulationError
from gpu_doubles import ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from products import Unit, cases, check, machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import across_k, along_k, cuda_core, tensor_core, turing
from test_gpu_end_to_end import assembled, emulating

import vortex
from vortex import operators as ops
from vortex.codegen.cuda_begin import begun
from vortex.codegen.cuda_form import Form, form_of
from vortex.codegen.cuda_lower import KernelSource
from vortex.errors import CodegenError, OperandError
from vortex.gpu_batch import GpuBatchGemm
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_grouped import GpuGroupedGemm
from vortex.gpu_sieve import backends
from vortex.rkernel import decompose
from vortex.specs import load_spec

CHAIN = ops.relu() >> ops.scale(2.0) >> ops.clamp(1.0, 4.0)
"""Exact on integers; what lies past the edge of A becomes 1."""
FAMILIES = {
    "float16": (
        Variant(tensor_core("float16"), False, True, 16),
        Variant(tensor_core("float16", "shared", 2), False, False, 2),
        Variant(along_k("float16"), False, True, 16),
    ),
    "bfloat16": (Variant(tensor_core("bfloat16"), True, False, 8), Variant(cuda_core("bfloat16", 4), True, False, 4)),
    "tfloat32": (Variant(tensor_core("tfloat32"), False, True, 16), Variant(tensor_core("tfloat32"), True, False, 4)),
    "float32": (Variant(cuda_core("float32"), False, False, 16), Variant(across_k("float32"), True, False, 16)),
}


def form(dtype: str, chain: ops.Epilogue = CHAIN) -> Form:
    return form_of(ops.Gemm(dtype=dtype, prologue=chain))


@an_emulator
@pytest.mark.parametrize("dtype", FAMILIES)
def test_every_element_of_a_takes_the_steps(dtype: str) -> None:
    made = unit(FAMILIES[dtype], "sm_80", form(dtype))
    for variant, kernel in made.kernels:
        for case in cases(variant, 2):
            check(variant, kernel, made.text, case, form=form(dtype))


@an_emulator
def test_turing_and_an_epilogue_behind_it() -> None:
    operator = ops.Gemm("float16", ops.bias() >> ops.relu(), prologue=CHAIN, out_dtype="float32")
    both = form_of(operator)
    made = unit([Variant(turing("shared"), True, False, 2)], "sm_75", both)
    for case in cases(made.kernels[0][0], 2):
        check(*made.kernels[0], made.text, case, form=both)


@an_emulator
def test_a_fragment_that_is_left_out_shows() -> None:
    variant = FAMILIES["float16"][0]
    made = unit([variant], "sm_80", form("float16"))
    spoiled = Unit(made.text.replace("begin_ldmatrix_f16((&(A_frag", "ldmatrix_f16((&(A_frag"), made.kernels)
    assert spoiled.text != made.text
    with pytest.raises(EmulationError, match="elements are wrong"):
        check(variant, spoiled.kernels[0][1], spoiled.text, next(cases(variant, 1)), form=form("float16"))


@an_nvrtc
def test_machine_code_stays_in_registers() -> None:
    compiled = machine_code(unit(FAMILIES["float16"], "sm_80", form("float16", ops.silu())).text, "sm_80")
    used = [compiled.resources[variant.name] for variant in FAMILIES["float16"]]
    assert [(x.spills, x.stack) for x in used] == [(0, 0)] * len(used)


def test_what_tma_brings_passes_no_register() -> None:
    plain, begun_too = (
        backends(decompose(ops.Gemm("float16", prologue=chain), load_spec("h200"))) for chain in (ops.Epilogue(), CHAIN)
    )
    assert set(plain) - set(begun_too) == {Backend.HOPPER}


def test_a_kernel_without_fragments_of_a_is_an_error() -> None:
    with pytest.raises(CodegenError, match="no prologue on the way"):
        begun(KernelSource("odd", "cp_async_16((&(A_shared_ptr[0])), A, true);", ("*A",), (32, 1, 1), 0))


@pytest.mark.parametrize("operator", [ops.Gemm, ops.BatchGemm, ops.GroupedGemm])
def test_integers_have_no_prologue(operator: type[ops.Gemm | ops.BatchGemm | ops.GroupedGemm]) -> None:
    with pytest.raises(OperandError, match=r"dtype='int8', prologue=relu.*integers have no prologue"):
        operator("int8", prologue=ops.relu())
    with pytest.raises(OperandError, match="integers have no prologue"):
        vortex.compile(operator(prologue=ops.relu()), "a100", dtype="int8", cache=False)


SEVERAL = (
    Variant(tensor_core("float16"), False, False, 16),
    Variant(tensor_core("float16", "shared", 2), False, False, 2),
    Variant(cuda_core("float16"), True, False, 2),
    Variant(along_k("float16"), False, True, 16),
)


@pytest.fixture
def driver(driver: StubDriver) -> StubDriver:
    driver.describe(shared_per_block=load_spec("a100").shared_per_block_bytes)
    return driver


def opened(kind: Any, operator: ops.BatchGemm | ops.GroupedGemm, folder: Path, driver: StubDriver) -> Any:
    """A library of a few kernels whose launches the emulator runs."""
    whole = unit(SEVERAL, "sm_80", form_of(operator))
    made = kind(assembled(folder, "a100", whole, operator), 0)
    driver.on_launch(emulating(made.library, whole))
    return made


def halves(*shape: int) -> Any:
    return np.random.default_rng([*shape]).integers(-2, 3, shape).astype(np.float16)


def given(x: Any, turned: bool = False) -> ExchangeTensor:
    return ExchangeTensor(aligned(x.swapaxes(-1, -2) if turned else x))


@an_emulator
def test_products_of_a_batch(driver: StubDriver, tmp_path: Path) -> None:
    """Whichever operand is shared, and where products that share B run as one."""
    operator = ops.BatchGemm("float16", prologue=CHAIN)
    gemm = opened(GpuBatchGemm, operator, tmp_path, driver)
    for left, right in [((2, 3), (2, 3)), ((2, 3), ()), ((), (5,)), ((2, 1), (1, 3))]:
        for m, n, k in [(40, 24, 72), (37, 11, 19), (1, 40, 72), (4, 8, 0)]:
            a, b = halves(*left, m, k), halves(*right, k, n)
            assert (gemm(given(a), given(b)).array == operator.reference(a, b)).all(), (left, right, m, n, k)
    assert f"load   {CHAIN} on A as it arrives in registers" in str(gemm.explain(64, 64, 64, batch=3))
    for (index, v), splits in itertools.product(enumerate(SEVERAL), (1, 3)):
        depth = v.strategy.l1.k
        a, b = halves(2, 24, 2 * depth + 8), halves(2, 2 * depth + 8, 40)
        chunk = a.shape[-1] if splits == 1 else depth
        plan = replace(gemm.plan(64, 64, 64), index=index, splits=splits, chunk=chunk)
        out = given(np.zeros((2, 24, 40), np.float16))
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        gemm.run_planned(plan, given(a, v.transpose_a), given(b, v.transpose_b), out, **flags)
        assert (out.array == operator.reference(a, b)).all(), (v.name, splits)


@an_emulator
def test_groups_of_rows(driver: StubDriver, tmp_path: Path) -> None:
    operator = ops.GroupedGemm("float16", prologue=CHAIN)
    gemm = opened(GpuGroupedGemm, operator, tmp_path, driver)
    assert f"load   {CHAIN} on A as it arrives in registers" in str(gemm.explain([70, 3], 40, 64))
    for rows in ([70, 0, 1, 130, 0], [3, 5, 2, 0, 7, 1]):
        for index, v in enumerate(SEVERAL):
            k = 2 * v.strategy.l1.k + (8 if v.vector_bytes == 16 else 3)
            a, b = halves(sum(rows), k), halves(len(rows), k, 40)
            out = given(np.zeros((sum(rows), 40), np.float16))
            flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
            plan = replace(gemm.plan(rows, 40, 64), index=index, chunk=k)
            gemm.run_planned(plan, given(a, v.transpose_a), given(b, v.transpose_b), rows, out, **flags)
            assert (out.array == operator.reference(a, b, rows)).all(), (v.name, rows)


@pytest.mark.parametrize("operator", [ops.BatchGemm, ops.GroupedGemm])
def test_several_products_run_where_one_does(operator: type[ops.BatchGemm | ops.GroupedGemm]) -> None:
    plain, begun_too = (
        backends(decompose(operator("float16", prologue=chain), load_spec("a100"))) for chain in (ops.Epilogue(), CHAIN)
    )
    assert plain == begun_too and Backend.TENSOR_CORE in plain
