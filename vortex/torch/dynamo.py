"""The backend of `torch.compile`: GEMMs and convolutions by Vortex, whatever is between them by Inductor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from vortex.errors import DeviceError, OperandError, UnknownNameError
from vortex.torch.extents import Opening
from vortex.torch.graph import rewrite
from vortex.torch.libraries import NATIVE, Libraries
from vortex.torch.openmp import share_threads
from vortex.torch.program import SHIMS, native

log = logging.getLogger(__name__)
OPTIONS = ("libraries",)
IN_CPP = {
    "cpp_wrapper": True,
    "aot_inductor.custom_ops_to_c_shims": {
        getattr(torch.ops.vortex, name).default: [shim] for name, shim in SHIMS.items()
    },
}
"""Options of Inductor: what runs between kernels is C++ as well, and calls layers as functions of C."""


def backend(
    module: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **unknown: Any
) -> Callable[..., Any]:
    """Compile a graph for inference in float32 on CPUs: `torch.compile(model, backend="vortex", dynamic=True)`.

    One program serves batches and images of every size, one alone too (extents.any_extents).
    Parameters and buffers are laid out for the kernels at the first call, and again if they were changed in place.
    From the first graph on, libraries of this process compute on PyTorch's threads. `options={"libraries":
    Libraries(hardware)}` has kernels for another spec. A library that is not in the cache on disk is compiled, which
    takes some seconds each. Raises OperandError for graphs that need gradients, DeviceError and DtypeError for
    operands that no library of a CPU serves.
    """
    OPENING.listen()
    libraries = _chosen(options, unknown)
    _check(example_inputs)
    from torch._inductor.compile_fx import compile_fx

    share_threads()
    native()
    served = rewrite(module, libraries)
    log.info("served: %s", dict(served.counts))

    def compile(graph: GraphModule, places: list[int]) -> Callable[..., Any]:
        return compile_fx(graph, [example_inputs[place] for place in places], config_patches=IN_CPP)

    return served.program(compile)


OPENING = Opening(backend)
OPENING.listen()


def _chosen(options: Mapping[str, Any] | None, unknown: Mapping[str, Any]) -> Libraries:
    given = {**(options or {}), **unknown}
    wrong = sorted(given.keys() - set(OPTIONS))
    if wrong:
        raise UnknownNameError(f"option {wrong[0]!r} of the vortex backend; expected one of {OPTIONS}; drop it")
    libraries = given.get("libraries", NATIVE)
    if not isinstance(libraries, Libraries):
        raise OperandError(f"libraries={libraries!r}: expected vortex.torch.libraries.Libraries(hardware)")
    return libraries


def _check(example_inputs: Sequence[Any]) -> None:
    """Refuse what no library serves."""
    tensors = [given for given in example_inputs if isinstance(given, torch.Tensor)]
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise DeviceError(
                f"an operand of the graph is on {tensor.device}; expected the CPU; move the model and its inputs with "
                ".cpu(), or compile it with another backend"
            )
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise OperandError(
            "the graph needs gradients: vortex serves inference alone; call the model under torch.no_grad() or "
            "torch.inference_mode(), or freeze it with model.requires_grad_(False)"
        )
