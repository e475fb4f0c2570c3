"""What is said about a plan on a GPU: both core types, in terms that add up."""

import pytest
from gpu_priced import A100, SPECS, selector

from vortex.gpu_candidates import Backend
from vortex.gpu_explain import SUMMED, explain, plans
from vortex.gpu_selector import LAYOUTS, Extents

SMALL, LARGE = Extents(4, 1024, 1024), Extents(4096, 4096, 4096)


@pytest.mark.parametrize("extents", [SMALL, LARGE, Extents(64, 64, 65536), Extents(1, 1, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plans_are_sorted_complete_and_begin_with_the_choice(extents, layout):
    chooser = selector(A100)
    found = plans(chooser, extents, layout)
    seconds = [priced.plan.seconds for priced in found]
    assert seconds == sorted(seconds)
    assert {priced.plan.index for priced in found} == set(chooser.groups[layout, 16])
    assert explain(chooser, extents, layout).plan == chooser.select(extents, layout)
    assert explain(chooser, extents, layout).plan.seconds == found[0].plan.seconds
    for priced in found:
        assert sum(priced.terms[name] for name in SUMMED) == pytest.approx(priced.terms["total"], rel=1e-4)


def test_both_core_types_are_shown_side_by_side():
    explanation = explain(selector(A100), SMALL, hardware="a100", sieve={"L0 FilterByISA": 7})
    assert set(explanation.cores) == {Backend.TENSOR_CORE, Backend.CUDA_CORE, Backend.SKINNY}
    for backend, priced in explanation.cores.items():
        assert priced.backend is backend
        assert priced.plan.seconds >= explanation.plan.seconds
    text = str(explanation)
    for word in (
        "core types",
        "tensor_core",
        "cuda_core",
        "skinny",
        "runners-up",
        "FilterByISA",
        "padding",
        "computed",
    ):
        assert word in text
    assert "of 16" not in text and "TFLOP/s predicted" in text


def test_the_padding_of_the_matrix_instruction_is_visible():
    """4 rows in a tile of 16: the text says what part of the arithmetic is for nothing."""
    priced = explain(selector(A100), SMALL).cores[Backend.TENSOR_CORE]
    assert priced.terms["padding"] >= 0.75


def test_a_cut_reduction_is_named():
    text = str(explain(selector(A100), Extents(64, 64, 65536)))
    assert "parts of" in text and "reduction" in text


def test_rivals_lose_somewhere():
    explanation = explain(selector(A100), LARGE)
    assert explanation.rivals and all(r.plan.seconds >= explanation.plan.seconds for r in explanation.rivals)
    assert str(explanation).count("loses in") == len(explanation.rivals)
    assert explanation.tflops == pytest.approx(2e-12 * 4096**3 / explanation.plan.seconds)


def test_hopper_explains_itself_too():
    cores = explain(selector(SPECS["h200"]), LARGE).cores
    assert Backend.HOPPER in cores and cores[Backend.HOPPER].plan.seconds < cores[Backend.CUDA_CORE].plan.seconds
