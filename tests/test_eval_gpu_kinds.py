"""Verification of libraries of every operator: real door, fake driver, emulated kernels, torch tensors of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, StubDriver
from needs import an_emulator
from products import unit
from test_emulation import bytes_core, tensor_core
from test_gpu_end_to_end import assembled, emulating

from eval.gpu import ingest
from eval.gpu.budget import Budget, Journal, read_journal
from eval.operator_cases import CONV_FIELDS, OperatorCase
from vortex import operators as ops
from vortex.codegen.cuda_form import form_of
from vortex.gpu_candidates import Variant
from vortex.gpu_library import write
from vortex.specs import load_spec

torch = pytest.importorskip("torch")

from test_eval_gpu import HostGpu  # noqa: E402  # these import torch

from eval.gpu import conv_race, kinds, verify  # noqa: E402

pytestmark = an_emulator

NARROW = Variant(tensor_core("float16", "shared", 2), False, True, 2)
CHAIN = ops.bias() >> ops.scale(per="row") >> ops.residual() >> ops.relu()
OPERATORS = {
    "int8": (ops.Gemm("int8"), Variant(bytes_core(), True, False, 16)),
    "epilogue": (
        ops.Gemm("float16", epilogue=ops.bias() >> ops.residual() >> ops.gelu(), out_dtype="float32"),
        Variant(tensor_core("float16"), False, False, 16),
    ),
    "batch": (ops.BatchGemm("float16"), NARROW),
    "groups": (ops.GroupedGemm("float16"), NARROW),
    "batch_epilogue": (ops.BatchGemm("float16", epilogue=CHAIN, out_dtype="float32"), NARROW),
    "groups_epilogue": (ops.GroupedGemm("float16", epilogue=CHAIN), NARROW),
    "convolution": (
        ops.Conv2d(
            layout="nchw", dtype="float16", epilogue=ops.bias() >> ops.residual(dtype="float16") >> ops.relu(), groups=2
        ),
        Variant(tensor_core("float16"), False, True, 16),
    ),
}


@dataclass
class Handed:
    """A library's callable that is handed torch tensors of the host; `harm` spoils a result."""

    gemm: Any
    harm: Callable[[Any], None] | None = None

    @property
    def manifest(self) -> Any:
        return self.gemm.manifest

    @property
    def kernels(self) -> Any:
        return self.gemm.kernels

    def run_planned(self, plan: Any, *operands: Any, **keywords: Any) -> None:
        def handed(value: Any) -> Any:
            return ExchangeTensor(value.numpy()) if isinstance(value, torch.Tensor) else value

        given = {name: handed(value) for name, value in keywords.items()}
        self.gemm.run_planned(plan, *map(handed, operands), **given)
        if self.harm is not None:
            self.harm(operands[-1])


@pytest.fixture(params=OPERATORS)
def gemm(request: pytest.FixtureRequest, stub_driver: StubDriver, tmp_path: Path) -> Iterator[Handed]:
    stub_driver.reset()
    spec, (operator, variant) = load_spec("a100"), OPERATORS[request.param]
    stub_driver.describe(shared_per_block=spec.shared_per_block_bytes)
    whole = unit([variant], spec.arch, form_of(operator))
    write(assembled(tmp_path, "a100", whole, operator), tmp_path / "x.vortex")
    made = kinds.opened(tmp_path / "x.vortex", False)
    assert not kinds.is_plain(made.manifest)
    stub_driver.on_launch(emulating(made.library, whole))
    yield Handed(made)
    stub_driver.reset()


def test_right_kernels_pass_and_wrong_ones_do_not(gemm: Handed, tmp_path: Path):
    journal = Journal(tmp_path / "part.jsonl")
    verify.verify(HostGpu(), gemm, "lib", journal, Budget(60), 1, 0)
    rows = [row for row in read_journal(journal.path) if row["kind"] == "verify"]
    assert all(row["right"] for row in rows) and {row["integers"] for row in rows} == {True, False}
    assert {row["splits"] > 1 for row in rows} == ({False, True} if gemm.kernels[0].split >= 0 else {False})

    def element(out: Any) -> None:
        out[(-1,) * out.ndim] += 100

    def outside(out: Any) -> None:
        out.as_strided((1,), (1,), out.storage_offset() - 1)[0] = 5

    trial = next(verify.trials(gemm.kernels[0], gemm.manifest.dtype, 1, 0))
    for harm in (element, outside):
        gemm.harm = harm
        assert not verify.check(HostGpu(), gemm, 0, trial, 0, True)["right"], harm


