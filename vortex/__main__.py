"""The command `vortex`, also `python -m vortex`: says what to install where only the run time is."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from vortex.cli import run
    except ModuleNotFoundError as error:
        if error.name in (None, "vortex") or error.name.startswith("vortex."):
            raise
        sys.exit(f"error: the command needs {error.name}; install vortex with its `compile` extra")
    sys.exit(run())


if __name__ == "__main__":
    main()
