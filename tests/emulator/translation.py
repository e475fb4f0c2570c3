"""From the CUDA source of one or many kernels to C++ that runs on the emulated machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from emulator.ptx import close, translate

ELEMENT_BYTES = {"float": 4, "int": 4, "uint": 4, "half": 2, "__half": 2, "uchar": 1, "char": 1, "uint64_t": 8}
ELEMENT_BYTES |= {"nv_bfloat16": 2, "__nv_bfloat16": 2, "double": 8, "uint16_t": 2, "ushort": 2, "unsigned": 4}
KERNEL = re.compile(
    r'extern "C" __global__ void(?:\s+__cluster_dims__\((\d+), 1, 1\))?'
    r"(?:\s+__launch_bounds__\(([^)]*)\))?\s+(\w+)\s*\("
)
DYNAMIC = re.compile(r"extern __shared__\s+(?:__align__\((\d+)\)|alignas\((\d+)\))?\s*(\w[\w ]*?)\s+(\w+)\[\];")
STATIC = re.compile(r"__shared__\s+(?:__align__\(\d+\)|alignas\(\d+\))?\s*(\w[\w ]*?)\s+(\w+)\[(\d+)\];")
PLACE = """
  const emulator::Index threadIdx = emulator::place().thread, blockIdx = emulator::place().block;
  const emulator::Index blockDim = emulator::place().block_extent, gridDim = emulator::place().grid_extent;
"""


@dataclass(frozen=True)
class Kernel:
    """What a source says about one of its kernels."""

    name: str
    most_threads: int | None
    static_bytes: int
    dynamic_alignment: int
    cluster: int


@dataclass(frozen=True)
class Translation:
    text: str
    kernels: dict[str, Kernel]


def body_end(source: str, start: int) -> int:
    """The index behind the brace that closes the one at `start`."""
    depth, at = 0, start
    while True:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
        if depth == 0:
            return at


def translate_body(name: str, bounds: str | None, body: str, least: int, cluster: int) -> tuple[str, Kernel]:
    """A kernel's body, with its variables in shared memory and its place in the grid."""
    dynamic_alignment, used = least, 0

    def dynamic(found: re.Match[str]) -> str:
        nonlocal dynamic_alignment
        dynamic_alignment = max(dynamic_alignment, int(found[1] or found[2] or 16))
        return f"{found[3]}* const {found[4]} = ({found[3]}*)emulator::dynamic_shared();"

    def static(found: re.Match[str]) -> str:
        nonlocal used
        size = ELEMENT_BYTES[found[1]] * int(found[3])
        offset, used = used, (used + size + 15) // 16 * 16
        return f"{found[1]}* const {found[2]} = ({found[1]}*)emulator::static_shared({offset}, {size});"

    body = STATIC.sub(static, DYNAMIC.sub(dynamic, body))
    most = int(bounds.split(",")[0]) if bounds else None
    return "{" + PLACE + body[1:], Kernel(name, most, used, dynamic_alignment, cluster)


def translate_source(source: str) -> Translation:
    """Every kernel of a source, with an entry `emulate_<kernel>(launch, arguments)` each."""
    source = translate(source)
    least = 16  # alignment of dynamic memory that the whole source declares

    def everywhere(found: re.Match[str]) -> str:
        nonlocal least
        least = max(least, int(found[1] or found[2] or 16))
        return f"\n#define {found[4]} (({found[3]}*)emulator::dynamic_shared())\n"

    preamble, mark, kernel_text = source.partition('extern "C" __global__')
    source = DYNAMIC.sub(everywhere, preamble) + mark + kernel_text
    out, at, kernels = [], 0, {}
    while found := KERNEL.search(source, at):
        signature_end = close(source, found.end() - 1)
        out.append(source[at : found.start()])
        head = f'extern "C" void {found[3]}{source[found.end() - 1 : signature_end]}'
        at = signature_end
        while source[at].isspace():
            at += 1
        if source[at] == ";":
            out.append(head)
            continue
        end = body_end(source, at)
        body, kernel = translate_body(found[3], found[2], source[at:end], least, int(found[1] or 1))
        kernels[kernel.name] = kernel
        out.append(f"{head} {body}")
        at = end
    entries = "".join(
        f'extern "C" int emulate_{name}(const emulator::Launch* launch, void** arguments) '
        f"{{ return emulator::launch_kernel({name}, *launch, arguments); }}\n"
        for name in kernels
    )
    return Translation('#include "device.h"\n' + "".join(out) + source[at:] + "\n" + entries, kernels)
