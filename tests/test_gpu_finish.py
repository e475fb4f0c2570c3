"""Epilogues in the store stage of GPU kernels: golden text, machine code, and every family in the emulator."""

from __future__ import annotations

from functools import cache

import pytest
from needs import an_emulator
from products import Unit, cases, check, machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import across_k, along_k, arch_of, cuda_core, hopper, tensor_core, turing

from vortex import operators as ops
from vortex.codegen import cuda_finish
from vortex.codegen.cuda import source
from vortex.codegen.cuda_form import Form
from vortex.epilogue import Epilogue, Store
from vortex.errors import CodegenError
from vortex.gpu_candidates import Variant

WHOLE = ops.bias(dtype="float16") >> ops.relu() >> ops.scale(per="row") >> ops.residual(dtype="bfloat16")
"""Exact on small integers."""
SMOOTH = ops.bias() >> ops.gelu() >> ops.scale(0.5) >> ops.silu() >> ops.residual() >> ops.clamp(-1.5, 2.0)
TANH = ops.gelu("tanh") >> ops.bias(per="row")
FAMILIES = {
    "tensor_core": Variant(tensor_core("float16"), False, True, 16),
    "tensor_core_shared": Variant(tensor_core("float16", "shared", 2), False, False, 4),
    "turing": Variant(turing(), False, True, 16),
    "cuda_core": Variant(cuda_core("float16"), True, False, 16),
    "along_k": Variant(along_k("float16"), False, True, 16),
    "across_k": Variant(across_k("float16"), True, False, 16),
    "hopper": Variant(hopper("float16", store="direct"), False, True, 16),
}


@cache
def built(family: str, chain: Epilogue, out: str) -> tuple[Store, Unit]:
    store, variant = Store(chain, "float32", out), FAMILIES[family]
    return store, unit([variant], arch_of(variant), Form(store))


@an_emulator
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_a_chain_on_residues_and_on_partial_sums(family: str, out: str):
    """The second shape has its reduction cut: the kernel that adds up finishes."""
    store, made = built(family, WHOLE, out)
    for case in cases(FAMILIES[family], 2):
        check(*made.kernels[0], made.text, case, form=Form(store))


@an_emulator
@pytest.mark.parametrize("chain", [SMOOTH, TANH], ids=str)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int8"])
def test_smooth_steps_and_types_of_the_output(chain: Epilogue, out: str):
    store, made = built("tensor_core", chain, out)
    for case in list(cases(FAMILIES["tensor_core"], 4))[1::2]:
        check(*made.kernels[0], made.text, case, form=Form(store))


@an_emulator
@pytest.mark.parametrize("out", ["int8", "uint8", "int32"])
def test_integers_are_rounded_and_saturate(out: str):
    store, made = built("along_k", ops.scale(20.5), out)
    for case in cases(FAMILIES["along_k"], 2):
        check(*made.kernels[0], made.text, case, form=Form(store))


@an_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_kernels_with_an_epilogue_stay_in_registers(arch: str):
    variants = [variant for variant in FAMILIES.values() if arch_of(variant) == arch]
    made = unit(variants, arch, Form(Store(SMOOTH, "float32", "bfloat16")))
    used = machine_code(made.text, arch).resources
    assert {variant.name for variant in variants} < set(used)
    assert [(x.spills, x.stack) for x in used.values()] == [(0, 0)] * len(used)


def test_the_kernel_s_own_text_stays_as_it_is():
    variant = FAMILIES["tensor_core"]
    plain, made = source(variant, "sm_80"), source(variant, "sm_80", Form(Store(WHOLE, "float32", "float16")))
    back = made.source.replace("const __grid_constant__ finished C", "float* __restrict__ C").replace(
        "finish_", "store_f16_"
    )
    assert back == plain.source
    assert made.args == ("*A", "*B", "&C", *plain.args[3:])


def test_steps_are_done_in_their_order():
    text = cuda_finish.functions(
        Store(ops.relu() >> ops.bias() >> ops.scale(2.0) >> ops.clamp(0, 6), "float32", "float16")
    )
    body = text.partition("finish_sum")[2].partition("return x;")[0]
    places = [body.index(part) for part in ("x < 0.f", "operand_at<float>(f, 0", "x *= (2.0f)", "(6.0f)")]
    assert places == sorted(places)


def test_sums_that_leave_as_halves_cannot_be_finished():
    with pytest.raises(CodegenError, match="no epilogue on the way"):
        source(Variant(hopper("float16"), False, True, 16), "sm_90a", Form(Store(WHOLE, "float32", "float16")))
