"""The evaluation of operators beyond the plain product: cases, operands, checks, systems. No benchmark runs here."""

import importlib.util
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from test_words import hardware

import vortex

pytest.importorskip("psutil")

from eval import bench, operator_oracle, records, worker
from eval.operands import WrongResultError
from eval.operator_cases import OperatorCase, as_variant, case_of, load_any_suite, reductions, shape_of
from eval.operator_operands import check, make
from eval.operator_systems import (
    COMPARED,
    NumpyOperator,
    OnnxRuntimeOperator,
    System,
    TorchFused,
    TorchOperator,
    VortexOperatorPacked,
)
from eval.registry import RIVALS, SYSTEMS
from eval.roofline import Limits, MemoryLevel, roofline_seconds
from eval.suites import Case
from eval.systems import AbsentError
from vortex.batch_launcher import BatchGemmKernel
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import ConvPlan
from vortex.library import Library, read
from vortex.operators import BatchGemm, Gemm
from vortex.operators import settings as fields_of

LIMITS = Limits(100e9, (MemoryLevel("L1", 1 << 40, 1e15, 1e15), MemoryLevel("memory", 1 << 62, 20e9, 30e9)))
CONV = {
    "n": 2, "c": 4, "h": 7, "w": 9, "k": 6, "r": 3, "s": 2, "stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 2,
    "dilation": 1, "groups": 2, "p": 4, "q": 12,
}  # fmt: skip
SMALL = (
    OperatorCase("small", "conv", "conv2d", CONV),
    OperatorCase("small", "nt", "batch_gemm", {"batch": 3, "m": 5, "n": 7, "k": 11, "trans_a": 0, "trans_b": 1}),
    OperatorCase("small", "reduce", "reduce", {"outer": 3, "depth": 50, "inner": 4}),
    OperatorCase("small", "gelu", "bias_gelu", {"m": 6, "n": 8, "k": 16}),
    OperatorCase("small", "int8", "int8", {"m": 20, "n": 32, "k": 64}),
    OperatorCase("small", "bf16", "bfloat16", {"m": 20, "n": 32, "k": 64}),
)


