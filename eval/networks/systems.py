"""Who runs a network: each makes a function of its input from a module of PyTorch, in a process of its own."""

import copy
import importlib.metadata
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

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

        return torch.compile(module, dynamic=True, backend=backend)


class VortexModules(Runner):
    """Layers exchanged for served ones, nothing compiled."""

    name = "vortex_modules"

    def load(self, module: nn.Module, example: Any) -> Call:
        from vortex.torch import optimize

        return optimize(copy.deepcopy(module))


class OnnxRuntime(Runner):
    """The network exported to ONNX with dynamic extents."""

    name = "onnxruntime"
    packages = ("onnxruntime", "torch")

    def load(self, module: nn.Module, example: Any) -> Call:
        import onnxruntime

        if isinstance(module, Encoded):
            module = copy.copy(module)
            module.masked = True
        axes = {0: "batch", 1: "length"} if example.ndim == 2 else {0: "batch", 2: "height", 3: "width"}
        result = {0: "batch", 1: "length"} if example.ndim == 2 else {0: "batch"}
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
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


RUNNERS: dict[str, type[Runner]] = {
    runner.name: runner for runner in (VortexBackend, VortexModules, Eager, Inductor, OnnxRuntime)
}
