"""Convolutions on GPUs: calls through the native door, the fake driver's launches in the emulator, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from products import Unit, machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import along_k, cuda_core, tensor_core
from test_gpu_end_to_end import assembled, emulating

from vortex import operators as ops
from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_lower import KernelSource, alone
from vortex.codegen.cuda_window import windowed
from vortex.errors import CodegenError, DtypeError, OperandError, ShapeError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_conv import GpuConv
from vortex.gpu_sieve import backends
from vortex.gpu_variety import copies_fit, layouts
from vortex.rkernel import decompose
from vortex.specs import load_spec

CHAIN = ops.bias() >> ops.residual(dtype="float16") >> ops.relu()
OPERATOR = ops.Conv2d(dtype="float16", epilogue=CHAIN)
VARIANTS = (
    Variant(tensor_core("float16"), False, True, 16),
    Variant(tensor_core("float16", "shared", 2), False, True, 2),
    Variant(cuda_core("float16"), False, True, 4),
    Variant(along_k("float16"), False, True, 2),
)


@pytest.fixture(scope="module")
def whole() -> Unit:
    return unit(VARIANTS, "sm_80", form_of(OPERATOR))


@pytest.fixture(scope="module")
def conv(whole: Unit, stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuConv]:
    stub_driver.reset()
    spec, folder = load_spec("a100"), tmp_path_factory.mktemp("conv")
    stub_driver.describe(shared_per_block=spec.shared_per_block_bytes)
    made = GpuConv(assembled(folder, "a100", whole, OPERATOR), 0)
    stub_driver.on_launch(emulating(made.library, whole))
    yield made
    stub_driver.reset()


def halves(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float16)


def filters(*shape: int) -> Any:
    """OIHW, with channels contiguous in memory."""
    return aligned(halves(*shape, seed=1).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def call(conv: GpuConv, x: Any, w: Any, plan: Any = None, **walk: Any) -> None:
    """One call, checked against the operator's reference; what lies between the output's pixels stays as it was."""
    shape = conv.operator.shape(x.shape, w.shape, conv.operator.window(**walk))
    extents = (shape.batch, shape.out_h, shape.out_w, shape.filters)
    given = {"bias": halves(shape.filters, seed=2).astype(np.float32), "residual": aligned(halves(*extents, seed=3))}
    room = aligned(np.full((*extents[:3], shape.filters + 8), 9, np.float16))
    out, held = ExchangeTensor(room[..., : shape.filters]), {k: ExchangeTensor(v) for k, v in given.items()}
    operands = ExchangeTensor(x), ExchangeTensor(w), out
    if plan is None:
        conv(*operands, **walk, **held)
    else:
        conv.run_planned(plan, *operands, **walk, **held)
    expected = conv.operator.reference(x, w, **walk, **given)
    assert (out.array == expected.astype(np.float16)).all() and (room[..., shape.filters :] == 9).all()


CASES = {
    "3x3": ((2, 9, 11, 16), (24, 16, 3, 3), {"padding": 1}),
    "stride, one side padded": ((1, 12, 10, 8), (40, 8, 3, 3), {"stride": 2, "padding": (0, 1, 2, 0)}),
    "dilation, rows unlike columns": ((2, 9, 8, 8), (8, 8, 2, 3), {"dilation": (3, 2), "stride": (1, 2)}),
    "groups": ((2, 6, 5, 32), (48, 16, 3, 3), {"groups": 2, "padding": 1}),
    "1x1": ((2, 7, 7, 40), (24, 40, 1, 1), {}),
    "more padding than filter": ((1, 3, 3, 8), (8, 8, 2, 2), {"padding": 4, "stride": 3}),
    "three channels": ((1, 11, 9, 3), (10, 3, 5, 5), {"padding": 2, "stride": 2}),
    "depthwise": ((1, 6, 6, 8), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    "one pixel": ((1, 3, 3, 16), (24, 16, 3, 3), {}),
}


@an_emulator
class TestCalls:
    @pytest.mark.parametrize("name", CASES)
    def test_the_selected_kernel(self, conv: GpuConv, name: str):
        x, w, walk = CASES[name]
        call(conv, aligned(halves(*x)), filters(*w), **walk)

    @pytest.mark.parametrize("index", range(len(VARIANTS)))
    @pytest.mark.parametrize("splits", [1, 2])
    def test_every_kernel_by_plan(self, conv: GpuConv, index: int, splits: int):
        depth = VARIANTS[index].strategy.l1.k
        x, w = aligned(halves(1, 8, 9, 2 * 64)), filters(2 * 24, 64, 3, 3)
        plan = replace(
            conv.plan(x.shape, w.shape, groups=2), index=index, splits=splits, raster=2,
            chunk=9 * 64 if splits == 1 else -(-9 * 32 // depth) * depth,
        )  # fmt: skip
        call(conv, x, w, plan, groups=2, padding=1, stride=2)

    def test_a_fixed_window(self, conv: GpuConv):
        """The door is told what the operator fixes; what contradicts it never gets there."""
        operator = replace(OPERATOR, stride=2, padding=(0, 1, 2, 0))
        fixed = GpuConv(replace(conv.library, manifest=replace(conv.manifest, settings=ops.settings(operator))), 0)
        x, w, _ = CASES["stride, one side padded"]
        call(fixed, aligned(halves(*x)), filters(*w))
        assert fixed.predict(x, w) == conv.predict(x, w, stride=2, padding=(0, 1, 2, 0))
        with pytest.raises(ShapeError, match=r"stride=1: this library is for stride=\(2, 2\) alone"):
            fixed.plan(x, w, stride=1)

    def test_images_apart_in_memory(self, conv: GpuConv):
        whole = aligned(halves(2, 10, 12, 40))
        call(conv, whole[:, 1:9, 2:10, 8:24], filters(24, 16, 3, 3), padding=1)

    @pytest.mark.parametrize("shifted", ["w.before[1]", "tall * w.dilation[0]", "image * w.image"])
    def test_a_shifted_address_shows(self, conv: GpuConv, whole: Unit, stub_driver: StubDriver, shifted: str):
        spoiled = Unit(whole.text.replace(shifted, "0", 1), whole.kernels)
        stub_driver.on_launch(emulating(conv.library, spoiled))
        x, w, walk = CASES["3x3"]
        with pytest.raises(AssertionError):
            call(conv, aligned(halves(*x)), filters(*w), **walk)
        stub_driver.on_launch(emulating(conv.library, whole))

    def test_native_and_mirrored_choice_agree(self, conv: GpuConv):
        for x, w, walk in (*CASES.values(), ((32, 56, 56, 64), (64, 64, 3, 3), {"padding": 1})):
            plan, told = conv.plan(x, w, **walk), conv.explain(x, w, **walk)
            assert (plan.index, plan.splits, plan.chunk) == (told.plan.index, told.plan.splits, told.plan.chunk)

    def test_taps_that_see_the_same_input_are_read_once(self, conv: GpuConv):
        """The product of the same extents reads nine times as much from memory."""
        shape = conv._shape_of((32, 56, 56, 64), (64, 64, 3, 3), {"padding": 1})
        assert shape.seen == pytest.approx(1 / 9, rel=1e-3)
        assert conv.predict((64, 112, 112, 64), (8, 64, 3, 3), padding=1) < conv.predict(
            (64, 112, 112, 576), (8, 576, 1, 1)
        )


@an_emulator
class TestRefusals:
    def refused(self, conv: GpuConv, kind: Any, words: str, x: Any, w: Any, out: Any = None, **walk: Any) -> None:
        extents = (1, 6, 6, 8)
        given = {"bias": np.zeros(8, np.float32), "residual": np.zeros(extents, np.float16)}
        given |= {name: walk.pop(name) for name in tuple(given) if name in walk}
        held = {name: ExchangeTensor(value) for name, value in given.items()}
        out = ExchangeTensor(aligned(np.zeros(extents, np.float16)) if out is None else out)
        with pytest.raises(kind, match=words):
            conv(ExchangeTensor(x), ExchangeTensor(w), out, **walk, **held)

    def test_memory_that_no_kernel_reads(self, conv: GpuConv):
        x, w = aligned(halves(1, 8, 8, 8)), filters(8, 8, 3, 3)
        self.refused(conv, ShapeError, r"w .*channels that are not contiguous", x, aligned(halves(8, 8, 3, 3)))
        self.refused(conv, ShapeError, "x ", aligned(halves(1, 8, 8, 16))[..., ::2], w)
        wide = aligned(np.zeros((1, 6, 8, 8), np.float16))[:, :, :6]
        self.refused(conv, ShapeError, r"out ", x, w, wide)

    def test_extents(self, conv: GpuConv):
        x, w = aligned(halves(1, 8, 8, 8)), filters(8, 8, 3, 3)
        self.refused(conv, ShapeError, r"out .*wrong shape.*\(1, 8, 8, 8\)", x, w, padding=1)
        self.refused(conv, ShapeError, "groups", x, w, groups=3)
        self.refused(conv, ShapeError, "bias .*does not fit the output", x, w, bias=np.zeros(7, np.float32))
        self.refused(conv, ShapeError, "residual .*does not fit", x, w, residual=np.zeros((1, 6, 6, 7), np.float16))
        self.refused(conv, DtypeError, "bias .*wrong dtype", x, w, bias=np.zeros(8, np.float16))

    def test_an_output_over_the_input(self, conv: GpuConv):
        room = aligned(halves(1, 8, 8, 8))
        self.refused(
            conv, OperandError, "x .*overlaps", room, filters(8, 8, 3, 3), room.reshape(-1)[:288].reshape(1, 6, 6, 8)
        )

    def test_element_types(self):
        with pytest.raises(DtypeError, match="expected one of"):
            ops.Conv2d(dtype="int8")  # type: ignore[arg-type]
        with pytest.raises(DtypeError, match="drop the cast"):
            ops.Conv2d(dtype="float16", epilogue=ops.cast("float32"))


class TestText:
    def test_a_kernel_without_an_a_is_an_error(self):
        with pytest.raises(CodegenError, match="no filter"):
            windowed(KernelSource("odd", "copy_16(to, ((void*)at(B, 0, ldb, 0)), true);", ("*A",), (32, 1, 1), 0))

    def test_one_layout_and_no_tma(self):
        assert layouts(OPERATOR) == ((False, True),)
        assert Backend.HOPPER not in backends(decompose(OPERATOR, load_spec("h200")))

    @an_nvrtc
    def test_machine_code_stays_in_registers(self, whole: Unit):
        parts = (alone(kernel).source for _, kernel in whole.kernels)
        used = machine_code("\n".join([form_of(OPERATOR).prelude, *parts]), "sm_80").resources
        kept = [used[v.name] for v in VARIANTS if copies_fit(v.strategy, v.vector_bytes)]
        assert len(kept) > 1 and {(x.spills, x.stack) for x in kept} == {(0, 0)}
