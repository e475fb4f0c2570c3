"""AVX-512 kernels on a machine of AVX2: LLVM halves their vectors, and dot instructions are written out.

What is run is the code that LLVM was given for the processor of a spec, compiled for another one: it shows that results
are right, and nothing of how fast they come or which instructions they take.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm.target import Target

from vortex import api, keys, native
from vortex.affinity import cpu_flags
from vortex.codegen import lower
from vortex.hardware import HardwareSpec
from vortex.specs import load_spec, what_if

CPU = "x86-64-v3"
UNSIGNED_BY_SIGNED = """
  %x.bytes = bitcast <{lanes} x i32> %x to <{items} x i8>
  %y.bytes = bitcast <{lanes} x i32> %y to <{items} x i8>
  %x.wide = zext <{items} x i8> %x.bytes to <{items} x i32>
  %y.wide = sext <{items} x i8> %y.bytes to <{items} x i32>
"""
BFLOATS = """
  %x.halves = zext <{items} x i16> %x to <{items} x i32>
  %y.halves = zext <{items} x i16> %y to <{items} x i32>
  %x.high = shl <{items} x i32> %x.halves, splat (i32 16)
  %y.high = shl <{items} x i32> %y.halves, splat (i32 16)
  %x.wide = bitcast <{items} x i32> %x.high to <{items} x float>
  %y.wide = bitcast <{items} x i32> %y.high to <{items} x float>
