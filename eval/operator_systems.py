"""The systems under comparison on operators beyond the plain product: each behind the API that a Python user has."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from eval.operator_operands import OperatorOperands
from eval.systems import AbsentError, OneDnn, OnnxRuntime, Prepared, System, package_version
from eval.vortex_systems import load_operator

Prepare = Callable[[OperatorOperands], Prepared]


def into(operands: OperatorOperands, call: Callable[[], Any], detail: str = "") -> Prepared:
    """A call that writes to the preallocated output."""

    def result() -> np.ndarray:
        if operands.out.dtype == np.float32:
            operands.out.fill(np.nan)
        call()
        return operands.out

    return Prepared(call, result, detail)


class OperatorSystem(System):
    """A system that knows some operators: `prepare` looks for the method of the case's operator."""

    def prepare(self, operands: Any) -> Prepared:
        prepare: Prepare | None = getattr(self, operands.case.op, None)
        if prepare is None:
            raise AbsentError(f"{self.name} is not compared on {operands.case.op}")
        return prepare(operands)


class VortexOperator(OperatorSystem):
    """The library of each operator; weights of a convolution packed beforehand, those of products as they lie."""

    name = "vortex_op"
    accuracy: ClassVar[str] = "fast"
    how: ClassVar[str] = ""
    """Of B, where it is not as it lies."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.kernels: dict[str, Any] = {}

    def kernel(self, name: str, **settings: Any) -> Any:
        """The library of an operator, compiled or from the cache, once a worker."""
        if name not in self.kernels:
            self.kernels[name] = load_operator(name, self.threads, **settings)
        return self.kernels[name]

    def conv2d(self, of: OperatorOperands) -> Prepared:
        e = of.case.extents
        run = self.kernel("Conv2d", layout="nhwc", accuracy=self.accuracy)
        window = {"stride": (e["stride_h"], e["stride_w"]), "padding": (e["pad_h"], e["pad_w"])}
        packed = run.pack(of["w"], groups=e["groups"])
        more = {"dilation": e["dilation"], "groups": e["groups"]}
        return into(of, partial(run, of["x"], packed, of.out, **window, **more))

    def batch_gemm(self, of: OperatorOperands) -> Prepared:
        flags = {name: True for name in ("transpose_a", "transpose_b") if of.case.extents[name.replace("pose", "")]}
        return into(of, partial(self.kernel("BatchGemm"), of["a"], of["b"], of.out, **flags))

    def reduce(self, of: OperatorOperands) -> Prepared:
        return into(of, partial(self.kernel("Reduce"), of["x"], 1, of.out))

    def bias_gelu(self, of: OperatorOperands) -> Prepared:
        operators: Any = importlib.import_module("vortex.operators")
        if not hasattr(operators, "gelu"):
            raise AbsentError("this vortex fuses no epilogues")
        run = self.kernel("Gemm", epilogue=operators.bias() >> operators.gelu())
        return into(of, partial(run, of["a"], self.right(run, of["b"]), of.out, bias=of["bias"]), self.how)

    def int8(self, of: OperatorOperands) -> Prepared:
        run = self.kernel("Gemm", dtype="int8")
        return into(of, partial(run, of["a"], self.right(run, of["b"]), of.out), self.how)

    def bfloat16(self, of: OperatorOperands) -> Prepared:
        import ml_dtypes

        a, b = (of[name].astype(ml_dtypes.bfloat16) for name in ("a", "b"))
        out = np.empty(of.out.shape, ml_dtypes.bfloat16)
        run = self.kernel("Gemm", dtype="bfloat16")
        call = partial(run, a, self.right(run, b), out)
        return Prepared(call, lambda: np.asarray(call()).astype(np.float32), self.how)

    def right(self, run: Any, b: np.ndarray) -> Any:
        """B as a call gets it."""
        return b

    def versions(self) -> dict[str, str]:
        return {name: package_version(name) for name in ("vortex", "apache-tvm", "apache-tvm-ffi")}


class VortexOperatorPacked(VortexOperator):
    """Products alone, their B packed beforehand, as weights are."""

    name = "vortex_op_packed"
    how = "B packed"
    conv2d = batch_gemm = reduce = None  # type: ignore[assignment]

    def right(self, run: Any, b: np.ndarray) -> Any:
        return run.pack(b)


class VortexStrict(VortexOperator):
    """Convolutions by the definition alone."""

    name = "vortex_strict"
    accuracy = "strict"
    batch_gemm = reduce = bias_gelu = int8 = bfloat16 = None  # type: ignore[assignment]


class VortexUnfused(OperatorSystem):
    """The float32 product alone: what an epilogue adds to, and what low precision is faster than."""

    name = "vortex_plain"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.gemm = load_operator("Gemm", threads)

    def _product(self, of: OperatorOperands) -> Prepared:
        """The result is not that of the case, so it is computed apart for the check."""
        a, b = (np.ascontiguousarray(of[name], np.float32) for name in ("a", "b"))
        call = partial(self.gemm, a, b, out=np.empty(of.out.shape, np.float32))
        return Prepared(call, partial(self._result, of, call), "without the epilogue or in float32")

    @staticmethod
    def _result(of: OperatorOperands, call: Callable[[], Any]) -> np.ndarray:
        found: np.ndarray = call()
        if of.case.op == "bias_gelu":
            import torch

            found = torch.nn.functional.gelu(torch.from_numpy(found + of["bias"])).numpy()
        return found.astype(of.out.dtype) if of.case.op != "int8" else np.rint(found).astype(np.int32)

    bias_gelu = bfloat16 = int8 = _product

    def versions(self) -> dict[str, str]:
        return {"vortex": package_version("vortex")}


class NumpyOperator(OperatorSystem):
    """What NumPy has."""

    name = "numpy_op"

    def reduce(self, of: OperatorOperands) -> Prepared:
        return into(of, partial(np.add.reduce, of["x"], axis=1, out=of.out))

    def batch_gemm(self, of: OperatorOperands) -> Prepared:
        e = of.case.extents
        a, b = (of[n].swapaxes(1, 2) if e[flag] else of[n] for n, flag in (("a", "trans_a"), ("b", "trans_b")))
        return into(of, partial(np.matmul, a, b, out=of.out))

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}


class TorchOperator(OperatorSystem, OneDnn):
    """PyTorch: oneDNN for convolutions and low precision, MKL for batches, eager for product, bias and GELU."""

    name = "torch_op"

    def conv2d(self, of: OperatorOperands) -> Prepared:
        torch, e = self.torch, of.case.extents
        x = torch.from_numpy(of["x"]).permute(0, 3, 1, 2)
        window = ((e["pad_h"], e["pad_w"]), (e["stride_h"], e["stride_w"]), (e["dilation"], e["dilation"]), e["groups"])
        w = torch.ops.mkldnn._reorder_convolution_weight(torch.from_numpy(of["w"]), *window, list(x.shape))
        call = partial(torch.ops.mkldnn._convolution_pointwise, x, w, None, *window, "none", [], "")
        return Prepared(call, lambda: np.asarray(call().permute(0, 2, 3, 1).numpy()), "channels last, weights packed")

    def batch_gemm(self, of: OperatorOperands) -> Prepared:
        e = of.case.extents
        a, b = (
            self.torch.from_numpy(of[n]).mT if e[flag] else self.torch.from_numpy(of[n])
            for n, flag in (("a", "trans_a"), ("b", "trans_b"))
        )
        return into(of, partial(self.torch.bmm, a, b, out=self.torch.from_numpy(of.out)))

    def reduce(self, of: OperatorOperands) -> Prepared:
        x, out = self.torch.from_numpy(of["x"]), self.torch.from_numpy(of.out)
        return into(of, partial(self.torch.sum, x, 1, out=out))

    def bias_gelu(self, of: OperatorOperands) -> Prepared:
        a, b, bias = (self.torch.from_numpy(of[name]) for name in ("a", "b", "bias"))
        mm, gelu = self.torch.mm, self.torch.nn.functional.gelu

        def call() -> Any:
            return gelu(mm(a, b) + bias)

        return Prepared(call, lambda: np.asarray(call().numpy()), "mm, add, gelu")

    def int8(self, of: OperatorOperands) -> Prepared:
        a, b, out = (self.torch.from_numpy(array) for array in (of["a"], of["b"], of.out))
        return into(of, partial(self.torch._int_mm, a, b, out=out))

    def bfloat16(self, of: OperatorOperands) -> Prepared:
        a, b = (self.torch.from_numpy(of[name]).bfloat16() for name in ("a", "b"))
        call = partial(self.torch.mm, a, b, out=self.torch.empty(of.out.shape, dtype=self.torch.bfloat16))
        return Prepared(call, lambda: np.asarray(call().float().numpy()))


class TorchFused(TorchOperator):
    """oneDNN with what it fuses or packs: the linear operator with bias and GELU in it, packed bfloat16 weights."""

    name = "onednn_fused"
    conv2d = batch_gemm = reduce = int8 = None  # type: ignore[assignment]

    def bias_gelu(self, of: OperatorOperands) -> Prepared:
        a, b, bias = (self.torch.from_numpy(of[name]) for name in ("a", "b", "bias"))
        packed = self.torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), of.case["m"])
        linear = self.torch.ops.mkldnn._linear_pointwise
        call = partial(linear, a, packed, bias, "gelu", [], "none")
        return Prepared(call, lambda: np.asarray(call().numpy()), "weight packed for this m, fused")

    def bfloat16(self, of: OperatorOperands) -> Prepared:
        a, b = (self.torch.from_numpy(of[name]).bfloat16() for name in ("a", "b"))
        packed = self.torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), of.case["m"])
        call = partial(self.torch.ops.mkldnn._linear_pointwise, a, packed, None, "none", [], "")
        return Prepared(call, lambda: np.asarray(call().float().numpy()), "weight packed for this m")


class OnnxRuntimeOperator(OperatorSystem, OnnxRuntime):
    """One node with constant weights (packed when the session starts), bound to preallocated buffers."""

    name = "onnxruntime_op"

    def _session(
        self, node: Any, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], out: np.ndarray
    ) -> Callable[[], Any]:
        helper, numpy_helper = self.onnx.helper, self.onnx.numpy_helper
        kinds = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3, np.dtype(np.int32): 6}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(name, kinds[array.dtype], array.shape) for name, array in inputs.items()],
            [helper.make_tensor_value_info("out", kinds[out.dtype], out.shape)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_output("out", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

        def call(_kept: Any = (inputs, out)) -> None:
            """The binding knows addresses only: the arrays live as long as the call."""
            session.run_with_iobinding(binding)

        return call

    def conv2d(self, of: OperatorOperands) -> Prepared:
        e = of.case.extents
        x = np.ascontiguousarray(of["x"].transpose(0, 3, 1, 2))
        out = np.empty((e["n"], e["k"], e["p"], e["q"]), np.float32)
        node = self.onnx.helper.make_node(
            "Conv", ["x", "w"], ["out"], strides=[e["stride_h"], e["stride_w"]], group=e["groups"],
            pads=[e["pad_h"], e["pad_w"]] * 2, dilations=[e["dilation"]] * 2,
        )  # fmt: skip
        call = self._session(node, {"x": x}, {"w": of["w"]}, out)

        def result() -> np.ndarray:
            call()
            return out.transpose(0, 2, 3, 1)

        return Prepared(call, result, "NCHW")

    def batch_gemm(self, of: OperatorOperands) -> Prepared:
        """Two inputs; a transposed one is laid out plainly before, which flatters this system."""
        e = of.case.extents
        plain = {
            n: np.ascontiguousarray(of[n].swapaxes(1, 2)) if e[flag] else of[n]
            for n, flag in (("a", "trans_a"), ("b", "trans_b"))
        }
        node = self.onnx.helper.make_node("MatMul", ["a", "b"], ["out"])
        return into(of, self._session(node, plain, {}, of.out), "operands laid out plainly before")

    def reduce(self, of: OperatorOperands) -> Prepared:
        node = self.onnx.helper.make_node("ReduceSum", ["x", "axes"], ["out"], keepdims=0)
        return into(of, self._session(node, {"x": of["x"]}, {"axes": np.array([1], np.int64)}, of.out))

    def int8(self, of: OperatorOperands) -> Prepared:
        node = self.onnx.helper.make_node("MatMulInteger", ["a", "b"], ["out"])
        return into(of, self._session(node, {"a": of["a"]}, {"b": of["b"]}, of.out), "B packed")


OPERATOR_SYSTEMS: tuple[type[System], ...] = (
    VortexOperator,
    VortexOperatorPacked,
    VortexStrict,
    VortexUnfused,
    NumpyOperator,
    TorchOperator,
    TorchFused,
    OnnxRuntimeOperator,
)
OPERATOR_PEERS = ("numpy_op", "torch_op", "onednn_fused", "onnxruntime_op")
COMPARED = {
    "conv2d": ("vortex_op", "torch_op", "onnxruntime_op"),
    "batch_gemm": ("vortex_op", "torch_op", "onnxruntime_op"),
    "reduce": ("vortex_op", "numpy_op", "torch_op", "onnxruntime_op"),
    "bias_gelu": ("vortex_op", "vortex_op_packed", "vortex_plain", "torch_op", "onednn_fused"),
    "int8": ("vortex_op", "vortex_op_packed", "vortex_plain", "torch_op", "onnxruntime_op"),
    "bfloat16": ("vortex_op", "vortex_op_packed", "vortex_plain", "torch_op", "onednn_fused"),
}
"""The systems that measure an operator unless others are named."""
