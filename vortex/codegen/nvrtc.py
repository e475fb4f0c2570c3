"""CUDA source in, machine code, PTX and the resources of every kernel out: by NVRTC from its wheel, or by nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vortex.errors import CodegenError, ToolchainError, UnknownNameError, suggestion


@dataclass(frozen=True)
class Resources:
    """What ptxas gave one kernel."""

    registers: int
    stack: int
    spills: int
    """Bytes of spill stores and loads."""
    shared_bytes: int
    """Static shared memory."""


@dataclass(frozen=True)
class Compiled:
    """One translation unit."""

    cubin: bytes
    ptx: str
    resources: dict[str, Resources]


def library_path() -> Path:
    """The newest libnvrtc of the nvidia wheels, else of the CUDA toolkit that CUDA_PATH names."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec is not None else []
    found = [path for root in roots for path in root.glob("*/lib/libnvrtc.so.*")]
    if not found and (toolkit := os.environ.get("CUDA_PATH")):
        found = sorted(Path(toolkit).glob("lib64/libnvrtc.so.*"))
    if not found:
        raise ToolchainError("compiling for CUDA needs NVRTC; run `pip install 'vortex[cuda]'`, or set CUDA_PATH")
    return max(found, key=lambda path: [int(x) for x in re.findall(r"\d+", path.name.partition(".so.")[2])])


@cache
def _library() -> ctypes.CDLL:
    path = library_path()
    # NVRTC opens its builtins by name: once loaded from beside it, that name is found wherever the wheel lies.
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    if getattr(_library(), f"nvrtcGet{what}")(program, buffer):
        raise CodegenError(f"NVRTC has no {what}")
    return buffer.raw


def compile_nvrtc(source: str, arch: str) -> Compiled:
    """Compile one translation unit for `arch` (`sm_80`)."""
    program = ctypes.c_void_p()
    nvrtc = _library()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"vortex.cu", 0, None, None)
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", "--disable-warnings"]
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        log = _text(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise CodegenError(f"NVRTC refused a kernel for {arch}:\n{log[:4000]}")
        return Compiled(_text(program, "CUBIN"), _text(program, "PTX").rstrip(b"\0").decode(), resources(log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvcc_path() -> str:
    """The nvcc on PATH, else that of the CUDA toolkit that CUDA_PATH names."""
    found = shutil.which("nvcc")
    if found is None and (toolkit := os.environ.get("CUDA_PATH")):
        found = shutil.which("nvcc", path=str(Path(toolkit, "bin")))
    if found is None:
        raise ToolchainError(
            "nvcc was asked for and is neither on PATH nor in CUDA_PATH/bin; install the CUDA toolkit, or leave "
            "compiler= out to use NVRTC"
        )
    return found


def nvcc_version() -> str:
    """Its release, such as 13.0.88."""
    told = subprocess.run([nvcc_path(), "--version"], capture_output=True, text=True, check=False).stdout
    if (match := re.search(r"release .*\bV([\d.]+)", told)) is None:
        raise ToolchainError(f"{nvcc_path()} --version does not tell a release; mend the CUDA toolkit")
    return match[1]


def compile_nvcc(source: str, arch: str) -> Compiled:
    """The same by the toolkit's nvcc."""
    nvcc = nvcc_path()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unit = folder / "unit.cu"
        unit.write_text(source)
        common = [nvcc, "-O3", "-std=c++17", f"-arch={arch}"]
        logs = []
        for extra in (["-cubin", "-Xptxas=-v", "-o", "unit.cubin"], ["-ptx", "-o", "unit.ptx"]):
            run = subprocess.run([*common, *extra, str(unit)], cwd=folder, capture_output=True, text=True)
            if run.returncode:
                raise CodegenError(f"nvcc refused a kernel for {arch}:\n{run.stderr[:4000]}")
            logs.append(run.stderr)
        return Compiled((folder / "unit.cubin").read_bytes(), (folder / "unit.ptx").read_text(), resources(logs[0]))


DEFAULT = "nvrtc"
COMPILERS = {DEFAULT: compile_nvrtc, "nvcc": compile_nvcc}
RELEASES = {DEFAULT: version, "nvcc": nvcc_version}


def release(compiler: str) -> str:
    """That of a compiler by name; UnknownNameError for another name, ToolchainError where it is not installed."""
    if compiler not in RELEASES:
        expected = " or ".join(RELEASES)
        raise UnknownNameError(f"compiler={compiler!r}: expected {expected}{suggestion(str(compiler), RELEASES)}")
    return RELEASES[compiler]()


_ENTRY = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def resources(log: str) -> dict[str, Resources]:
    """Per kernel, from the verbose log of ptxas."""
    entry, frames, used = "", {}, {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        if match := _STACK.search(line):
            frames[entry] = int(match[1]), int(match[2]) + int(match[3])
        if match := _USED.search(line):
            shared = _SHARED.search(line)
            used[entry] = int(match[1]), int(shared[1]) if shared else 0
    return {name: Resources(registers, *frames[name], shared) for name, (registers, shared) in used.items()}
