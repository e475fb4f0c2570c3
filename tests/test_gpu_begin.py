"""Kernels with a prologue: every family in the emulator, machine code that stays in registers, and what is refused."""

from __future__ import annotations

import pytest
from emulator import EmulationError
from needs import an_emulator
from products import Unit, cases, check, machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import across_k, along_k, cuda_core, tensor_core, turing

import vortex
from vortex import operators as ops
from vortex.codegen.cuda_begin import begun
from vortex.codegen.cuda_form import Form, form_of
from vortex.codegen.cuda_lower import KernelSource
from vortex.errors import CodegenError, OperandError
from vortex.gpu_candidates import Backend, Variant
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


def test_integers_have_no_prologue() -> None:
    with pytest.raises(OperandError, match="integers have no prologue"):
        vortex.compile(ops.Gemm("int8", prologue=ops.relu()), "a100", cache=False)
