"""The algebra: what a chain says, does and refuses; and the emitted stages, alone, against it."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable

import needs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vortex import DtypeError, OperandError, UnknownNameError
from vortex import operators as ops
from vortex.affinity import cpu_flags
from vortex.epilogue import Epilogue, Store, rebuilt
from vortex.steps import rounded_to_bfloat16

RNG = np.random.default_rng(5)
STEPS = st.one_of(
    st.sampled_from([ops.relu(), ops.gelu(), ops.gelu("tanh"), ops.silu(), ops.clamp(-1, 2), ops.scale(0.5)]),
    st.builds(
        lambda per, at: ops.bias(per, operand=f"bias{at}"), st.sampled_from(["row", "column"]), st.integers(0, 99)
    ),
)


def chained(steps: list[Epilogue]) -> Epilogue:
    chain = Epilogue()
    for step in steps:
        chain = chain >> step
    return chain


class TestAlgebra:
    def test_steps_are_done_from_left_to_right(self):
        x = np.array([[-3.0, 1.0]])
        assert (ops.relu() >> ops.scale(2)).reference(x).tolist() == [[0, 2]]
        chain = ops.bias() >> ops.relu() >> ops.scale(per="row")
        assert chain.reference(x, bias=[1, 1], scale=[10]).tolist() == [[0, 20]]
        assert (ops.residual() >> ops.clamp(-1, 1)).reference(x, residual=[[0.5, 5.0]]).tolist() == [[-1, 1]]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(STEPS, max_size=3, unique_by=str))
    def test_a_library_remembers_the_chain(self, steps: list[Epilogue]):
        names = [x.name for step in steps for x in step.operands]
        assume(len(set(names)) == len(names))
        operator = ops.Gemm(epilogue=chained(steps))
        assert ops.rebuilt("gemm", ops.settings(operator)) == operator
        assert rebuilt(operator.epilogue.settings()) == operator.epilogue
        assert operator.epilogue.turned.turned == operator.epilogue

    def test_references_agree_with_pytorch(self):
        torch = pytest.importorskip("torch")
        x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
        f = torch.nn.functional
        for chain, theirs in [
            (ops.gelu(), f.gelu(x)),
            (ops.gelu("tanh"), f.gelu(x, approximate="tanh")),
            (ops.silu(), f.silu(x)),
            (ops.relu(), f.relu(x)),
            (ops.clamp(-2, 3), x.clamp(-2, 3)),
        ]:
            assert np.allclose(chain.reference(x.numpy()), theirs.numpy(), rtol=1e-12, atol=1e-14), chain
        narrow = x.float().bfloat16().float().numpy()
        assert np.array_equal(rounded_to_bfloat16(x.float().numpy()), narrow)

    def test_casts_round_to_even_and_saturate(self):
        x = np.array([-200.0, -1.5, -0.5, 0.5, 1.5, 2.5, 300.0])
        assert ops.cast("int8").reference(x).tolist() == [-128, -2, 0, 0, 2, 2, 127]
        assert ops.cast("uint8").reference(x).tolist() == [0, 0, 0, 0, 2, 2, 255]

    def test_what_turns_over_with_the_output(self):
        assert (ops.bias() >> ops.residual()).turned == ops.bias("row") >> ops.residual()

    def test_what_sums_become(self):
        assert not ops.Gemm().store.needed and not str(ops.Gemm().store)
        assert not ops.Gemm(epilogue=ops.cast("float32")).store.needed
        assert ops.Gemm(out_dtype="bfloat16").store.apart
        assert str(ops.Gemm(epilogue=ops.relu(), out_dtype="int8").store) == "relu >> as int8"

    def test_bytes_of_bytes_have_a_scale(self):
        for chain in (ops.scale(), ops.scale(0.5), ops.bias() >> ops.scale(per="row") >> ops.relu()):
            assert ops.Gemm("int8", chain, out_dtype="int8").store.out == "int8"
        for out in (None, "int32", "float32", "bfloat16"):
            assert ops.Gemm("int8", out_dtype=out).store.sums == "int32"


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (lambda: ops.bias("channel"), UnknownNameError, "column"),
        (lambda: ops.gelu("erf"), UnknownNameError, "tanh"),
        (lambda: ops.cast("int4"), DtypeError, "int8"),
        (lambda: ops.bias(dtype="float64"), DtypeError, "bfloat16"),
        (lambda: ops.scale(math.nan), OperandError, "finite"),
        (lambda: ops.scale("x"), OperandError, "finite"),  # type: ignore[arg-type]
        (lambda: ops.clamp(2, 1), OperandError, "low <= high"),
        (lambda: ops.bias() >> ops.bias(), OperandError, "bias2"),
        (lambda: ops.bias(operand="out"), OperandError, "taken"),
        (lambda: ops.cast("int8") >> ops.relu(), OperandError, "last step"),
        (lambda: chained([ops.bias(operand=f"x{i}") for i in range(5)]), OperandError, "4 at most"),
        (lambda: ops.relu() >> "gelu", UnknownNameError, "no epilogue"),  # type: ignore[operator]
        (lambda: ops.Gemm(epilogue="relu"), UnknownNameError, "chain"),  # type: ignore[arg-type]
        (lambda: ops.Gemm(out_dtype="float80"), DtypeError, "out_dtype"),
        (lambda: ops.Gemm(out_dtype="int8", epilogue=ops.cast("uint8")), DtypeError, "drop one"),
        (lambda: ops.Gemm("int8", out_dtype="int8"), DtypeError, r"no scale: .*out_dtype='int32', or scale\(\)"),
        (
            lambda: ops.Gemm("int8", ops.bias() >> ops.clamp(0, 9) >> ops.cast("uint8")),
            DtypeError,
            "uint8 and no scale",
        ),
        (lambda: ops.BatchGemm("int8", epilogue=ops.cast("int8")), DtypeError, "BatchGemm.*int8 and no scale"),
        (lambda: ops.GroupedGemm("int8", out_dtype="uint8"), DtypeError, "GroupedGemm.*uint8 and no scale"),
        (lambda: ops.Gemm(prologue=ops.bias()), OperandError, "no tensors"),
        (lambda: ops.Gemm(prologue="relu"), UnknownNameError, "chain"),  # type: ignore[arg-type]
    ],
)
def test_refused(wrong: Callable[[], object], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        wrong()


LANES = 16 if "avx512f" in cpu_flags() else 8
CHAINS = [ops.gelu(), ops.gelu("tanh"), ops.silu(), ops.relu() >> ops.clamp(-1, 3) >> ops.scale(0.75)]
CASTS = ["bfloat16", "float16", "int8", "uint8", "int32"]
MEMORY = {"bfloat16": np.dtype(np.uint16)}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every chain as a load stage, and every cast behind one operand of each kind as a store stage."""
    from vortex.codegen.cpu_store import load_stage, store_stage
    from vortex.codegen.link import c_compiler
    from vortex.codegen.lower import compile_object, cpu_target

    folder = tmp_path_factory.mktemp("stages")
    functions = [load_stage(chain, LANES).with_attr("global_symbol", f"chain{i}") for i, chain in enumerate(CHAINS)]
    functions += [
        store_stage(Store(wide(dtype), "float32", dtype), LANES).with_attr("global_symbol", f"as_{dtype}")
        for dtype in CASTS
    ]
    functions.append(store_stage(Store(ops.scale() >> ops.cast("int8"), "int32", "int8"), LANES))
    cpu = "x86-64-v4" if LANES == 16 else "x86-64-v3"
    compile_object(functions, cpu_target(cpu), folder / "stages.o")
    command = [c_compiler(), "-shared", "-o", str(folder / "stages.so"), str(folder / "stages.o")]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "stages.so"))


