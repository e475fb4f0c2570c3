"""The assembly of L0 on AVX-512, and on AVX2: accumulators stay in registers, B is asked for ahead."""

import ctypes
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from needs import a_compiler
from priced import found

from vortex.affinity import cpu_flags
from vortex.hardware import HardwareSpec
from vortex.specs import load_spec

SPEC, NARROW = load_spec("epyc-zen4"), load_spec("epyc-zen3")
LANES = SPEC.instruction("float32").lanes
FEW = 4
"""Vectors that a kernel may keep on the stack outside its loop: masks and what they are made of."""
MASKS = 12
"""Loads of a mask in the text of a kernel that has it in vector registers: for three loops, and after each."""


def disassembled(path: Path) -> str:
    if not shutil.which("objdump"):
        pytest.skip("needs objdump")
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def assembly(spec: HardwareSpec, path: Path) -> dict[tuple[int, int], str]:
    """Of the register tiles of a sieve, at every height that a residue may take, by (rows, vectors)."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_kernels import RegisterTile, micro_kernel
    from vortex.codegen.cpu_rows import compile_tiles

    lanes = spec.instruction("float32").lanes
    tallest = {(tile.n // lanes): tile.m for tile in found(spec).register_tiles}
    tiles = [RegisterTile(rows, vectors, "row") for vectors, most in tallest.items() for rows in range(1, most + 1)]
    of_all = [micro_kernel(tile, lanes) for tile in tiles]
    compile_tiles(of_all, max(tallest.values()), lanes, spec.llvm_cpu, path, clears=lanes > 8)
    parts = re.findall(r"<vortex_l0_row_(\d+)x(\d+)>:\n(.*?)(?=\n\n|\Z)", disassembled(path), re.S)
    return {(int(rows), int(vectors)): body for rows, vectors, body in parts}


def test_a_kernel_begins_with_a_line_of_code(tmp_path: Path) -> None:
    """Or how quick it is would depend on how long what is linked before it is."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_kernels import RegisterTile, micro_kernel
    from vortex.codegen.cpu_rows import compile_tiles

    tiles, path = [RegisterTile(rows, 2, "row") for rows in range(1, 5)], tmp_path / "l0.o"
    compile_tiles([micro_kernel(tile, LANES) for tile in tiles], 4, LANES, SPEC.llvm_cpu, path)
    begins = [int(place, 16) for place in re.findall(r"^(\w+) <vortex_l0_row_\dx2>:", disassembled(path), re.M)]
    assert len(begins) == len(tiles) and not [place for place in begins if place % 64]
    headers = subprocess.run(["objdump", "-h", str(path)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\.text .* 2\*\*6$", headers, re.M), headers


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], str]:
    return assembly(SPEC, tmp_path_factory.mktemp("l0") / "l0.o")


@pytest.fixture(scope="module")
def narrow_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], str]:
    return assembly(NARROW, tmp_path_factory.mktemp("narrow") / "l0.o")


def test_accumulators_stay_in_registers(kernels: dict[tuple[int, int], str]) -> None:
    """Asking for B before the arithmetic, not after it, made LLVM spill 10x2 and 6x4: half the speed."""
    assert len(kernels) > 60
    reloads = {tile: len(re.findall(r"\(%rsp\),%zmm", body)) for tile, body in kernels.items()}
    assert not {tile: count for tile, count in reloads.items() if count > FEW}


