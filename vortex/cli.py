"""`vortex compile | explain | check | probe | cache | demo`.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done, 1 refused or failed (a line
says why), 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vortex.cli_shapes import EXTENTS, call_arguments, read_extents, read_options
from vortex.errors import LibraryError, VortexError
from vortex.progress import note, progress_bar

if TYPE_CHECKING:
    from vortex.comparison import Compared
    from vortex.gpu_hardware import GpuSpec
    from vortex.hardware import HardwareSpec

# What costs time to import (TVM, NumPy, Pydantic) is imported by the command that needs it, so that --help is quick.

app = typer.Typer(
    name="vortex",
    help="Kernels for every shape: compile an operator for a device once, call it with any extents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(no_args_is_help=True, help="What is kept on disk, so that nothing is compiled twice.")
app.add_typer(cache_app, name="cache")

out = Console(highlight=False, soft_wrap=True)

SHAPE_HELP = "Extents of a call; may be given more than once. " + "; ".join(
    f"{operator}: {names}" for operator, (names, _) in EXTENTS.items()
)
OperatorName = Annotated[
    str, typer.Argument(help="gemm, batch_gemm, grouped_gemm, conv2d or reduce.", metavar="OPERATOR")
]
HW_HELP = "A shipped spec, a path to a .toml file, native: this CPU, or cuda: this GPU."
Hardware = Annotated[str, typer.Option("--hw", help=HW_HELP, metavar="SPEC", show_default=True)]
DTYPE_HELP = "Of the operands: float32, bfloat16, float16, int8 or tfloat32, where operator and device have it."
Dtype = Annotated[str, typer.Option("--dtype", help=DTYPE_HELP, metavar="TYPE")]
FLAG = ""
"""Flags take no value: nothing to show where other options show what they take."""
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compile anew and remember nothing.", metavar=FLAG)]


def run(arguments: list[str] | None = None) -> int:
    """The command with these arguments; its exit code."""
    try:
        app(args=arguments, prog_name="vortex")
    except VortexError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except SystemExit as ended:  # how Typer ends, with 2 for wrong usage
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _failed(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _version(wanted: bool) -> None:
    if wanted:
        from vortex import __version__

        out.print(f"vortex {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True, metavar=FLAG),
    ] = False,
) -> None:
    """Options of the command as a whole."""


@app.command("compile")
def compile_command(
    operator: OperatorName,
    hw: Hardware = "native",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the library.", metavar="FILE.vortex")
    ] = None,
    dtype: Dtype = "float32",
    compiler: Annotated[str | None, typer.Option(help="Of GPU code: nvrtc (default) or nvcc.", metavar="NAME")] = None,
    no_cache: NoCache = False,
) -> None:
    """Build the library of an operator for a device, for every shape.

    Without -o the library goes into the cache only, where vortex.compile() finds it.
    """
    _check_folder(output)
    if output is None and no_cache:
        raise typer.BadParameter("with --no-cache and without --output nothing would be kept", param_hint="--no-cache")
    from vortex import api

    start = time.perf_counter()
    with progress_bar(f"compiling {operator} for {hw}") as progress:
        kernel = api.compile(operator, hw, dtype=dtype, compiler=compiler, progress=progress, cache=not no_cache)
    if output is not None:
        kernel.save(output)
    size = f", {output.stat().st_size / 1e6:.1f} MB" if output else ""
    out.print(f"{output or 'cached'}: {len(kernel.strategies)} strategies{size}, {time.perf_counter() - start:.1f} s")


def _check_folder(output: Path | None) -> None:
    """Before the work, not after it."""
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.parent}", param_hint="--output")


@app.command()
def explain(
    operator: Annotated[str, typer.Argument(help="gemm, batch_gemm, conv2d or reduce.", metavar="OPERATOR")],
    shape: Annotated[list[str], typer.Option("--shape", help=SHAPE_HELP, metavar="EXTENTS")],
    hw: Hardware = "native",
    transpose_a: Annotated[bool, typer.Option("--transpose-a", help="A is given as K x M.", metavar=FLAG)] = False,
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="B is given as N x K.", metavar=FLAG)] = False,
    packed: Annotated[bool, typer.Option("--packed", help="B was packed before the call.", metavar=FLAG)] = False,
    stride: Annotated[int | None, typer.Option(help="Of a convolution; default: 1.", min=1, metavar="N")] = None,
    padding: Annotated[int | None, typer.Option(help="On every side; default: 0.", min=0, metavar="N")] = None,
    dilation: Annotated[int | None, typer.Option(help="Of a filter; default: 1.", min=1, metavar="N")] = None,
    groups: Annotated[int | None, typer.Option(help="Of channels; default: 1.", min=1, metavar="N")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Default: as many as a call would use.", min=1, metavar="N")
    ] = None,
    dtype: Dtype = "float32",
) -> None:
    """Show what would run for a shape, what each part costs, and why the rivals lost."""
    from vortex import api, operators

    name = operators.named(operator).name
    if name not in EXTENTS:
        told = f"{name} has no plans by extents; expected one of {', '.join(EXTENTS)}"
        raise typer.BadParameter(told, param_hint="OPERATOR")
    calls = [call_arguments(name, read_extents(text, name), groups) for text in shape]
    lie = {"transpose_a": transpose_a, "transpose_b": transpose_b, "packed": packed}
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    keywords = read_options(name, lie | window)
    with progress_bar(f"compiling {operator} for {hw}") as progress:
        kernel: Any = api.compile(operator, hw, dtype=dtype, progress=progress)
    on_gpu = kernel.manifest.hardware.get("kind") == "gpu"
    if on_gpu and (packed or threads):
        raise typer.BadParameter("not for GPUs: they pack no operand", param_hint="--packed, --threads")
    if on_gpu:
        keywords.pop("packed", None)
    else:
        keywords["threads"] = threads
    for extents in calls:
        batch = {"batch": extents[0]} if on_gpu and name == "batch_gemm" else {}
        out.print(str(kernel.explain(*extents[len(batch) :], **keywords, **batch)), markup=False)


@app.command()
def check(
    specs: Annotated[
        list[str], typer.Argument(help="Names of shipped specs, or paths of .toml files.", metavar="SPEC")
    ],
    compare: Annotated[
        bool | None,
        typer.Option(
            "--compare/--no-compare",
            help="Set declared figures beside those of this machine. Default: where it is of the same kind.",
            show_default=False,
            metavar=FLAG,
        ),
    ] = None,
) -> None:
    """Refuse a hardware spec that is malformed or contradicts itself; on the device itself, compare it with reality."""
    from vortex.specs import load_spec

    refused = 0
    for name in specs:
        try:
            spec = load_spec(name)
        except VortexError as error:
            refused += _failed(str(error))
            continue
        out.print(f"{name}: fine: {spec.name}, {spec.summary()}", markup=False)
        if compare is not False:
            _compare(spec, compare is True)
    if refused:
        raise typer.Exit(1)


def _compare(spec: HardwareSpec | GpuSpec, wanted: bool) -> None:
    from vortex.comparison import check_device
    from vortex.gpu_probe import check_gpu
    from vortex.hardware import HardwareSpec
    from vortex.probe import native

    if not isinstance(spec, HardwareSpec):
        try:
            _print_compared(check_gpu(spec))
        except VortexError as error:
            if wanted:
                raise
            note.print(f"not compared with this machine: {error}", markup=False)
        return
    if not wanted:
        try:
            here = native()
        except VortexError as error:
            note.print(f"not compared with this machine: {error}", markup=False)
            return
        if here.llvm_cpu != spec.llvm_cpu:
            note.print(f"not compared with this machine, which is a {here.llvm_cpu}", markup=False)
            return
    _print_compared(tuple(row for row in check_device(spec) if row.declared or row.detected))


def _print_compared(rows: tuple[Compared, ...]) -> None:
    width = max(len(row.figure) for row in rows)
    out.print(f"  {'figure':{width}} {'declared':>19} {'here':>19}  ratio", markup=False)
    for row in rows:
        mark = " " if 0.8 <= row.ratio <= 1.25 else "!"
        figures = f"{row.figure:{width}} {row.declared:19,} {row.detected:19,} {row.ratio:6.2f}"
        out.print(f"{mark} {figures}  {row.source}", markup=False)
    if any(not 0.8 <= row.ratio <= 1.25 for row in rows):
        out.print("! is off by more than a quarter", markup=False)


@app.command()
def probe(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the spec; else it is printed.", metavar="FILE.toml"),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure again, whatever is remembered.", metavar=FLAG)
    ] = False,
) -> None:
    """Write the hardware spec of this machine, with where every figure came from."""
    _check_folder(output)
    from vortex.probe import probe as probe_machine
    from vortex.specs import spec_to_toml

    spec, readings = probe_machine(refresh)
    text = spec_to_toml(spec, readings)
    if output is None:
        out.print(text, end="", markup=False)
        return
    _write(output, text)
    measured = sum(reading.source.startswith("measured") for reading in readings)
    out.print(f"{output}: {spec.name}, {len(readings)} figures, of which {measured} measured", markup=False)


def _write(path: Path, text: str) -> None:
    """In one step: a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    made = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        made.chmod(0o644)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


