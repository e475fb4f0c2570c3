"""Products of a batch in one launch: calls through the native door, the fake driver's launches in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from products import machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import across_k, along_k, cuda_core, tensor_core
from test_gpu_end_to_end import assembled, emulating

from vortex.codegen.cuda import source, split_args
from vortex.codegen.cuda_form import Form
from vortex.errors import OperandError, ShapeError
from vortex.gpu_batch import GpuBatchGemm
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_sieve import backends
from vortex.operators import BatchGemm, Gemm
from vortex.rkernel import Loop, decompose
from vortex.specs import load_spec

BATCHED = Form(is_batched=True)
VARIANTS = (
    Variant(tensor_core("float16"), False, False, 16),
    Variant(tensor_core("float16"), False, True, 16),
    Variant(tensor_core("float16", "shared", 2), False, False, 2),
    Variant(cuda_core("float16"), True, False, 16),
    Variant(along_k("float16"), False, True, 16),
)


@pytest.fixture(scope="module")
def gemm(stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuBatchGemm]:
    stub_driver.reset()
    spec, folder = load_spec("a100"), tmp_path_factory.mktemp("batch")
    stub_driver.describe(shared_per_block=spec.shared_per_block_bytes)
    whole = unit(VARIANTS, spec.arch, BATCHED)
    made = GpuBatchGemm(assembled(folder, "a100", whole, BatchGemm("float16")), 0)
    stub_driver.on_launch(emulating(made.library, whole))
    yield made
    stub_driver.reset()


def halves(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float16)


def laid_for(v: Variant, a: Any, b: Any) -> tuple[ExchangeTensor, ExchangeTensor]:
    """A and B on the device, each turned over as a kernel takes it."""
    left, right = (x.swapaxes(-1, -2) if turned else x for x, turned in ((a, v.transpose_a), (b, v.transpose_b)))
    return ExchangeTensor(aligned(left)), ExchangeTensor(aligned(right))


def product(a: Any, b: Any) -> Any:
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


@an_emulator
class TestCalls:
    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ((3, 40, 72), (3, 72, 24)),
            ((2, 3, 40, 72), (2, 3, 72, 24)),
            ((2, 3, 40, 72), (3, 72, 24)),
            ((2, 1, 40, 72), (1, 3, 72, 24)),
            ((40, 72), (5, 72, 24)),
            ((5, 37, 19), (5, 19, 11)),
            ((2, 2, 1, 72), (2, 2, 72, 40)),
            ((1, 1, 24, 40), (24, 40)[::-1]),
        ],
        ids=str,
    )
    def test_batches_broadcast(self, gemm: GpuBatchGemm, left: tuple[int, ...], right: tuple[int, ...]):
        a, b = halves(*left), halves(*right, seed=1)
        out = gemm(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)))
        assert out.array.shape == product(a, b).shape and (out.array == product(a, b)).all()

    def test_strides_as_attention_makes_them(self, gemm: GpuBatchGemm):
        """[batch, sequence, 3, heads, dim]: queries and keys of one projection, heads moved forward."""
        whole = aligned(halves(2, 24, 3, 4, 32))
        q, k = (whole[:, :, i].transpose(0, 2, 1, 3) for i in (0, 1))
        out = aligned(np.full((2, 4, 24, 24), np.nan, np.float16))
        gemm(ExchangeTensor(q), ExchangeTensor(k), ExchangeTensor(out), transpose_b=True)
        assert (out == product(q, k.swapaxes(-1, -2))).all()
        values, weights = whole[:, :, 2].transpose(0, 2, 1, 3), out
        mixed = aligned(np.full((2, 24, 4, 32), np.nan, np.float16))
        gemm(ExchangeTensor(weights * 0 + 1), ExchangeTensor(values), ExchangeTensor(mixed.transpose(0, 2, 1, 3)))
        assert (mixed.transpose(0, 2, 1, 3) == product(np.ones_like(weights), values)).all()

    @pytest.mark.parametrize("index", range(len(VARIANTS)))
    @pytest.mark.parametrize("splits", [1, 3])
    def test_every_kernel_by_plan(self, gemm: GpuBatchGemm, index: int, splits: int):
        v = VARIANTS[index]
        depth = v.strategy.l1.k
        m, n, k = 24, 40, 2 * depth + (8 if v.vector_bytes == 16 else 3)
        a, b = halves(2, 2, m, k), halves(2, 1, k, n, seed=2)
        given_a, given_b = laid_for(v, a, b)
        whole = aligned(np.full((2, 2, m, 64), 9, np.float16))
        plan = replace(gemm.plan(64, 64, 64), index=index, splits=splits, chunk=k if splits == 1 else depth, raster=2)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        gemm.run_planned(plan, given_a, given_b, ExchangeTensor(whole[..., :n]), **flags)
        assert (whole[..., :n] == product(a, b)).all() and (whole[..., n:] == 9).all()


class TestLaunches:
    """What the driver is asked for; nothing is computed."""

    @pytest.fixture(autouse=True)
    def quiet(self, gemm: GpuBatchGemm, stub_driver: StubDriver) -> Iterator[None]:
        kept = stub_driver._callback
        stub_driver.on_launch(lambda launch: None)
        self.before = len(stub_driver.launches)
        yield
        stub_driver._callback = kept
        stub_driver.calls.stub_on_launch(kept)

    def grids(self, driver: StubDriver) -> list[tuple[int, ...]]:
        return [tuple(launch.grid) for launch in driver.launches[self.before :]]

    def test_products_that_share_b_become_rows(self, gemm: GpuBatchGemm, stub_driver: StubDriver):
        a, b = ExchangeTensor(aligned(halves(2, 3, 64, 32))), ExchangeTensor(aligned(halves(32, 64)))
        gemm(a, b)
        assert {grid[1] for grid in self.grids(stub_driver)} == {1}
        gemm(a, ExchangeTensor(aligned(halves(2, 3, 32, 64))))
        assert self.grids(stub_driver)[-1][1] == 6

    def test_large_batches_take_several_grids(self, gemm: GpuBatchGemm, stub_driver: StubDriver):
        a, b = (ExchangeTensor(aligned(np.zeros(shape, np.float16))) for shape in ((70000, 1, 8), (70000, 8, 8)))
        gemm(a, b)
        assert [grid[1] for grid in self.grids(stub_driver)] == [65535, 70000 - 65535]

    def test_nothing_is_launched_for_empty_batches(self, gemm: GpuBatchGemm, stub_driver: StubDriver):
        gemm(*(ExchangeTensor(np.zeros(shape, np.float16)) for shape in ((0, 4, 8), (0, 8, 4))))
        assert self.grids(stub_driver) == []

    def test_a_large_batch_is_not_cut(self, gemm: GpuBatchGemm):
        assert gemm.plan(64, 64, 8192).splits > 1
        assert gemm.plan(64, 64, 8192, batch=4096).splits == 1
        assert "4096 products 64x64x8192" in str(gemm.explain(64, 64, 8192, batch=4096))


class TestRefusals:
    @pytest.mark.parametrize(
        ("left", "right", "out", "message"),
        [
            ((3, 8, 16), (2, 16, 8), (3, 8, 8), "b .*has other batch axes"),
            ((3, 8, 16), (3, 16, 8), (2, 8, 8), "out .*has other batch axes"),
            ((3, 8, 16), (3, 16, 8), (3, 8, 9), "out"),
            ((3, 8, 16), (3, 15, 8), (3, 8, 8), "inner extent"),
            ((1, 1, 1, 8, 16), (16, 8), (1, 1, 8, 8), "a "),
        ],
    )
    def test_shapes(self, gemm: GpuBatchGemm, left, right, out, message: str):
        with pytest.raises(ShapeError, match=message):
            gemm(*(ExchangeTensor(aligned(np.zeros(shape, np.float16))) for shape in (left, right, out)))

    def test_an_output_that_meets_itself_or_an_operand(self, gemm: GpuBatchGemm):
        a, b = halves(3, 8, 16), halves(3, 16, 8)
        shared = np.lib.stride_tricks.as_strided(aligned(halves(8, 8)), (3, 8, 8), (0, 16, 2))
        with pytest.raises(ShapeError, match=r"out .*broadcast"):
            gemm(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), ExchangeTensor(shared))
        room = aligned(halves(3, 8, 16))
        with pytest.raises(OperandError, match="a "):
            gemm(ExchangeTensor(room), ExchangeTensor(aligned(b)), ExchangeTensor(room[:, :, :8]))
        gemm(ExchangeTensor(room[:, :, :8]), ExchangeTensor(aligned(halves(3, 8, 8))), ExchangeTensor(room[:, :, 8:]))


class TestOperator:
    def test_products_are_layers_of_the_grid(self):
        grid = decompose(BatchGemm("float16"), load_spec("a100")).levels[2]
        assert grid.loops[0] == ("b", Loop.PARALLEL)

    def test_hopper_s_descriptors_know_no_batch(self):
        plain, batched = (backends(decompose(x, load_spec("h200"))) for x in (Gemm("float16"), BatchGemm("float16")))
        assert Backend.HOPPER in plain and batched == tuple(x for x in plain if x is not Backend.HOPPER)

    def test_transposes_are_the_operator_s_unless_given(self, gemm: GpuBatchGemm):
        assert gemm._turned(None, True) == (False, True)


class TestText:
    def test_pointers_become_those_of_a_product(self):
        plain, made = source(VARIANTS[0], "sm_80"), source(VARIANTS[0], "sm_80", BATCHED)
        assert made.args == (*plain.args, "&batch") and split_args(made.args)[-1] == "&parts"
        lines = made.source.splitlines()
        assert [line for line in lines if "of_all" not in line] == plain.source.splitlines()[1:]

    @an_nvrtc
    def test_machine_code_stays_in_registers(self):
        variants = [*VARIANTS, Variant(across_k("float16"), True, False, 16)]
        used = machine_code(unit(variants, "sm_80", BATCHED).text, "sm_80").resources
        assert [(x.spills, x.stack) for x in used.values()] == [(0, 0)] * (len(variants) + 1)