def test_a_kernel_that_keeps_b_loads_no_sum_again(tmp_path: Path) -> None:
    """LLVM moves loads of A across its stores, and takes the registers of sums for them, unless it is kept from it."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_kernels import micro_kernel
    from vortex.codegen.cpu_objects import keeping_tiles
    from vortex.codegen.cpu_rows import compile_tiles

    tiles, path = keeping_tiles(found(SPEC).strategies, LANES, True), tmp_path / "keep.o"
    assert len(tiles) > 20 and not keeping_tiles(found(NARROW).strategies, 8, True)
    assert not keeping_tiles(found(SPEC).strategies, LANES, False)
    compile_tiles([micro_kernel(tile, LANES) for tile in tiles], max(t.rows for t in tiles), LANES, SPEC.llvm_cpu, path)
    bodies = re.findall(r"<vortex_l0_row_keep_\w+>:\n(.*?)(?=\n\n|\Z)", disassembled(path), re.S)
    assert len(bodies) == len(tiles)
    assert max(len(re.findall(r"\(%rsp\),%zmm", body)) for body in bodies) <= FEW


def test_sums_are_written_under_a_mask_or_past_the_caches(kernels: dict[tuple[int, int], str]) -> None:
    for (rows, vectors), body in kernels.items():
        assert len(re.findall(r"vmovntps %zmm", body)) == rows * vectors and "call" not in body


def test_a_lane_mask_in_a_vector_register_leaves_accumulators_in_theirs(
    narrow_kernels: dict[tuple[int, int], str],
) -> None:
    """AVX2 has no others for masks: tiles that leave it none (4x3, 3x4) load sums again with each step of k, 29 times
    and more in the text of a kernel. Others load the mask itself, before each loop."""
    reloads = {tile: len(re.findall(r"\(%rsp\),%ymm", body)) for tile, body in narrow_kernels.items()}
    assert (6, 2) in reloads and max(reloads.values()) <= MASKS


def loops(body: str) -> list[list[str]]:
    """The instructions of each loop: from where a jump goes back to, up to the jump."""
    lines = re.findall(r"^ +([0-9a-f]+):\t(.*)$", body, re.M)
    places = {address: at for at, (address, _) in enumerate(lines)}
    jumps = ((at, re.match(r"j\w+ +([0-9a-f]+) ", text)) for at, (_, text) in enumerate(lines))
    ends = ((places.get(jump[1], at), at) for at, jump in jumps if jump)
    return [[text for _, text in lines[first : last + 1]] for first, last in ends if first < last]


def turn_of(body: str, multiply_adds: int) -> list[str]:
    """The shortest loop with so many of them."""
    counted = (loop for loop in loops(body) if sum("vfmadd" in text for text in loop) == multiply_adds)
    return min(counted, key=len)


def test_four_steps_of_avx2_take_few_instructions_more_than_their_arithmetic(
    narrow_kernels: dict[tuple[int, int], str],
) -> None:
    """20 a step; what is asked for ahead is 30, behind a branch. With one step in a turn 8 more were 28 a step."""
    for rows, vectors in ((6, 2), (5, 2), (3, 3)):
        turn = turn_of(narrow_kernels[rows, vectors], 4 * rows * vectors)
        assert len(turn) <= 4 * (rows * vectors + rows + vectors) + 60
        assert not [text for text in turn if "(%rsp)" in text and "%ymm" in text]


@pytest.mark.parametrize(("spec", "rows", "vectors", "steps"), [(NARROW, 6, 2, 4), (NARROW, 2, 6, 4), (SPEC, 6, 4, 2)])
def test_sums_of_a_convolution_stay_in_registers(
    spec: HardwareSpec, rows: int, vectors: int, steps: int, tmp_path: Path
) -> None:
    """With four steps of AVX2 in a turn, and two of AVX-512, where LLVM repeats the loop by itself."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_conv import conv_kernel
    from vortex.codegen.cpu_rows import compile_tiles

    lanes, path = spec.instruction("float32").lanes, tmp_path / "conv.o"
    compile_tiles([conv_kernel(rows, vectors, lanes)], rows, lanes, spec.llvm_cpu, path)
    turn = turn_of(disassembled(path), steps * rows * vectors)
    assert len(turn) <= steps * (rows * vectors + rows + vectors) + 20
    assert not [text for text in turn if "(%rsp)" in text]


