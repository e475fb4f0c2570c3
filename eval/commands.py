"""What the commands of the evaluation have in common: their help, their figures, how they begin and end."""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from eval import machine


class _Help(argparse.HelpFormatter):
    """Adds the default to what an option says, where there is one and the text does not speak of it; numbers are N."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if action.type in (int, float, rounds) else super()._get_default_metavar_for_optional(action)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        none = any(action.default is one for one in (None, False, argparse.SUPPRESS)) or action.default == []
        told = none or "default" in text
        if told or not action.option_strings:
            return text
        values = action.default if isinstance(action.default, list) else [action.default]
        return f"{text} (default: {' '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)})"


def shown(value: float) -> str:
    """Counts in full, measurements with four digits."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def command(document: str) -> argparse.ArgumentParser:
    """The parser of a module whose documentation begins "`python -m eval.name`: what it does."; the rest follows."""
    first, _, rest = document.strip().partition("\n\n")
    name, _, what = " ".join(first.split()).partition(": ")
    return argparse.ArgumentParser(
        prog=name.strip("`"),
        description=what[0].upper() + what[1:],
        epilog=rest or None,
        formatter_class=_Help,
    )


def rounds(text: str) -> int:
    """The type of an option: how many rounds, of which the even ones choose the best and the odd ones score it."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text}: at least 2, one to choose the best and one to score it")
    return int(text)


def lines_file(text: str) -> Path:
    """The type of an option: a file of result lines, beside which a report of the same name is written."""
    path = Path(text)
    if path.suffix != ".jsonl":
        raise argparse.ArgumentTypeError(f"{text}: expected FILE.jsonl; the report is written beside it")
    return path


def opened(library: str | None, threads: int, allow_busy: bool, operator: Any = "gemm") -> Any:
    """The callable of a saved library, or of one compiled for this machine, with calls of so many threads.

    BusyError where others use the machine and it may not be busy.
    """
    vortex: Any = importlib.import_module("vortex")
    vortex.set_num_threads(threads)
    found = vortex.load(library) if library else vortex.compile(operator, hw="native")
    if not allow_busy:
        machine.check_idle()
    return found


def ended(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what a command returns, or with one line where the machine was busy."""
    try:
        sys.exit(main())
    except machine.BusyError as error:
        sys.exit(f"error: the machine is busy: {error}")
