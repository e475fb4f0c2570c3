"""From objects and the little C of `runtime/` to one shared library."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vortex.errors import ToolchainError

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"


def c_compiler() -> str:
    """The C compiler: `$CC`, else `cc`, `gcc` or `clang` on the path."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise ToolchainError(
        "no C compiler found (looked for $CC, cc, gcc, clang); install one, for example `apt install gcc`"
    )


def link(
    target: Path,
    objects: Sequence[Path],
    sources: Sequence[Path],
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
) -> None:
    """Compile `sources` and link everything into the shared library `target`."""
    command = [c_compiler(), "-O2", "-std=gnu11", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-pthread"]
    command += [*(f"-I{folder}" for folder in (RUNTIME, *includes)), *(f"-D{name}" for name in defines)]
    command += ["-o", str(target), *map(str, sources), *map(str, objects), "-Wl,-z,noexecstack"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolchainError(f"linking {target.name} failed: {' '.join(command)}\n{done.stderr.strip()}")
