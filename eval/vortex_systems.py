"""Vortex itself, as a user holds it: the callable on NumPy arrays, with plain and with packed B."""

import importlib
import os
from functools import partial
from typing import Any

from eval.operands import Operands
from eval.systems import AbsentError, Prepared, System, into, package_version


def hardware() -> str:
    """What libraries are compiled for: VORTEX_EVAL_HW, or this machine."""
    return os.environ.get("VORTEX_EVAL_HW", "native")


def load_gemm(threads: int) -> Any:
    """The library named by VORTEX_EVAL_LIBRARY, or one compiled (or cached) for this machine."""
    try:
        vortex: Any = importlib.import_module("vortex")
    except ImportError as error:
        raise AbsentError(f"vortex cannot be imported: {error}") from error
    if not hasattr(vortex, "compile"):
        raise AbsentError("this vortex has no compile()")
    vortex.set_num_threads(threads)
    path = os.environ.get("VORTEX_EVAL_LIBRARY")
    return vortex.load(path) if path else vortex.compile("gemm", hw=hardware())


def load_operator(name: str, threads: int, **settings: Any) -> Any:
    """The library of an operator of `vortex.operators` with these settings, for this machine."""
    vortex: Any = importlib.import_module("vortex")
    operators: Any = importlib.import_module("vortex.operators")
    if not hasattr(operators, name):
        raise AbsentError(f"this vortex has no {name}")
    vortex.set_num_threads(threads)
    return vortex.compile(getattr(operators, name)(**settings), hw=hardware())


class Vortex(System):
    """gemm(a, b, out=c)."""

    name = "vortex"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.gemm = load_gemm(threads)

    def prepare(self, operands: Operands) -> Prepared:
        flags = self._flags(operands)
        return into(operands, partial(self.gemm, operands.a, operands.b, out=operands.out, **flags))

    @staticmethod
    def _flags(operands: Operands) -> dict[str, bool]:
        """Only the flags that differ from the default, as a user would write the call."""
        flags = {"transpose_a": operands.case.trans_a, "transpose_b": operands.case.trans_b}
        return {name: True for name, given in flags.items() if given}

    def versions(self) -> dict[str, str]:
        return {name: package_version(name) for name in ("vortex", "apache-tvm", "apache-tvm-ffi")}


class VortexPacked(Vortex):
    """gemm(a, gemm.pack(b), out=c)."""

    name = "vortex_packed"
    packed = True

    def prepare(self, operands: Operands) -> Prepared:
        packed = self.gemm.pack(operands.b, transpose=True) if operands.case.trans_b else self.gemm.pack(operands.b)
        flags = {"transpose_a": True} if operands.case.trans_a else {}
        return into(operands, partial(self.gemm, operands.a, packed, out=operands.out, **flags))
