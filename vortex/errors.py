"""Every exception the project raises: each is a `VortexError` and also the built-in kind a Python user expects."""

from collections.abc import Iterable


class VortexError(Exception):
    """Base of all errors raised by vortex."""


class SpecError(VortexError, ValueError):
    """A hardware spec is missing, malformed, or its figures disagree."""


class UnknownNameError(VortexError, LookupError):
    """No operator or hardware spec has the given name."""


class ShapeError(VortexError, ValueError):
    """An operand has the wrong rank, extent or strides."""


class DtypeError(VortexError, TypeError):
    """An operand has a dtype that the library was not built for."""


class NoInstructionError(SpecError, DtypeError):
    """A spec has no instruction for a dtype."""


class DeviceError(VortexError, RuntimeError):
    """An operand lives on, or a library needs, a device or instruction set that is not here."""


class UnmeasuredError(DeviceError):
    """A kernel has no sure time, or does not run, on a device that is well."""


class OperandError(VortexError, ValueError):
    """An operand cannot be used as given: read-only, overlapping, requires grad, packed for another library."""


class LibraryError(VortexError, RuntimeError):
    """A library file is truncated, altered, foreign or of another format version."""


class CodegenError(VortexError, RuntimeError):
    """A strategy could not be tensorized, compiled or linked; the message names it."""


class ToolchainError(VortexError, RuntimeError):
    """A build-time dependency is missing or is a release known not to work."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'name'?` for the end of a refusal, where a known name is like the word."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