def test_avx2_stores_nothing_under_a_mask(narrow_kernels: dict[tuple[int, int], str]) -> None:
    """`vmaskmovps` to memory takes AMD's cores as long as a dozen whole vectors."""
    for (rows, vectors), body in narrow_kernels.items():
        assert "vmaskmov" in body and not re.findall(r"vmaskmov\w+ %ymm\d+,%ymm\d+,[^%]*\(", body)
        assert len(re.findall(r"vmovups %ymm\d+,", body)) >= rows * vectors
        assert len(re.findall(r"vmovss %xmm\d+,", body)) >= rows


@pytest.mark.parametrize("spec", [SPEC, NARROW], ids=lambda spec: spec.name)
def test_a_nest_of_avx2_clears_upper_halves_once_and_not_each_of_its_kernels(
    spec: HardwareSpec, tmp_path: Path
) -> None:
    """A tile of eight steps of k took a twentieth longer where its kernel did. On AVX-512 each does."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_objects import nest_tasks, parts_of, product_tasks
    from vortex.operators import Gemm

    lanes, strategies = spec.instruction("float32").lanes, [s for s in found(spec).strategies if s.stage.tiled]
    parts = parts_of(Gemm(), strategies, [(4, 2)], ["row", "col"], 16, lanes, False)
    kinds = {
        "l0": [*product_tasks(parts).measured, *product_tasks(parts).rest],
        "l1": nest_tasks(strategies, parts, lanes, False),
    }
    clearing: dict[str, list[int]] = {}
    for kind, tasks in kinds.items():
        for emit, what in tasks:
            emit(what, lanes, spec.llvm_cpu, tmp_path / "made.o")
            functions = re.findall(
                rf"<(vortex_{kind}_(?:row|col)\w*)>:\n(.*?)(?=\n\n|\Z)", disassembled(tmp_path / "made.o"), re.S
            )
            clearing.setdefault(kind, []).extend(body.count("vzeroupper") for _, body in functions)
    narrow = lanes < 16
    assert clearing["l0"] == [int(not narrow)] * 2 and len(clearing["l1"]) > 4
    assert set(clearing["l1"]) == {int(narrow)}


def test_each_row_of_what_comes_next_is_asked_for_whole(kernels: dict[tuple[int, int], str]) -> None:
    """Its lines, into L1 or L2, and unless rows follow each other the line that it ends in; LLVM may repeat a loop."""
    for (_, vectors), body in kernels.items():
        near, far = (len(re.findall(f"prefetcht{level}", body)) for level in (0, 1))
        ends = len(re.findall(rf"prefetcht1 0x{64 * vectors - 4:x}\(", body))
        assert ends >= 1 and near >= vectors and near % vectors == 0
        assert far - ends >= near and (far - ends) % vectors == 0


RECORDER = """
#include <stdint.h>
intptr_t asked[4096], count;
int32_t recorded(intptr_t address) { return asked[count++ & 4095] = address, 0; }
"""


@a_compiler
@pytest.mark.parametrize(("rows", "near"), [(13, False), (5, False), (13, True)])
def test_what_comes_next_is_asked_for_as_fast_as_it_is_needed(
    rows: int, near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of A that the next tile reads: all of their lines by the end of this one, and few beyond. Into the first
    cache a row goes with each step, whatever is needed."""
    pytest.importorskip("tvm")
    from tvm.script import tirx as T

    from vortex.codegen import cpu_kernels, cpu_steps
    from vortex.codegen.cpu_rows import compile_tiles
    from vortex.codegen.link import link

    lanes, vectors, depth = 8, 2, 200  # a row is a line
    monkeypatch.setattr(cpu_steps, "fetch", lambda address, cache=1: T.call_extern("int32", "recorded", address))
    monkeypatch.setattr(cpu_kernels, "_form", cpu_kernels._form.__wrapped__)
    tile = cpu_kernels.RegisterTile(rows, vectors, "row")
    compile_tiles([cpu_kernels.micro_kernel(tile, lanes)], rows, lanes, "haswell", tmp_path / "l0.o")
    (tmp_path / "recorder.c").write_text(RECORDER)
    link(tmp_path / "l0.so", [tmp_path / "l0.o"], [tmp_path / "recorder.c"])
    library, columns = ctypes.CDLL(str(tmp_path / "l0.so")), vectors * lanes
    room = rows * depth, depth * columns, rows * columns, 1 << 16
    a, b, c, following = (np.ones(size, np.float32) for size in room)
    every = 0 if near else cpu_steps.STEP * columns // rows
    sizes = [ctypes.c_int64(size) for size in (depth, depth, columns, columns)]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c, following)]
    apart = ctypes.c_int64(columns)
    getattr(library, tile.symbol)(*pointers[:3], *sizes, lanes, 0, pointers[3], ctypes.c_int64(every), apart, None)
    assert (c == depth).all()
    count = ctypes.c_int64.in_dll(library, "count").value
    asked = np.array((ctypes.c_int64 * 4096).in_dll(library, "asked")[:count]) - following.ctypes.data
    needed = depth if near else rows * depth / columns
    assert np.array_equal(asked, 64 * np.arange(count)) and needed <= count <= 1.06 * needed


