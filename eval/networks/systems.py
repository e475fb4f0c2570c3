"""Who runs a network: each makes a function of its input from a module of PyTorch, in a process of its own."""

import copy
import importlib.metadata
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from eval.networks.build import Encoded

Call = Callable[[Any], Any]


class Runner(ABC):
    """A way to run networks."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)

    @abstractmethod
    def load(self, module: nn.Module, example: Any) -> Call:
        """The network, ready for inputs of any extents; `example` is one of them."""

    def compilations(self) -> int:
        """How many programs were compiled so far."""
        return 0

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in self.packages}


class Eager(Runner):
    """PyTorch as it is."""

    name = "eager"

    def load(self, module: nn.Module, example: Any) -> Call:
        return module


class Compiled(Runner):
    """torch.compile with dynamic extents."""

    def compilations(self) -> int:
        return int(torch._dynamo.utils.counters["frames"]["total"])


class Inductor(Compiled):
    """Inductor with frozen weights: it folds, packs and fuses what it can."""

    name = "inductor"

    def load(self, module: nn.Module, example: Any) -> Call:
        return torch.compile(module, dynamic=True, options={"freezing": True})


class VortexBackend(Compiled):
    """The backend of torch.compile."""

    name = "vortex"

    def load(self, module: nn.Module, example: Any) -> Call:
        from vortex.torch import backend
        from vortex.torch.dynamo import OPENING

        OPENING.listen()  # before each network PyTorch is reset, as no new process is, and told nothing of the next
        return torch.compile(module, dynamic=True, backend=backend)


class VortexModules(Runner):
    """Layers exchanged for served ones, nothing compiled."""

    name = "vortex_modules"

    def load(self, module: nn.Module, example: Any) -> Call:
        from vortex.torch import optimize

        return optimize(copy.deepcopy(module))


class Averaged(nn.Module):
    """Adaptive average pooling as products with constant matrices, for maps of one size.

    The exporter to ONNX has it only where the map is a whole multiple of the result.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Any) -> Any:
        height, width = int(x.shape[-2]), int(x.shape[-1])  # numbers, while extents are traced
        if (height, width) == (self.size, self.size):
            return x
        return torch.from_numpy(_means(self.size, height)) @ x @ torch.from_numpy(_means(self.size, width)).T


def _means(size: int, extent: int) -> np.ndarray:
    """[size, extent]: what each mean takes of the elements."""
    found = np.zeros((size, extent), np.float32)
    for at in range(size):
        begin, end = at * extent // size, -(-(at + 1) * extent // size)
        found[at, begin:end] = 1 / (end - begin)
    return found


def exportable(module: nn.Module) -> nn.Module:
    """The network as the exporter takes it, on the same weights; another module than `module` where layers changed."""
    if isinstance(module, Encoded):
        module = copy.copy(module)
        module.masked = True
    elif isinstance(module, nn.Sequential) and any(map(_pools, module)):
        module = nn.Sequential(*(Averaged(layer.output_size) if _pools(layer) else layer for layer in module)).eval()
    return module


def _pools(layer: nn.Module) -> bool:
    return isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size != 1


class OnnxRuntime(Runner):
    """The network exported to ONNX with dynamic extents.

    One that pools to a map of a given size is exported for every size of images, with a dynamic batch, when one of
    another size than the last comes: that is no part of a timing.
    """

    name = "onnxruntime"
    packages = ("onnxruntime", "torch")

    def load(self, module: nn.Module, example: Any) -> Call:
        export = exportable(module)
        axes = {0: "batch", 1: "length"} if example.ndim == 2 else {0: "batch", 2: "height", 3: "width"}
        result = {0: "batch", 1: "length"} if example.ndim == 2 else {0: "batch"}
        if not any(isinstance(layer, Averaged) for layer in export.modules()):
            return _runs(self._session(export, example, axes, result))
        held: dict[Any, Call] = {}

        def call(x: Any) -> Any:
            if x.shape[2:] not in held:
                held.clear()  # sessions hold the weights
                held[x.shape[2:]] = _runs(self._session(export, x, {0: "batch"}, result))
            return held[x.shape[2:]](x)

        return call

    def _session(self, module: nn.Module, example: Any, axes: dict[int, str], result: dict[int, str]) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "network.onnx")
            torch.onnx.export(
                module,
                (example,),
                path,
                dynamo=False,
                opset_version=17,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": axes, "y": result},
            )
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _runs(session: Any) -> Call:
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


RUNNERS: dict[str, type[Runner]] = {
    runner.name: runner for runner in (VortexBackend, VortexModules, Eager, Inductor, OnnxRuntime)
}