"""
DOTS = {
    "avx512.vpdpbusd": (4, "i32", "i32", "mul", "add", UNSIGNED_BY_SIGNED),
    "avx512bf16.dpbf16ps": (2, "float", "i16", "fmul", "fadd", BFLOATS),
}
"""Neighbours that an instruction multiplies, its sums, its operands, how it multiplies and adds, and how they widen.
Products of bfloat16 are rounded here before they are added, and there they are not: the same bits where both are
exact."""


def looked_up(name: str, lanes: int, parameters: str, found: str) -> str:
    """An LLVM function of parameters that takes the element %f of each lane, `found` from the place %i."""
    lines = [
        text.replace("%i", f"%i{lane}").replace("%e", f"%e{lane}").replace("%f", f"%f{lane}")
        for lane in range(lanes)
        for text in (f"%i = extractelement <{lanes} x i32> %at, i32 {lane}", *found.splitlines())
    ]
    total = "poison"
    for lane in range(lanes):
        lines.append(f"%v{lane} = insertelement <{lanes} x float> {total}, float %f{lane}, i32 {lane}")
        total = f"%v{lane}"
    body = "".join(f"  {line}\n" for line in lines) + f"  ret <{lanes} x float> {total}"
    return f'define internal <{lanes} x float> @"written out: {name}"({parameters}) #0 {{\n{body}\n}}\n'


def rounding(name: str, lanes: int) -> str:
    """An LLVM function that rounds numbers to bfloat16; denormal ones, of which the instruction makes zeros, too."""
    lines = f"""
  %bits = bitcast <{lanes} x float> %x to <{lanes} x i32>
  %high = lshr <{lanes} x i32> %bits, splat (i32 16)
  %odd = and <{lanes} x i32> %high, splat (i32 1)
  %half = add <{lanes} x i32> %bits, splat (i32 32767)
  %nearest = add <{lanes} x i32> %half, %odd
  %nan = fcmp uno <{lanes} x float> %x, %x
  %found = select <{lanes} x i1> %nan, <{lanes} x i32> splat (i32 2143289344), <{lanes} x i32> %nearest
  %place = lshr <{lanes} x i32> %found, splat (i32 16)
  %result = trunc <{lanes} x i32> %place to <{lanes} x i16>
  ret <{lanes} x i16> %result"""
    return f'define internal <{lanes} x i16> @"written out: {name}"(<{lanes} x float> %x) #0 {{{lines}\n}}\n'


def written_out(name: str) -> str:
    """An LLVM function `name` of what the intrinsic does."""
    if name.endswith("mask.gather.dps.512"):  # the cost asks for all lanes
        given = "<16 x float> %old, ptr %base, <16 x i32> %at, <16 x i1> %mask, i32 %scale"
        return looked_up(name, 16, given, "%e = getelementptr float, ptr %base, i32 %i\n%f = load float, ptr %e")
    if name.endswith("permvar.sf.512"):
        given = "<16 x float> %table, <16 x i32> %at"
        return looked_up(name, 16, given, "%e = and i32 %i, 15\n%f = extractelement <16 x float> %table, i32 %e")
    kind, bits = name.removeprefix("llvm.x86.").rsplit(".", 1)
    if kind == "avx512bf16.cvtneps2bf16":
        return rounding(name, int(bits) // 32)
    per_lane, sums, operands, times, plus, widened = DOTS[kind]
    lanes = int(bits) // 32
    items = lanes * per_lane
    vector, wide = f"<{lanes} x {sums}>", f"<{items} x {sums}>"
    operand = vector if operands == sums else f"<{items} x {operands}>"
    lines, total = [], "%sum"
    for place in reversed(range(per_lane)):
        chosen = ", ".join(f"i32 {lane * per_lane + place}" for lane in range(lanes))
        lines += [
            f"%p{place} = shufflevector {wide} %products, {wide} poison, <{lanes} x i32> <{chosen}>",
            f"%s{place} = {plus} {vector} {total}, %p{place}",
        ]
        total = f"%s{place}"
    text = widened.format(lanes=lanes, items=items) + f"  %products = {times} {wide} %x.wide, %y.wide\n"
    body = text + "".join(f"  {line}\n" for line in lines) + f"  ret {vector} {total}"
    return (
        f'define internal {vector} @"written out: {name}"({vector} %sum, {operand} %x, {operand} %y) #0 {{{body}\n}}\n'
    )


def retargeted(text: str, cpu: str) -> str:
    """LLVM text for the processor `cpu`, as text for `CPU`."""
    text = re.sub(r'"target-cpu"="[^"]*"', f'"target-cpu"="{CPU}"', text)
    text = text.replace(" x bfloat>", " x i16>")  # bits alone: AVX2's code would round them by a function of libgcc 13
    text = re.sub(r' "target-features"="[^"]*"', "", text).replace(
        rf"\22mcpu\22:\22{cpu}\22", rf"\22mcpu\22:\22{CPU}\22"
    )
    same = r'(?:tail )?call (<\d+ x float>) asm "", "=v,0"\(<\d+ x float> (%[\w.]+)\)(?: #\d+)?'
    text = re.sub(same, r"freeze \1 \2", text)
    for name in sorted(set(re.findall(r"@(llvm\.x86\.avx512[\w.]+)\(", text))):
        text = re.sub(rf"^declare .*@{re.escape(name)}\(.*\n", "", text, flags=re.MULTILINE)
        text = text.replace(f"@{name}(", f'@"written out: {name}"(') + written_out(name)
    return text


def legalize(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on kernels of every processor are compiled for AVX2, and libraries of all of them load."""
    build = lower.build

    def for_avx2(module: tvm.IRModule, target: Target) -> Any:
        text = retargeted(build(module, target).inspect_source("ll"), str(target.attrs["mcpu"]))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "retargeted.ll")
            path.write_text(text)
            return tvm.runtime.load_module(str(path))

    monkeypatch.setattr(lower, "build", for_avx2)
    monkeypatch.setattr(api, "makers", lambda compiler="": f"{keys.makers(compiler)} by AVX2")
    monkeypatch.setattr(native, "cpu_flags", lambda: cpu_flags() | load_spec("epyc-zen5").features)


def zen5(share: float = 0.5) -> HardwareSpec:
    """A core with all instructions for elements below 32 bits, its register tiles few and computed."""
    return what_if(load_spec("epyc-zen5"), {"L0.max_utilization": share, "L0.analysis": "analytical"})