def test_addresses_of_rows_stay_in_registers(kernels: dict[tuple[int, int], str]) -> None:
    """A pointer for each of more than seven rows made loads of pointers in every step of k; before the two loops they
    are fetched once, and before the three of kernels that can load quads no more often in a turn."""
    from vortex.codegen.cpu_rows import GROUP

    tall = {tile: body for tile, body in kernels.items() if tile[0] > GROUP}
    assert len(tall) > 30
    for body in tall.values():
        if "vbroadcastf32x4" in body:
            parts = [turn for turn in loops(body) if any("vfmadd" in line for line in turn)]
            assert len(parts) >= 3
        else:
            steps = [line for line in body.splitlines() if "vfmadd" in line or "(%rsp)" in line]
            first, last = (edge(at for at, line in enumerate(steps) if "vfmadd" in line) for edge in (min, max))
            parts = [steps[first:last]]
        assert all(sum("(%rsp)" in line for line in part) <= 2 * FEW for part in parts)


def test_b_and_the_sums_of_a_held_kernel_stay_in_registers(tmp_path: Path) -> None:
    """Every register has its place: one more, and B would be loaded again for every few rows."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_held import held_kernel
    from vortex.codegen.cpu_rows import compile_tiles

    held = next(strategy.l0 for strategy in found(SPEC).strategies if strategy.stage.held)
    path = tmp_path / "held.o"
    both = [held_kernel(held.m, held.k, lanes) for lanes in (LANES, LANES // 2)]
    compile_tiles(both, held.m, LANES, SPEC.llvm_cpu, path)
    body, half = re.findall(r"<vortex_held_\d+>:\n(.*?)(?=\n\n|\Z)", disassembled(path), re.S)
    assert len(re.findall(r"vfmadd.*1to16", body)) >= held.m * held.k
    assert not re.findall(r"zmm\d+,.*\(%rsp\)|\(%rsp\).*,%zmm", body)
    past = re.findall("vmovntps", body)
    assert len(past) == held.m + 1 and "vmovntps" not in half, "a few rows at a time, the last ones one by one"
    asked = [len(re.findall("prefetchw", text)) for text in (body, half)]
    assert asked == [held.m + 1, held.m // 2 + 1], "each line of C that comes, to be written, once"


@pytest.mark.parametrize(("near", "asks"), [(False, "prefetcht1"), (True, "prefetcht0")])
def test_rows_of_b_stream_past_sums_in_registers(tmp_path: Path, near: bool, asks: str) -> None:
    """Every line of B is asked for ahead, and of three rows nothing is spilled (of four, some of A)."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_streamed import streamed_kernel
    from vortex.codegen.lower import compile_object, cpu_target

    streamed = next(strategy.l0 for strategy in found(SPEC).strategies if strategy.stage.streamed)
    vectors, path = streamed.n // LANES, tmp_path / "streamed.o"
    compile_object([streamed_kernel(3, vectors, streamed.k, LANES, near)], cpu_target(SPEC.llvm_cpu), path)
    body = disassembled(path)
    assert len(re.findall(asks, body)) >= vectors * streamed.k
    assert not re.findall(r"zmm\d+,.*\(%rsp\)|\(%rsp\).*,%zmm", body)