@cache_app.command("list")
def cache_list() -> None:
    """List the compiled libraries, the most recently used first, and how much the objects they were made of take."""
    from vortex.api import read_any
    from vortex.cache import library_cache

    cache = library_cache()
    for entry in cache.entries():
        try:
            manifest = read_any(cache.path(entry.key)).manifest
            what = f"{manifest.operator} {manifest.dtype} for {manifest.hardware['name']}, L0 {manifest.basis}"
        except LibraryError:
            what = "cannot be read by this vortex"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        out.print(f"{entry.key[:12]}  {entry.bytes / 1e6:6.1f} MB  used {used}  {what}", markup=False)
    for kept, one, many in _caches():
        sizes = [entry.bytes for entry in kept.entries()]
        told = f"{sum(sizes) / 1e6:.1f} of at most {kept.limit_bytes / 1e6:.0f} MB, in {kept.folder}"
        note.print(f"{_counted(len(sizes), one, many)}, {told}", markup=False)


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove the compiled libraries, and the objects that others would be made of."""
    for kept, one, many in _caches():
        out.print(f"removed {_counted(kept.clear(), one, many)} from {kept.folder}", markup=False)


def _caches() -> list[tuple[Any, str, str]]:
    """What is kept on disk, and what one and several of its entries are called."""
    from vortex.cache import library_cache, object_files

    return [(library_cache(), "library", "libraries"), (object_files(), "object", "objects")]


def _counted(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {many}"


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the table and the plot go.", metavar="FOLDER")
    ] = Path("demo"),
) -> None:
    """Run the matrix products of a BERT layer over 24 sequence lengths against NumPy, and check every result."""
    from vortex.demo import run_demo

    with progress_bar("demo") as progress:
        results = run_demo(progress)
    if not results.show(out, output):
        raise typer.Exit(1)
