"""AMX: results on a model of its tiles in C, and on a machine that has them, and the instructions LLVM makes."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest

import vortex
from vortex import operators as ops
from vortex.affinity import cpu_flags, request_tiles
from vortex.dtypes import WORDS, Weights
from vortex.errors import DeviceError, SpecError
from vortex.hardware import spec_from
from vortex.rkernel import decompose
from vortex.sieve import sieve
from vortex.specs import load_spec, what_if

RNG = np.random.default_rng(11)
MODEL = Path(__file__).with_name("amx_model.c")
SPEC = load_spec("xeon-8480")
ELEMENTS = {"bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
VECTORS = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
"""What the load stages beside the tiles are made of."""
needs_vectors = pytest.mark.skipif(not cpu_flags() >= VECTORS, reason="AMX's load stages need AVX-512 and VNNI")
needs_tiles = pytest.mark.skipif("amx_tile" not in cpu_flags(), reason="this machine has no AMX")
TILES = [(1, 1), (16, 2), (17, 1), (32, 2), (29, 2), (80, 1), (70, 1), (5, 5), (16, 3)]


def emitted(tiles: list[tuple[int, int]], dtype: str, llvm_cpu: str, path: Path, model: bool) -> None:
    from vortex.codegen.cpu_amx import amx_ir, amx_kernel, placements
    from vortex.codegen.cpu_words import WordTile
    from vortex.codegen.lower import compile_object, cpu_target

    words, wanted = WORDS[f"{dtype} tiles"], placements(WordTile(*tile) for tile in tiles)
    text = "" if model else amx_ir(wanted, words)
    compile_object([amx_kernel(kernel, 16, words) for kernel in wanted], cpu_target(llvm_cpu), path, llvm_ir=text)


def address(array: np.ndarray, *place: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(array[place].ctypes.data if place else array.ctypes.data)


@needs.a_compiler
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("model", [True, pytest.param(False, marks=needs_tiles)])
def test_register_tiles_touch_and_add_what_they_should(dtype: str, model: bool, tmp_path: Path) -> None:
    from vortex.codegen.link import link

    emitted(TILES, dtype, "x86-64-v3" if model else SPEC.llvm_cpu, tmp_path / "kernels.o", model)
    link(tmp_path / "kernels.so", [tmp_path / "kernels.o"], [MODEL] if model else [])
    if not model:
        request_tiles()
    library, per = ctypes.CDLL(str(tmp_path / "kernels.so")), WORDS[dtype].per_word
    sums = np.float32 if dtype == "bfloat16" else np.int32
    for (rows, vectors), depth, last in itertools.product(TILES, (0, 1, 16, 37), (1, 16)):
        columns = 16 * (vectors - 1) + last
        for accumulate, unsigned, zero in ((0, False, 0), (1, dtype == "int8", 0), (depth % 2, True, 200)):
            if zero and dtype != "int8":
                continue
            kind = np.uint8 if unsigned else ELEMENTS[dtype]
            low, high = (0, 256) if unsigned else (-8, 9)
            a = RNG.integers(low, high, (rows, depth * per + 3)).astype(np.float32).astype(kind)
            b = (
                RNG.integers(-8, 9, (-(-depth // 16) * 16 * per, 16 * vectors))
                .astype(np.float32)
                .astype(ELEMENTS[dtype])
            )
            b[depth * per :] = 0
            start = -b.astype(np.int64).sum(axis=0).astype(np.int32)
            words = np.ascontiguousarray(b.reshape(-1, per, 16 * vectors).swapaxes(1, 2))
            c = np.full((rows + 1, columns + 2), 3, sums)
            expected = c.copy()
            left = a[:, : depth * per].astype(np.float64) - zero
            expected[:rows, :columns] = 3 * accumulate + left @ b[: depth * per, :columns].astype(np.float64)
            integers = (depth, a.shape[1], 16 * vectors, c.shape[1])
            mode = accumulate + 2 + 4 * (zero if unsigned else 128)
            flags = (last, mode, 0 if unsigned else 0x80)
            getattr(library, f"vortex_l0_tiles_{-(-rows // 16)}x{vectors}")(
                ctypes.c_int32(rows),
                *(address(x) for x in (a, words, c, start)),
                *map(ctypes.c_int64, integers),
                *map(ctypes.c_int32, flags),
                *(address(words), ctypes.c_int32(depth % 3)),
            )
            assert np.array_equal(c, expected), (rows, vectors, depth, last, accumulate, unsigned, zero)


@pytest.fixture(scope="module")
def modelled() -> Iterator[Any]:
    """Libraries of a spec with tiles, run on the model: this machine's vectors, one tile of C at a time."""
    from vortex import native
    from vortex.codegen import cpu, cpu_words_objects

    patch = pytest.MonkeyPatch()
    patch.setattr(cpu_words_objects, "amx_ir", lambda kernels, words: "")
    patch.setattr(cpu, "WORD_SOURCES", (*cpu.WORD_SOURCES, str(MODEL)))
    patch.setattr(native, "request_tiles", lambda: None)
    data = load_spec("native").model_dump()
    flags = sorted(VECTORS)
    tiled = [i.model_dump() | {"features": flags} for i in SPEC.instructions if i.tiles]
    held = [row for row in data["instructions"] if row["dtype"] == "float32"]
    built: dict[str, Any] = {}

    def library(dtype: str) -> Any:
        if dtype not in built:
            fewer = [row | {"latency_cycles": 16} for row in tiled]
            spec = spec_from(data | {"instructions": [*held, *fewer]}, "a spec with tiles")
            small = what_if(spec, {"L0.max_utilization": 0.9, "L0.analysis": "analytical"})
            out = "int32" if dtype == "int8" else "float32"
            built[dtype] = vortex.compile(ops.Gemm(dtype=dtype, out_dtype=out), small, cache=False)
        return built[dtype]

    yield library
    patch.undo()


