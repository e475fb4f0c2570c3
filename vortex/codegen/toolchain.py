"""The build-time releases that are known to work together, and TVM as it is quick to enter."""

import inspect
import sys
from importlib.metadata import PackageNotFoundError, version
from traceback import walk_stack
from types import SimpleNamespace
from typing import Any

from vortex.errors import ToolchainError
from vortex.native import on_its_own

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
"""With a later ffi release every `Schedule.tensorize` call of this TVM dies with a segmentation fault."""


def check_versions() -> dict[str, str]:
    """The installed releases, refused before TVM is imported when they are not the pinned pair."""
    found = {}
    for name in PINNED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if found != PINNED:
        wanted = " ".join(f"'{name}=={release}'" for name, release in PINNED.items())
        have = ", ".join(f"{name} {release}" for name, release in found.items())
        raise ToolchainError(f"compiling needs {wanted}; found {have}; run `pip install {wanted}`")
    return found


def enter_tvm() -> None:
    """Import TVM, whose releases are checked before: with the wrong pair it crashes."""
    check_versions()
    with on_its_own():
        from tvm.script.parser.core.parser import ScriptMacro
        from tvm.tirx.script.parser import entry
    # TVM has `inspect` describe every frame of the stack, with lines of source. At every macro, to find its parser: a
    # seventh of the time in which the kernels of a library are emitted. And at every function, to see whether a class
    # of its own kind surrounds it: a tenth of what is left, most of it where the stack is deep and modules are many.
    ScriptMacro._find_parser_def = _parser_at_work
    entry.inspect = SimpleNamespace(**vars(inspect) | {"stack": _frames})


def _frames() -> list[SimpleNamespace]:
    """The stack from the caller on as `inspect.stack` gives it, without lines of source."""
    return [SimpleNamespace(frame=frame, code_context=None) for frame, _ in walk_stack(sys._getframe(1))]


def _parser_at_work(macro: Any) -> Any:
    """The parser that expands a macro of TVMScript: it leaves itself among the globals of what it evaluates."""
    frame: Any = sys._getframe(1)
    while macro.parser_object_name not in frame.f_globals:
        frame = frame.f_back
    return frame.f_globals[macro.parser_object_name]