def wide(dtype: str) -> Epilogue:
    return ops.bias() >> ops.scale(per="row", dtype="bfloat16") >> ops.residual(dtype="float16") >> ops.cast(dtype)


def run(function: ctypes._NamedFuncPointer, x: np.ndarray, out: np.ndarray, *extras: np.ndarray) -> None:
    def pointer(array: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    arguments: list[object] = [pointer(x), pointer(out), *map(ctypes.c_int64, x.shape)]
    arguments += [ctypes.c_int64(array.strides[0] // array.itemsize) for array in (x, out)]
    for extra in extras:
        arguments += [pointer(extra), ctypes.c_int64(extra.strides[0] // extra.itemsize)]
    function(*arguments)


@needs.a_compiler
class TestStages:
    @pytest.mark.parametrize("index", range(len(CHAINS)))
    def test_error_over_the_whole_range(self, stages: ctypes.CDLL, index: int):
        """At most 3e-7 max(1, |x|), as the emitting module states."""
        sizes = np.concatenate([np.logspace(-30, 20, 3001), np.linspace(0, 12, 120_001)])
        x = np.concatenate([sizes, -sizes, [0.0, -0.0]]).astype(np.float32)[None]
        out = np.empty_like(x)
        run(getattr(stages, f"chain{index}"), x, out)
        with np.errstate(over="ignore"):
            exact = CHAINS[index].reference(x)
        assert (np.abs(out - exact) <= 3e-7 * np.maximum(1, np.abs(x))).all()

    @pytest.mark.parametrize("index", range(len(CHAINS)))
    def test_nan_and_infinity(self, stages: ctypes.CDLL, index: int):
        x = np.array([[np.nan, np.inf, 1.0]], np.float32)
        out = np.zeros_like(x)
        run(getattr(stages, f"chain{index}"), x, out)
        assert np.isnan(out[0, 0]) and np.isfinite(out[0, 2])
        assert out[0, 1] == (np.inf if index < 3 else 2.25)

    @pytest.mark.parametrize("dtype", CASTS)
    @pytest.mark.parametrize("columns", [1, 7, 8, 15, 16, 17, 31, 48, 50])
    def test_casts_and_operands_at_edges(self, stages: ctypes.CDLL, dtype: str, columns: int):
        rows = 5
        x = RNG.normal(0, 90, (rows, columns + 3)).astype(np.float32)[:, :columns]
        bias, scale = (RNG.normal(0, 9, extent).astype(np.float32) for extent in (columns, rows))
        residual = RNG.normal(0, 30, (rows, columns)).astype(np.float16)
        bits = (rounded_to_bfloat16(scale).view(np.uint32) >> 16).astype(np.uint16)
        memory = MEMORY.get(dtype, np.dtype(dtype) if dtype != "bfloat16" else None)
        room = np.full((rows, columns + 5), 77, memory)
        out = room[:, 2 : 2 + columns]
        run(getattr(stages, f"as_{dtype}"), x, out, bias, bits, residual)
        sums = x + bias
        sums = sums * rounded_to_bfloat16(scale)[:, None] + residual.astype(np.float32)
        expected = ops.cast(dtype).reference(sums)
        got = (out.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else out
        assert np.array_equal(got, expected)
        assert (np.delete(room, np.s_[2 : 2 + columns], axis=1) == 77).all(), "wrote outside out"

    @pytest.mark.parametrize("dtype", CASTS)
    @pytest.mark.parametrize("columns", [4, 37])
    def test_casts_of_nan(self, stages: ctypes.CDLL, dtype: str, columns: int):
        """Whatever its payload: to round the largest as a number would carry into the sign."""
        bits = np.resize(np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC00001], np.uint32), (1, columns))
        bias, scale = np.zeros(columns, np.float32), np.full(1, 0x3F80, np.uint16)
        out = np.full((1, columns), 77, MEMORY.get(dtype, np.dtype(dtype) if dtype != "bfloat16" else None))
        residual = np.zeros((1, columns), np.float16)
        run(getattr(stages, f"as_{dtype}"), bits.view(np.float32), out, bias, scale, residual)
        got = (out.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else out
        assert np.isnan(got).all() if dtype in ("bfloat16", "float16") else not got.any()

    def test_requantization(self, stages: ctypes.CDLL):
        """int32 sums times a scale per column, rounded and saturated."""
        sums = RNG.integers(-(2**20), 2**20, (4, 37)).astype(np.int32)
        scale = np.full(37, 2.0**-13, np.float32)
        out = np.zeros((4, 37), np.int8)
        run(stages.vortex_epilogue, sums, out, scale)
        assert np.array_equal(out, np.clip(np.rint(sums * 2.0**-13), -128, 127))


def test_no_library_function_is_called() -> None:
    """exp, erf and tanh are polynomials in the loop."""
    from vortex.codegen.cpu_store import load_stage

    assert all("extern" not in str(load_stage(chain, 16)) for chain in CHAINS)