@needs.a_compiler
@needs_vectors
@pytest.mark.parametrize("dtype", list(ELEMENTS))
def test_products_of_a_library(modelled: Any, dtype: str) -> None:
    gemm, element = modelled(dtype), ELEMENTS[dtype]
    low, high = (-128, 128) if dtype == "int8" else (-8, 9)
    for m, n, k in [(1, 1, 1), (17, 33, 64), (40, 50, 131), (3, 70, 700), (65, 16, 66), (5, 5, 0)]:
        a, b = (RNG.integers(low, high, shape).astype(np.float32).astype(element) for shape in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b.astype(np.float64)
        for left, turned in ((a, False), (np.ascontiguousarray(a.T), True)):
            assert np.array_equal(gemm(left, b, transpose_a=turned), expected), (m, n, k, turned)
            assert np.array_equal(gemm(left, gemm.pack(b), transpose_a=turned), expected), (m, n, k, turned)
        assert np.array_equal(gemm(a, np.ascontiguousarray(b.T), transpose_b=True), expected)
        if dtype == "int8":
            unsigned = RNG.integers(0, 256, (m, k)).astype(np.uint8)
            for zero in (0, 131):
                assert np.array_equal(
                    gemm(unsigned, b, zero_a=zero), (unsigned.astype(np.float64) - zero) @ b.astype(np.float64)
                )


@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
@pytest.mark.parametrize(("dtype", "kinds"), [("bfloat16", ("tdpbf16ps",)), ("int8", ("tdpbssd", "tdpbusd"))])
def test_instructions_for_sapphire_rapids(dtype: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    emitted([(32, 2)], dtype, SPEC.llvm_cpu, tmp_path / "kernel.o", model=False)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "kernel.o")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = listed[listed.index("<vortex_l0_tiles_2x2>:") :]
    text = text[: text.index("\n\n")] if "\n\n" in text else text
    found = re.findall(r"^\s+[0-9a-f]+:\s+(\w+)", text, re.MULTILINE)
    dots = sum(found.count(kind) for kind in kinds)
    # Four dot products from four loads at most, of whole tiles and of the words that fill none; C is loaded once.
    assert dots % 4 == 0 and all(found.count(kind) >= 8 for kind in kinds)
    assert found.count("tileloadd") <= dots + 4 and found.count("tilestored") == 4
    assert found.count("sttilecfg") == found.count("ldtilecfg") == 1 and "tilerelease" not in found
    assert not {"call", "callq"} & set(found)


def test_filter_by_isa_takes_tiles_and_weights_take_vectors() -> None:
    assert SPEC.instruction("bfloat16").name == "tdpbf16ps-tmm" and SPEC.instruction("bfloat16").flops_per_cycle == 1024
    assert SPEC.instruction("int8").flops_per_cycle == 2048 and SPEC.instruction("float32").name == "vfmadd231ps-zmm"
    found = sieve(decompose(ops.Gemm(dtype="bfloat16"), SPEC))
    tallest = {tile.n // 16: max(t.m for t in found.register_tiles if t.n == tile.n) for tile in found.register_tiles}
    assert tallest == {1: 80, 2: 32, 3: 16, 4: 16, 5: 16}
    assert {(s.l0.m, s.l0.n) for s in found.strategies if s.stage.tiled} == {(80, 16), (32, 32), (16, 64), (16, 80)}
    assert sum(s.stage.dot for s in found.strategies) == 1, "few rows by a transposed B go by vectors"
    plain = SPEC.without_tiles()
    assert plain.instruction("bfloat16").name == "vdpbf16ps-zmm"
    assert (
        decompose(ops.Gemm(dtype="bfloat16", weights=Weights("int4")), plain).words.name
        == "bfloat16 by int4 in columns"
    )


@pytest.mark.parametrize("wrong", [{"rows": 8}, {"depth": 1}, {"lanes": 8}, {"dtype": "float32"}])
def test_tiles_of_another_size_are_refused(wrong: dict[str, Any]) -> None:
    data = SPEC.model_dump()
    data["instructions"] = [*data["instructions"][:3], data["instructions"][3] | wrong]
    with pytest.raises(SpecError, match="16 rows, depth and lanes"):
        spec_from(data, "a spec")


@pytest.mark.skipif("amx_tile" in cpu_flags(), reason="this machine has AMX")
def test_a_kernel_without_tiles_says_so() -> None:
    with pytest.raises(DeviceError, match="grants no AMX tiles"):
        request_tiles()
