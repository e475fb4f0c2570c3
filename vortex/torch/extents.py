"""Programs of torch.compile for all extents: traced without what PyTorch decides by how large an input is now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dynamo import callback_handler
from torch.fx.experimental import _config
from torch.utils._pytree import tree_leaves

COMPILES = "_compile"
"""The function of torch._dynamo.convert_frame that knows the backend it compiles for."""


@contextmanager
def any_extents(alone: bool = True) -> Iterator[None]:
    """What is traced inside has no guard for an extent that PyTorch alone cares about.

    Left to itself it takes two extents that are equal now for one, asks which of its own convolutions it would take, by
    thresholds such as a batch below 16, and writes an extent of one into the program, unless `alone`. Each of them
    compiles anew for an input on the other side. What a model asks of its extents itself still guards it.
    """
    with ExitStack() as stack:
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())  # its context warns of GPUs
        torch._C._set_mkldnn_enabled(False)
        stack.enter_context(torch.backends.nnpack.flags(enabled=False))
        stack.enter_context(_config.patch(backed_size_oblivious=alone, use_duck_shape=False))
        yield


class Opening:
    """Opens `any_extents` for what Dynamo compiles for one backend, and for nothing else of the process.

    Dynamo tells a backend nothing before it has traced, but those who listen that a compilation begins; for which
    backend is read from the caller. Where a release of PyTorch has neither, programs are right and more of them.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.backend, self._open = backend, ExitStack()

    def listen(self) -> None:
        """From now on; again after torch._dynamo.reset(), which forgets who listens."""
        if self._begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._begin)
            callback_handler.register_end_callback(self._end)

    def _begin(self, _: Any) -> None:
        caller = _caller()
        if _innermost(caller.get("compiler_fn")) is self.backend:
            self._open.enter_context(any_extents(alone=not _has_inner_one(caller.get("locals"))))

    def _end(self, _: Any) -> None:
        self._open.close()


def _caller() -> dict[str, Any]:
    """What is known where a compilation begins: of it `compiler_fn`, the backend, and `locals`, those compiled for."""
    frame = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == COMPILES and "compiler_fn" in frame.f_locals):
        frame = frame.f_back  # type: ignore[assignment]
    return {} if frame is None else frame.f_locals


def _has_inner_one(given: Any) -> bool:
    """Whether an input has one row, or column, of whatever it has several of: a text of one token.

    Models ask for it, and go on with the answer as a bool, which that of an extent that varies is not.
    """
    return any(isinstance(leaf, torch.Tensor) and 1 in leaf.shape[1:] for leaf in tree_leaves(given))


def _innermost(backend: Any) -> Any:
    """What PyTorch wrapped a backend in, taken off."""
    for name in ("_torchdynamo_orig_backend", "compiler_fn"):
        backend = getattr(backend, name, backend)
    return backend
