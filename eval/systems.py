"""The systems under comparison. Each lives alone in a worker process: every library brings its own thread pool.

Operands lie as the case says for every system, 64-byte aligned, and the output is preallocated wherever the API takes
one. oneDNN through PyTorch takes none and allocates; the workers' allocator therefore keeps freed memory
(see process.py), so that a repeated call pays for no fresh pages.
"""

import ctypes
import importlib.metadata
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from eval.operands import Operands

Call = Callable[[], Any]
# A second stored copy of B for a peer's sake is made only up to this size.
MAX_RELAYOUT_BYTES = 1 << 30


class AbsentError(RuntimeError):
    """The system is not installed here, or cannot run the case; it is reported, not skipped in silence."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One case, ready to be timed: `call` is what a user would run, `result` runs it once and returns the product."""

    call: Call
    result: Callable[[], np.ndarray]
    detail: str = ""


class System(ABC):
    """A GEMM library behind the API that a Python user has."""

    name: ClassVar[str]
    packed: ClassVar[bool] = False
    environment: ClassVar[dict[str, str]] = {}  # variables that must be set before the process starts

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def prepare(self, operands: Operands) -> Prepared:
        """Everything that is not timed: views, packing, sessions."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What the result lines record about the libraries in use."""


def into(operands: Operands, call: Call, detail: str = "") -> Prepared:
    """A call that writes to the preallocated output."""

    def result() -> np.ndarray:
        operands.out.fill(np.nan)
        call()
        return operands.out

    return Prepared(call, result, detail)


def package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _openblas_core() -> str:
    """The core type that OpenBLAS chose its kernels for."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "(core type unknown: threadpoolctl is not installed)"
    return next((str(pool["architecture"]) for pool in threadpool_info() if pool["internal_api"] == "openblas"), "")


def quickest(calls: Mapping[str, Call], seconds: float = 0.05) -> tuple[str, Call]:
    """The call with the fastest single run after a first one; the first named wins unless another is 3 % faster."""
    best: dict[str, float] = {}
    for name, call in calls.items():
        call()
        best[name] = float("inf")
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            call()
            now = time.perf_counter()
            best[name] = min(best[name], now - start)
            if now > end:
                break
    first = next(iter(calls))
    fastest = min(best, key=lambda name: best[name])
    chosen = fastest if best[fastest] < 0.97 * best[first] else first
    return chosen, calls[chosen]


class _Torch(System):
    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        try:
            import torch
        except ImportError as error:
            raise AbsentError("PyTorch is not installed") from error
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}


class Mkl(_Torch):
    """torch.mm(out=); the wheel's float32 GEMM is MKL."""

    name = "mkl"

    def prepare(self, operands: Operands) -> Prepared:
        a, b, out = (self.torch.from_numpy(array) for array in (operands.a_mk, operands.b_kn, operands.out))
        return into(operands, partial(self.torch.mm, a, b, out=out))

    def versions(self) -> dict[str, str]:
        build = self.torch.__config__.show()
        mkl = next((line.strip(" -") for line in build.splitlines() if "Math Kernel Library" in line), "no MKL")
        return super().versions() | {"mkl": mkl}


class MklCblas(System):
    """cblas_sgemm of the mkl wheel through ctypes, so that no ratio is won from a dispatcher."""

    name = "mkl_cblas"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        candidates = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
        if not candidates:
            raise AbsentError(f"no libmkl_rt.so in {sys.prefix}/lib (pip install mkl)")
        os.environ["MKL_INTERFACE_LAYER"] = "LP64"
        os.environ["MKL_THREADING_LAYER"] = "INTEL"
        self.library = ctypes.CDLL(str(candidates[-1]), mode=ctypes.RTLD_GLOBAL)
        self.library.MKL_Set_Num_Threads(ctypes.c_int(threads))
        self.library.cblas_sgemm.restype = None

    def prepare(self, operands: Operands) -> Prepared:
        case, number = operands.case, ctypes.c_int
        row_major, plain, transposed = 101, 111, 112
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (operands.a, operands.b, operands.out)]
        call = partial(
            self.library.cblas_sgemm,
            number(row_major),
            number(transposed if case.trans_a else plain),
            number(transposed if case.trans_b else plain),
            number(case.m),
            number(case.n),
            number(case.k),
            ctypes.c_float(1.0),
            pointers[0],
            number(max(1, operands.a.shape[1])),
            pointers[1],
            number(max(1, operands.b.shape[1])),
            ctypes.c_float(0.0),
            pointers[2],
            number(max(1, case.n)),
        )
        return into(operands, call)

    def versions(self) -> dict[str, str]:
        return {"mkl-wheel": package_version("mkl")}