@pytest.mark.parametrize("rows", [8, 14, 20])
def test_quads_of_a_take_half_the_broadcasts_from_memory_and_change_no_bit(tmp_path: Path, rows: int) -> None:
    """Of single vectors, where they are told to: of four steps two come out of one load."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_kernels import RegisterTile, micro_kernel
    from vortex.codegen.cpu_rows import compile_tiles
    from vortex.codegen.cpu_tile import ADDS, QUADS
    from vortex.codegen.link import link

    tile, path = RegisterTile(rows, 1, "row"), tmp_path / "quads.o"
    compile_tiles([micro_kernel(tile, LANES)], rows, LANES, SPEC.llvm_cpu, path)
    body = disassembled(path)
    assert len(re.findall("vbroadcastf32x4", body)) == rows and len(re.findall("vshufps", body)) == 2 * rows
    assert not re.findall(r"zmm\d+,.*\(%rsp\)|\(%rsp\).*,%zmm", body)
    if not SPEC.features <= cpu_flags():
        return
    library = tmp_path / "quads.so"
    link(library, [path], [])
    call = getattr(ctypes.CDLL(str(library)), tile.symbol)
    for k, columns in itertools.product((1, 3, 4, 7, 8, 101), (1, 15, 16)):
        a, b = (np.random.default_rng(k).standard_normal(shape, np.float32) for shape in ((rows, k), (k + 1, LANES)))
        sums = [np.ones((rows, LANES), np.float32) for _ in range(2)]
        for how, c in zip((ADDS, ADDS | QUADS), sums, strict=True):
            pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
            sizes = [ctypes.c_int64(x) for x in (k, k, LANES, LANES)]
            asked = [pointers[1], ctypes.c_int64(16), ctypes.c_int64(LANES), pointers[1]]
            call(*pointers, *sizes, ctypes.c_int32(columns), ctypes.c_int32(how), *asked)
        exact = 1 + a.astype(np.float64) @ b[:k, :columns]
        assert np.array_equal(*sums) and np.allclose(sums[0][:, :columns], exact, atol=1e-4)
        assert np.all(sums[0][:, columns:] == 1)


@pytest.mark.parametrize(
    ("kind", "rows", "asked"), [("ONCE", 6, {"1"}), ("ONCE", 2, {"0", "1"}), ("STREAMS", 2, {"0"}), ("NEAR", 6, set())]
)
def test_rows_are_asked_for_into_the_cache_that_has_room(tmp_path: Path, kind: str, rows: int, asked: set[str]) -> None:
    """And those from near not at all: the loads that bring them need the slots. Sums stay in registers either way."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_dot import STEP_IR, Rows, dot_kernel
    from vortex.codegen.lower import compile_object, cpu_target

    path = tmp_path / "dot.o"
    compile_object([dot_kernel(rows, 1, LANES, Rows[kind])], cpu_target(SPEC.llvm_cpu), path, llvm_ir=STEP_IR)
    body = disassembled(path)
    assert set(re.findall(r"prefetcht(\d)", body)) == asked and len(re.findall(r"vfmadd", body)) >= rows
    assert not re.findall(r"zmm\d+,.*\(%rsp\)|\(%rsp\).*,%zmm", body)