class TestJudging:
    """By hand: sums of two products, what the epilogue makes of them, and what rounding may have done."""

    @staticmethod
    def case(sums: list[float], out: Any, integers: bool, dtype: str = "float16", **epilogue: Any) -> bool:
        store = ops.store_of(ops.Gemm(dtype, **epilogue))
        whole = torch.full((3, 2), kinds.GUARD, dtype=out.dtype)
        whole[1] = out
        made = kinds.Arranged(print, whole[1:2], whole, 2, np.array([sums]), np.abs([sums]), {})
        return bool(kinds.judged(made, store, dtype, integers)["right"])

    def test_integers_are_exact(self):
        for far, right in ((0, True), (1, False)):
            assert self.case([4, 900], torch.tensor([4.0, 900 + far], dtype=torch.half), True) is right
            assert self.case([4, 10**9], torch.tensor([4, 10**9 + far], dtype=torch.int32), False, "int8") is right

    def test_what_rounds_may_be_off_by_what_rounding_does(self):
        for far, right in ((1e-3, True), (0.1, False), (float("nan"), False)):
            assert self.case([4, 1.0], torch.tensor([4.0, 1 + far], dtype=torch.half), False) is right

    def test_requantized_sums_may_be_one_off(self):
        chain = ops.scale(0.5) >> ops.cast("int8")
        for far, right in ((1, True), (2, False)):
            assert (
                self.case([8, 20], torch.tensor([4, 10 + far], dtype=torch.int8), False, "int8", epilogue=chain)
                is right
            )


class TestConvolutions:
    def test_against_cudnn(self, tmp_path: Path):
        """Both are torch here; the table has the ratio of their times."""
        extents = dict.fromkeys(CONV_FIELDS, 1) | {"n": 2, "c": 8, "h": 9, "w": 7, "k": 6, "r": 3, "s": 3}
        case = OperatorCase("s", "s/0", "conv2d", extents | {"p": 5, "q": 4, "stride_h": 2, "stride_w": 2, "groups": 2})
        operator = ops.Conv2d(dtype="float32")

        def conv(x: Any, w: Any, out: Any = None, **walk: Any) -> Any:
            made = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, **walk).permute(0, 2, 3, 1).contiguous()
            return made if out is None else out.copy_(made)

        conv.manifest = SimpleNamespace(operator="conv2d", settings=ops.settings(operator))  # type: ignore[attr-defined]
        journal = Journal(tmp_path / "part.jsonl")
        conv_race.convolutions(HostGpu(), conv, "lib", [case], journal, Budget(60))
        *rows, section = read_journal(journal.path)
        assert section["kind"] == "section" and section["planned"] == section["done"] == 1
        assert [row["system"] for row in rows] == ["vortex", "cudnn"] and rows[0]["right"]
        rows[0] |= {"warm_s": 1.0, "cold_s": 2.0}
        rows[1] |= {"warm_s": 1.5, "cold_s": 1.0}
        text = "\n".join(ingest.conv_table({"rows": rows}, "lib"))
        assert "| s | warm | 1 | 1.50 | 100% |" in text and "| s | cold | 1 | 0.50 | 0% |" in text

    def test_what_torch_has_no_one_call_for_is_told(self, tmp_path: Path):
        fixed = SimpleNamespace(operator="conv2d", settings=ops.settings(ops.Conv2d(dtype="float16", padding=1)))
        journal = Journal(tmp_path / "part.jsonl")
        conv_race.convolutions(HostGpu(), SimpleNamespace(manifest=fixed), "lib", [], journal, Budget(60))
        assert [row["kind"] for row in read_journal(journal.path)] == ["library_skipped"]