class OneDnn(_Torch):
    """oneDNN with a plain weight, through PyTorch's fused linear operator.

    oneDNN has a kernel for either orientation of a plain weight. It is given the operand as it lies and, where that
    costs no more than a gigabyte, also a copy in the other orientation; the quicker of the two is what counts.
    """

    name = "onednn"

    def prepare(self, operands: Operands) -> Prepared:
        linear = self.torch.ops.mkldnn._linear_pointwise
        x = self.torch.from_numpy(operands.a_mk)
        weight = self.torch.from_numpy(operands.b_kn.T)
        calls = {"weight as given": partial(linear, x, weight, None, "none", [], "")}
        if operands.b.nbytes <= MAX_RELAYOUT_BYTES:
            if operands.case.trans_b:
                other, label = weight.t().contiguous().t(), "weight copied to [k,n]"
            else:
                other, label = weight.contiguous(), "weight copied to [n,k]"
            calls[label] = partial(linear, x, other, None, "none", [], "")
        detail, call = quickest(calls)
        return Prepared(call, lambda: np.asarray(call().numpy()), detail)

    def versions(self) -> dict[str, str]:
        build = self.torch.__config__.show()
        onednn = next((line.strip(" -") for line in build.splitlines() if "MKL-DNN" in line), "no oneDNN")
        return super().versions() | {"onednn": onednn}


class OneDnnPacked(OneDnn):
    """oneDNN with its own blocked weight, packed for exactly this m."""

    name = "onednn_packed"
    packed = True

    def prepare(self, operands: Operands) -> Prepared:
        x = self.torch.from_numpy(operands.a_mk)
        weight = self.torch.from_numpy(operands.b_kn.T)
        packed = self.torch.ops.mkldnn._reorder_linear_weight(weight, operands.case.m)
        call = partial(self.torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
        return Prepared(call, lambda: np.asarray(call().numpy()), "weight packed for this m")


class OpenBlas(System):
    """numpy.matmul(out=); NumPy's wheels carry OpenBLAS."""

    name = "openblas"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        if "openblas" not in blas["name"]:
            raise AbsentError(f"this NumPy uses {blas['name']}, not OpenBLAS")
        self.blas = f"{blas['name']} {blas['version']} {_openblas_core()}"

    def prepare(self, operands: Operands) -> Prepared:
        return into(operands, partial(np.matmul, operands.a_mk, operands.b_kn, out=operands.out))

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__, "openblas": self.blas}


class OpenBlasAvx512(OpenBlas):
    """OpenBLAS told to use its AVX-512 kernels: releases older than a CPU take it for the last one they know."""

    name = "openblas_avx512"
    environment: ClassVar[dict[str, str]] = {"OPENBLAS_CORETYPE": "SkylakeX"}

    def __init__(self, threads: int) -> None:
        if "avx512f" not in Path("/proc/cpuinfo").read_text():
            raise AbsentError("no AVX-512 on this CPU")
        super().__init__(threads)


class OnnxRuntime(System):
    """A MatMul with a constant B (packed when the session starts) and a free m, bound to preallocated buffers."""

    name = "onnxruntime"
    packed = True

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise AbsentError(f"{error.name} is not installed") from error
        self.onnx, self.runtime = onnx, onnxruntime

    def _model(self, operands: Operands) -> bytes:
        """Transposed A needs the Gemm node; otherwise MatMul, which packs the same way."""
        helper, case = self.onnx.helper, operands.case
        kind = self.onnx.TensorProto.FLOAT
        stored = np.ascontiguousarray(operands.b_kn)
        node = (
            helper.make_node("Gemm", ["a", "b"], ["c"], transA=1)
            if case.trans_a
            else helper.make_node("MatMul", ["a", "b"], ["c"])
        )
        graph = helper.make_graph(
            [node],
            "gemm",
            [helper.make_tensor_value_info("a", kind, [case.k, "m"] if case.trans_a else ["m", case.k])],
            [helper.make_tensor_value_info("c", kind, ["m", case.n])],
            [helper.make_tensor("b", kind, stored.shape, stored.tobytes(), raw=True)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(model.SerializeToString())

    def prepare(self, operands: Operands) -> Prepared:
        if operands.b.nbytes >= 1 << 31:
            raise AbsentError("B is over the 2 GiB that an ONNX file can hold")
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        session = self.runtime.InferenceSession(self._model(operands), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for bind, name, array in (
            (binding.bind_input, "a", operands.a),
            (binding.bind_output, "c", operands.out),
        ):
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return into(operands, partial(session.run_with_iobinding, binding))

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self.runtime.__version__}