class TestCases:
    @pytest.mark.parametrize(
        ("name", "count", "op"),
        [
            ("vortex_deepbench_conv_107", 107, "conv2d"),
            ("vortex_cnn_conv_584", 584, "conv2d"),
            ("vortex_network_groups_76", 76, "conv2d"),
            ("dietcode_bmm_nt", 8, "batch_gemm"),
            ("dietcode_bmm_nn", 8, "batch_gemm"),
        ],
    )
    def test_suites(self, name: str, count: int, op: str):
        cases = load_any_suite(name)
        assert len(cases) == len({case.id for case in cases}) == count
        for case in cases:
            assert isinstance(case, OperatorCase) and case.op == op and case.flops > 0
            if op == "conv2d":
                sides = ("h", "r", "p", "stride_h", "pad_h"), ("w", "s", "q", "stride_w", "pad_w")
                for size, taps, out, step, pad in sides:
                    reach = (case[taps] - 1) * case["dilation"] + 1
                    assert case[out] == (case[size] + 2 * case[pad] - reach) // case[step] + 1

    def test_3x3_with_stride_1_is_310_of_the_convolutions(self):
        both = [*load_any_suite("vortex_deepbench_conv_107"), *load_any_suite("vortex_cnn_conv_584")]
        plain = {"r": 3, "s": 3, "stride_h": 1, "stride_w": 1}
        assert sum(all(case[name] == value for name, value in plain.items()) for case in both) == 310

    def test_the_suite_of_a_product_stays_one(self):
        assert all(isinstance(case, Case) for case in load_any_suite("vortex_table6_96"))

    def test_counts(self):
        conv, nt, reduction = SMALL[:3]
        assert conv.flops == 2 * 2 * 6 * 4 * 12 * 2 * 3 * 2
        assert conv.read_bytes == 4 * (2 * 4 * 7 * 9 + 6 * 2 * 3 * 2)
        assert nt.flops == 2 * 3 * 5 * 7 * 11 and nt.write_bytes == 4 * 3 * 35
        assert reduction.flops == 600 and reduction.footprint_bytes == 4 * (600 + 12)
        assert SMALL[4].read_bytes == 20 * 64 + 64 * 32 and SMALL[4].write_bytes == 4 * 20 * 32

    def test_the_roofline_leaves_room_for_fewer_multiplications(self):
        winograd = OperatorCase("s", "w", "conv2d", {**CONV, "r": 3, "s": 3, "stride_h": 1, "pad_h": 0, "pad_w": 0})
        assert winograd.least_flops == winograd.flops / 4
        assert roofline_seconds(winograd, LIMITS, "warm") == pytest.approx(winograd.flops / 4 / 100e9)
        assert all(case.least_flops == case.flops for case in SMALL[3:])

    def test_narrow_elements_have_peaks_of_their_own(self):
        vectors, tiles = LIMITS, replace(LIMITS, tiles=True)
        _, _, _, gelu, int8, bfloat16 = SMALL
        assert [vectors.peak_of(case.multiplied) for case in (gelu, bfloat16, int8)] == [100e9, 200e9, 400e9]
        assert [tiles.peak_of(case.multiplied) for case in (gelu, bfloat16, int8)] == [100e9, 1600e9, 3200e9]
        assert roofline_seconds(int8, tiles, "warm") == int8.flops / 3200e9
        assert Limits.from_json(tiles.to_json()) == tiles and Limits.from_json(vectors.to_json()) == vectors

    @pytest.mark.parametrize("case", [*SMALL, Case("s", "i", 2, 3, 4)], ids=str)
    def test_a_case_comes_back_from_its_fields(self, case: Case | OperatorCase):
        assert case_of(asdict(case)) == case

    def test_shapes_read_as_words(self):
        assert shape_of(asdict(SMALL[0])) == "2x4x7x9 6x3x2/2 g2"
        assert shape_of(asdict(SMALL[1])) == "3x5x7x11"
        assert shape_of(asdict(Case("s", "i", 2, 3, 4))) == "2x3x4"

    def test_products_as_other_operators(self):
        case = as_variant(Case("s", "s/1", 2, 3, 4), "int8")
        assert (case.id, case.op, case.extents) == ("s/1:int8", "int8", {"m": 2, "n": 3, "k": 4})
        assert len({case.id for case in reductions()}) == len(reductions())

    def test_one_operator_a_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        with pytest.raises(SystemExit):
            bench.main(["--suite", "dietcode_bmm_nt", "reductions", "--out", str(tmp_path / "x.jsonl")])
        assert "one operator a run" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            bench.main(["--suite", "reductions", "--cold", "--out", str(tmp_path / "x.jsonl")])


def peers() -> list[tuple[type[System], OperatorCase]]:
    """Every peer with every small case that it is compared on."""
    systems = (NumpyOperator, TorchOperator, TorchFused, OnnxRuntimeOperator)
    return [(system, case) for system in systems for case in SMALL if system.name in COMPARED[case.op]]


class TestSystems:
    @pytest.mark.parametrize(("system", "case"), peers(), ids=lambda part: getattr(part, "name", str(part)))
    def test_peers_compute_what_is_checked(self, system: type[System], case: OperatorCase):
        needed = {"torch_op": "torch", "onednn_fused": "torch", "onnxruntime_op": "onnxruntime"}.get(system.name)
        if needed and importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
        operands = make(case, 0)
        try:
            prepared = system(1).prepare(operands)
        except RuntimeError as error:
            pytest.skip(f"{system.name} cannot do {case.op} here: {error}")
        assert check(operands, prepared.result()) <= 1.0
        prepared.call()
        assert check(operands, prepared.result()) <= 1.0

    @pytest.mark.parametrize("case", SMALL, ids=str)
    def test_a_wrong_result_is_refused(self, case: OperatorCase):
        operands = make(case, 0)
        with pytest.raises(WrongResultError):
            check(operands, operands.out)
        with pytest.raises(WrongResultError, match="shape"):
            check(operands, np.zeros(3, np.float32))

    def test_systems_that_do_not_know_an_operator_are_absent(self):
        with pytest.raises(AbsentError, match="not compared on conv2d"):
            NumpyOperator(1).prepare(make(SMALL[0], 0))

    def test_every_compared_system_exists(self):
        assert all(name in SYSTEMS for names in COMPARED.values() for name in names)
        assert set(RIVALS["vortex_op"]) <= set(SYSTEMS)

    @pytest.mark.parametrize("op", ["bfloat16", "int8"])
    def test_the_packed_b_is_what_the_library_gets(self, op: str):
        """A library in float64: what it is given must be what is checked."""
        pytest.importorskip("ml_dtypes")

        class Double:
            def pack(self, b: np.ndarray) -> tuple[str, np.ndarray]:
                return "packed", b

            def __call__(self, a: np.ndarray, b: tuple[str, np.ndarray], out: np.ndarray) -> np.ndarray:
                assert b[0] == "packed"
                out[...] = a.astype(np.float64) @ b[1].astype(np.float64)
                return out

        system = VortexOperatorPacked(1)
        system.kernels["Gemm"] = Double()
        operands = make(next(case for case in SMALL if case.op == op), 0)
        prepared = system.prepare(operands)
        assert prepared.detail == "B packed" and check(operands, prepared.result()) <= 1.0

    def test_the_worker_takes_any_case(self):
        served = worker.Worker("numpy_op", 1)
        answer = served.answer({"do": "prepare", "case": asdict(SMALL[2]), "seed": 0})
        assert 0 <= answer["error_share"] < 1
        assert served.answer({"do": "measure", "mode": "warm", "seconds": 0.001})["calls"] > 0


