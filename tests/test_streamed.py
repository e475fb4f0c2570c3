"""The streamed family: whole rows of B past a few rows of C, against the outer products and against integers."""

import ctypes
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from conftest import compiled
from families import assert_adds, assert_bits_of_outer_products, explained, keeps_or_skips, plans_of
from priced import computed
from test_gemm import integers, reals

from vortex import operators as ops
from vortex.affinity import cpu_flags
from vortex.candidates import STREAMED_ROWS, STREAMS
from vortex.families import PANEL_LINE, PANELS
from vortex.hardware import HardwareSpec
from vortex.launcher import GemmKernel
from vortex.plans import OperandB, Shape
from vortex.specs import cpus

LARGE = (1, 8192, 8192)


@pytest.fixture(scope="module")
def streamed_gemm(gemm: GemmKernel) -> GemmKernel:
    return keeps_or_skips(gemm, "streamed")


@pytest.mark.parametrize("m", range(1, 2 * STREAMED_ROWS + 2))
def test_bits_are_those_of_outer_products(streamed_gemm: GemmKernel, m: int) -> None:
    """Depths that leave rows of B over, widths that leave vectors and lanes empty, more rows than pass at once."""
    for n, k in product((1, 15, 16, 31, 33, 95, 640), (STREAMS + 1, 2 * STREAMS, 61, 200)):
        assert_bits_of_outer_products(streamed_gemm, "streamed", reals(m, k), reals(k, n))


def test_it_leaves_what_lies_between(streamed_gemm: GemmKernel) -> None:
    m, n, k = 3, 203, 77
    a, b = integers(m, k + 5)[:, :k], integers(k, n + 3)[:, :n]
    for plan in plans_of(streamed_gemm, "streamed", m, n, k)[0]:
        wide = np.full((m, n + 7), 5, np.float32)
        streamed_gemm.run(plan, a, b, wide[:, :n])
        assert np.array_equal(wide[:, :n], a @ b) and (wide[:, n:] == 5).all()


def test_it_adds_to_what_is_there(streamed_gemm: GemmKernel) -> None:
    for m, n, k in [(1, 8195, 8197), (STREAMED_ROWS + 1, 331, 77)]:
        assert_adds(streamed_gemm, "streamed", integers(m, k), integers(k, n), integers(m, n))


def test_no_other_infinity_or_nan_reaches_an_element(streamed_gemm: GemmKernel) -> None:
    a, b = integers(2, 19), integers(19, 37)
    a[1, 17], b[4, 36] = np.inf, np.nan
    for plan in plans_of(streamed_gemm, "streamed", 2, 37, 19)[0]:
        out = np.zeros((2, 37), np.float32)
        streamed_gemm.run(plan, a, b, out)
        with np.errstate(invalid="ignore"):
            assert np.array_equal(np.isfinite(out), np.isfinite(a @ b))


def test_a_chain_follows_its_last_step() -> None:
    operator = ops.Gemm(epilogue=ops.bias() >> ops.relu())
    fused = keeps_or_skips(compiled(operator), "streamed")
    m, n, k = 3, 133, 45
    a, b, bias = integers(m, k), integers(k, n), integers(1, n)[0]
    for plan in plans_of(fused, "streamed", m, n, k)[0]:
        out = np.full((m, n), np.nan, np.float32)
        fused.run(plan, a, b, out, bias=bias)
        assert np.array_equal(out, np.maximum(a @ b + bias, 0))


@pytest.mark.parametrize("spec", cpus(), ids=attrgetter("name"))
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_chosen_for_a_row_by_a_large_matrix(spec: HardwareSpec, threads: int) -> None:
    costs = computed(spec)
    assert costs.select(Shape(*LARGE), threads).strategy.stage.streamed
    by_lines = replace(costs, panel=PANEL_LINE)
    for m in PANELS:
        assert by_lines.select(Shape(m, 1024, 2048, OperandB.PACKED), threads).strategy.stage.streamed


