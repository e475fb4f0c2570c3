"""`python -m eval.gpu.bundle`: everything that a machine with a GPU needs, and no more.

The light parts of vortex, the scripts, the suites and the libraries; neither TVM nor Pydantic. There: unpack, then
`python -m eval.gpu.run_on_device --out results.json`.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.commands import command
from eval.gpu.budget import write_json
from eval.gpu.parts import FIGURE_16, SUITES
from eval.suites import CONV_SUITES
from vortex.errors import LibraryError, VortexError
from vortex.gpu_library import read
from vortex.library import is_gpu_library
from vortex.library import read as read_cpu

ROOT = Path(__file__).resolve().parent.parent.parent
MOST_BYTES = 60 << 20
ENTRIES = (
    "eval.gpu.run_on_device",
    "eval.gpu.triton_kernel",
    "vortex.gpu_launcher",
    "vortex.gpu_library",
    "vortex.gpu_selector",
    "vortex.gpu_polymerize",
)


def closure(entries: Sequence[str], root: Path = ROOT) -> list[Path]:
    """Files of all modules of this repository that the entries import, in functions too, types alone not."""
    found: dict[str, Path] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        path = module_path(name, root)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += imported(path)
        waiting += [name.rpartition(".")[0]] if "." in name else []
    return sorted(set(found.values()))


def module_path(name: str, root: Path) -> Path | None:
    if name.split(".")[0] not in ("vortex", "eval"):
        return None
    path = root.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports when it runs. The lazy names of a package's `__init__` are not imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    types_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in types_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def make(libraries: Sequence[Path], out: Path) -> int:
    """Fill a new folder; its size in bytes. LibraryError where it would be too large to carry."""
    if out.exists():
        raise LibraryError(f"{out} exists; give a new folder")
    for source in closure(ENTRIES):
        target = out / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    suites = out / "eval" / "suites"
    suites.mkdir()
    for name in (*SUITES, FIGURE_16, *CONV_SUITES):
        shutil.copyfile(ROOT / "eval" / "suites" / f"{name}.csv", suites / f"{name}.csv")
    hashes = {}
    for path in libraries:
        is_gpu = is_gpu_library(path)
        (read if is_gpu else read_cpu)(path)  # refuses what is damaged, before it travels
        target = out / ("libraries" if is_gpu else "cpu") / path.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
        hashes[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    specs = {path.stem: read(path).manifest.hardware["name"] for path in libraries if is_gpu_library(path)}
    write_json(out / "bundle.json", {"libraries": hashes, "specs": specs})
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        shutil.rmtree(out)
        raise LibraryError(f"the bundle would have {size >> 20} MiB, more than {MOST_BYTES >> 20}; leave a library out")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    top = command(__doc__ or "")
    top.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY.vortex", help="of GPUs, and one of this CPU")
    top.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="which must not exist")
    options = top.parse_args(arguments)
    try:
        size = make(options.libraries, options.out)
    except VortexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(options.libraries)} libraries, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