class TestOperatorOracle:
    def test_every_plan_of_a_case_is_run(self, conv_library: Library):
        found = operator_oracle.try_plans(ConvKernel(conv_library), SMALL[0], rounds=2)
        assert found["plans"] == 6 and found["share"] > 0
        assert "direct" in found["chosen"]

    def test_a_case_is_run_once_and_products_are_counted(
        self, conv_library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        ConvKernel(conv_library).save(tmp_path / "conv.vortex")
        out = tmp_path / "found.jsonl"
        given = ["--library", str(tmp_path / "conv.vortex"), "--max-flops", "8e6", "--threads", "1", "--rounds", "2"]
        given += ["--seed", "1", "--allow-busy", "--out", str(out), "--sample", "10"]
        for _ in range(2):
            assert operator_oracle.main(given) == 0
            lines = records.read([out])
            assert 0 < len(lines) < 10
        told = capsys.readouterr().out
        assert "plain products" in told and "| 1 | " in told

    def test_a_wrong_result_ends_the_run(self, conv_library: Library):
        class Wrong(ConvKernel):
            def run(self, plan: ConvPlan, x: np.ndarray, w: np.ndarray, out: np.ndarray, **where: object) -> None:
                out.fill(1.0)

        with pytest.raises(WrongResultError):
            operator_oracle.try_plans(Wrong(conv_library), SMALL[0], rounds=2)

    def test_every_plan_of_a_batch_is_run(self, library_path: Path):
        library = read(library_path)
        batched = replace(library.manifest, operator="batch_gemm", settings=fields_of(BatchGemm()))
        bmm = BatchGemmKernel(replace(library, manifest=batched))
        extents = {"batch": 3, "m": 9, "n": 20, "k": 17, "trans_a": 0, "trans_b": 1}
        found = operator_oracle.try_plans(bmm, OperatorCase("small", "bmm", "batch_gemm", extents), rounds=2)
        assert found["plans"] == len(bmm.plans(3, 9, 20, 17, transpose_b=True)) and found["share"] > 0
        assert found["chosen"].endswith("thread(s)") and found["seconds"] > 0

    def test_every_plan_of_a_narrow_product_is_run(self):
        gemm = vortex.compile(Gemm("int8", out_dtype="int32"), hardware("int8"))
        found = operator_oracle.try_plans(gemm, SMALL[4], rounds=2)
        assert found["plans"] == len(gemm.plans(20, 32, 64)) and found["share"] > 0

    def test_cases_are_of_the_operator(self):
        for name, suites in operator_oracle.SUITES.items():
            ops = {case.op for case in operator_oracle.cases_of(name, suites)}
            assert ops == {"batch_gemm" if name == "batch" else name}

    def test_the_table_lists_the_worst_first(self):
        line = {"suite": "small", "id": "conv", "op": "conv2d", "extents": CONV}
        line |= {"threads": 1, "chosen": "a", "best": "b"}
        told = operator_oracle.table([line | {"share": 0.9}, line | {"share": 1.0}])
        assert "| conv2d | 1 | 2 | 94.9 % | 95.0 % | 90.0 % |" in told
        assert told.index("| 90.0 % | a") < told.index("| 100.0 % | a")