def test_it_is_explained_as_one_term(streamed_gemm: GemmKernel) -> None:
    explanation = explained(streamed_gemm, "streamed", *LARGE)
    assert "rows of B stream past" in str(explanation)
    assert set(explanation.terms) == {"streamed_products", "start", "parts", "total"}
    assert explanation.terms["streamed_products"] > 0


def test_what_it_reads_as_it_lies_alone(streamed_gemm: GemmKernel) -> None:
    """Neither a transposed operand, nor a packed one of wide panels or by more rows than its kernels have, nor a single
    step of k, which others do at once."""
    selector = streamed_gemm.manifest.selector()
    others = [Shape(*LARGE, OperandB.TRANSPOSED), Shape(max(PANELS) + 1, *LARGE[1:], OperandB.PACKED)]
    if streamed_gemm.manifest.panel != PANEL_LINE:
        others.append(Shape(*LARGE, OperandB.PACKED))
    others += [Shape(*LARGE, OperandB.PLAIN, a_is_col=True), Shape(1, 8192, STREAMS, OperandB.PLAIN)]
    assert not any(selector.select(shape, 1).strategy.stage.streamed for shape in others)
    plan = next(plan for plan in plans_of(streamed_gemm, "streamed", 1, 300, 90)[0] if plan.workers == 1)
    with pytest.raises(ValueError, match="given plan"):
        streamed_gemm.run(plan, integers(1, 90), integers(300, 90), np.zeros((1, 300), np.float32), transpose_b=True)
    with pytest.raises(ValueError, match="given plan"):
        streamed_gemm.run(plan, integers(1, STREAMS), integers(STREAMS, 300), np.zeros((1, 300), np.float32))


@pytest.mark.parametrize(("lanes", "cpu", "flag"), [(8, "x86-64-v3", "avx2"), (16, "x86-64-v4", "avx512vl")])
def test_panels_of_a_line_stream_past_together(tmp_path: Path, lanes: int, cpu: str, flag: str) -> None:
    """Groups of panels, panels that are left over and a last one cut short; what it has besides columns is not used."""
    pytest.importorskip("tvm")
    if flag not in cpu_flags():
        pytest.skip(f"needs {flag}")
    from vortex.codegen.cpu_streamed import panels_kernel, panels_symbol
    from vortex.codegen.link import link
    from vortex.codegen.lower import compile_object, cpu_target

    kernels = [panels_kernel(rows, at_once, lanes) for rows, at_once in PANELS.items()]
    compile_object(kernels, cpu_target(cpu), tmp_path / "panels.o")
    link(tmp_path / "panels.so", [tmp_path / "panels.o"], [])
    library = ctypes.CDLL(str(tmp_path / "panels.so"))
    for rows, n, k in product(PANELS, (1, 7, 8, 16, 31, 64, 65, 128, 141), (1, 9, 40)):
        count = -(-n // PANEL_LINE)
        a, b = integers(rows, k + 3)[:, :k], integers(k, n)
        panels = np.full((count, k, PANEL_LINE), np.nan, np.float32)
        for column in range(n):
            panels[column // PANEL_LINE, :, column % PANEL_LINE] = b[:, column]
        wide = np.full((rows, n + 5), 7, np.float32)
        for adds, expected in ((0, a @ b), (1, 2 * (a @ b))):
            getattr(library, panels_symbol(rows))(
                *(ctypes.c_void_p(x.ctypes.data) for x in (a, panels, wide)),
                *(ctypes.c_int64(x) for x in (n, k, k + 3, k * PANEL_LINE, n + 5)),
                ctypes.c_int32(adds),
            )
            assert np.array_equal(wide[:, :n], expected) and (wide[:, n:] == 7).all(), (rows, n, k, adds)


@pytest.mark.parametrize("m", PANELS)
def test_packed_rows_have_the_bits_of_outer_products(streamed_gemm: GemmKernel, m: int) -> None:
    if streamed_gemm.manifest.panel != PANEL_LINE:
        pytest.skip("this machine's library packs in panels of more than a line")
    for n, k in product((17, 95, 640), (STREAMS + 1, 61, 200)):
        assert_bits_of_outer_products(streamed_gemm, "streamed", reals(m, k), reals(k, n), packed=True)
