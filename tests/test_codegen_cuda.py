"""CUDA kernels as text and as machine code: golden sources, resources, the instructions meant, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from vortex.candidates import Tile
from vortex.codegen import cuda_reduce, nvrtc
from vortex.codegen.cuda import UNIT, Emitted, emit, source, split_args, units
from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_passes import swizzled
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.errors import CodegenError, ToolchainError, UnknownNameError
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.operators import Gemm, bias, gelu
from vortex.specs import load_spec

GOLDEN = Path(__file__).parent / "golden" / "cuda"
UPDATE = "UPDATE_GOLDEN"
ARCH = "sm_80"


def tensor_core(
    dtype: str = "float16", tile: tuple[int, int, int] = (64, 64, 32), stages: int = 3, store: str = "direct"
) -> BlockStrategy:
    k = 8 if dtype == "tfloat32" else 16
    return BlockStrategy(Backend.TENSOR_CORE, dtype, Tile(32, 32, k), Tile(*tile), Tile(16, 8, k), stages, store)


def cuda_core(dtype: str = "float32", depth: int = 16, stages: int = 3) -> BlockStrategy:
    return BlockStrategy(Backend.CUDA_CORE, dtype, Tile(32, 64, 1), Tile(64, 128, depth), Tile(8, 8, 1), stages)


ALONG_K = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 4, 256), Tile(4, 8, 512), Tile(4, 4, 8), 1)
ALONG_N = BlockStrategy(Backend.SKINNY, "float32", Tile(8, 128, 2), Tile(8, 128, 8), Tile(8, 4, 2), 1)
BYTES = BlockStrategy(Backend.TENSOR_CORE, "int8", Tile(32, 32, 32), Tile(64, 64, 64), Tile(16, 8, 32), 3)

FAMILIES = {
    "tensor_core_f16": Variant(tensor_core(), False, False, 16),
    "tensor_core_f16_narrow": Variant(tensor_core(), True, True, 4),
    "tensor_core_f16_single": Variant(tensor_core(stages=1), False, True, 2),
    "tensor_core_bf16_shared": Variant(tensor_core("bfloat16", store="shared"), False, True, 16),
    "tensor_core_tf32": Variant(tensor_core("tfloat32"), False, False, 16),
    "tensor_core_tf32_along_k": Variant(tensor_core("tfloat32", stages=2), False, True, 16),
    "cuda_core_f32": Variant(cuda_core(), False, False, 16),
    "cuda_core_f16": Variant(cuda_core("float16", 32), False, True, 16),
    "tensor_core_s8": Variant(BYTES, False, True, 16),
    "tensor_core_s8_pairs": Variant(replace(BYTES, store="shared"), True, False, 8),
    "skinny_s8": Variant(replace(ALONG_K, dtype="int8"), False, True, 16),
    "skinny_along_k": Variant(ALONG_K, False, True, 16),
    "skinny_along_n": Variant(ALONG_N, False, False, 16),
}
TURING = {
    "turing_f16": replace(FAMILIES["tensor_core_f16"], strategy=replace(tensor_core(stages=2), thread=Tile(16, 8, 8))),
    "turing_f16_shared": Variant(replace(tensor_core(stages=2, store="shared"), thread=Tile(16, 8, 8)), True, True, 4),
    "turing_f32": Variant(cuda_core(stages=2), False, False, 16),
    "turing_skinny": Variant(ALONG_K, False, True, 16),
}
"""Without cp.async, and with half of the matrix instruction."""
GOLDENS = (
    "tensor_core_f16",
    "tensor_core_bf16_shared",
    "tensor_core_tf32",
    "tensor_core_s8",
    "cuda_core_f32",
    "cuda_core_f16",
    "skinny_along_k",
)


def has_nvrtc() -> bool:
    try:
        nvrtc.library_path()
    except ToolchainError:
        return False
    return True


an_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="compiles CUDA: needs NVRTC (pip install 'vortex[cuda]')")


def disassembler() -> Path | None:
    """cuobjdump of the CUDA toolkit, or of the wheels that the `dev` extra brings."""
    if found := shutil.which("cuobjdump"):
        return Path(found)
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    return next((path for root in roots for path in root.glob("*/bin/cuobjdump")), None)


class TestGoldenSources:
    """What TVM and the passes print. `UPDATE_GOLDEN=1 pytest tests/test_codegen_cuda.py` writes them anew."""

    @pytest.mark.parametrize("name", [*GOLDENS, "reduce"])
    def test_the_text_is_the_recorded_one(self, name: str):
        made = cuda_reduce.source("float16", ARCH) if name == "reduce" else source(FAMILIES[name], ARCH)
        header = f"// args {', '.join(made.args)}; block {made.block}; {made.shared_bytes} bytes of shared memory\n"
        path = GOLDEN / f"{name}.cu"
        if os.environ.get(UPDATE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(header + made.source)
        assert header + made.source == path.read_text(), f"the emitted source changed; if meant, run with {UPDATE}=1"

    def test_the_text_with_an_epilogue_is_the_recorded_one(self):
        """The functions that the unit has for it, and the kernel that calls them."""
        form = form_of(Gemm("float16", epilogue=bias() >> gelu(), out_dtype="float32"))
        made, path = source(FAMILIES["tensor_core_f16"], ARCH, form), GOLDEN / "tensor_core_f16_bias_gelu.cu"
        text = form.prelude.removeprefix(PRELUDE) + made.source
        if os.environ.get(UPDATE):
            path.write_text(text)
        assert text == path.read_text(), f"the emitted source changed; if meant, run with {UPDATE}=1"

    def test_the_text_for_turing_is_the_recorded_one(self):
        made, path = source(TURING["turing_f16"], "sm_75"), GOLDEN / "turing_f16.cu"
        if os.environ.get(UPDATE):
            path.write_text(made.source)
        assert made.source == path.read_text(), f"the emitted source changed; if meant, run with {UPDATE}=1"

    def test_one_barrier_for_each_stage(self):
        assert source(FAMILIES["tensor_core_f16"], ARCH).source.count("__syncthreads()") == 2  # before the loop, in it
        assert source(FAMILIES["cuda_core_f16"], ARCH).source.count("__syncthreads()") == 1

    def test_waiting_leaves_all_but_the_oldest_stage_in_flight(self):
        for stages in (2, 3, 4, 5):
            text = source(Variant(tensor_core(stages=stages), False, False, 16), ARCH).source
            assert set(re.findall(r"cp_async_wait<(\d)>", text)) == {str(stages - 2)}

    def test_the_same_text_in_every_build(self):
        assert source(FAMILIES["cuda_core_f32"], ARCH) == source(FAMILIES["cuda_core_f32"], ARCH)


class TestShapeOfKernels:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_geometry_is_the_strategy_s(self, name: str):
        variant = FAMILIES[name]
        made = source(variant, ARCH)
        assert made.block[0] * made.block[1] * made.block[2] == variant.strategy.threads
        assert made.shared_bytes == variant.strategy.shared_bytes
        assert made.symbol == variant.name

    @pytest.mark.parametrize("name", FAMILIES)
    def test_inside_a_tile_nothing_is_predicated_but_global_accesses(self, name: str):
        """Local padding: products and reads of shared memory stand under no comparison with an extent."""
        for line in source(FAMILIES[name], ARCH).source.splitlines():
            if re.search(r"< [MNK]\)", line):
                assert re.search(r"cp_async_|copy_|store_|\bif \(", line), line
            if re.search(r"mma_|ldmatrix_|move_", line):
                assert not re.search(r"< [MNK]\b", line), line

    @pytest.mark.parametrize(
        ("strategy", "message"),
        [
            (
                BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(24, 32, 16), Tile(48, 64, 32), Tile(16, 8, 16), 3),
                "L0",
            ),
            (
                BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(32, 32, 16), Tile(80, 64, 32), Tile(16, 8, 16), 3),
                "L0",
            ),
            (BlockStrategy(Backend.CUDA_CORE, "float32", Tile(16, 16, 1), Tile(32, 32, 8), Tile(4, 4, 1), 3), "warp"),
            (BlockStrategy(Backend.SKINNY, "float32", Tile(4, 4, 64), Tile(4, 4, 64), Tile(4, 4, 4), 1), "lanes"),
        ],
    )
    def test_a_strategy_that_does_not_schedule_is_named(self, strategy: BlockStrategy, message: str):
        with pytest.raises(CodegenError, match=message) as refusal:
            source(Variant(strategy, False, False, 16), ARCH)
        assert str(strategy) in str(refusal.value)


class TestSwizzle:
    @pytest.mark.parametrize("item", [2, 4])
    @pytest.mark.parametrize("row_bytes", [32, 64, 96, 128, 192, 256, 512])
    def test_eight_rows_of_a_chunk_lie_on_different_banks(self, row_bytes: int, item: int):
        """What ldmatrix, and a warp that reads along k, ask for at a time."""
        for first in range(0, 64, 8):
            for chunk in range(row_bytes // 16):
                places = set()
                for row in range(first, first + 8):
                    column = int(swizzled([row, chunk * 16 // item], row_bytes, item, False)[-1])
                    places.add((row * row_bytes + column * item) % 128 // 16)
                assert len(places) == 8

    @pytest.mark.parametrize("row_bytes", [64, 128, 192, 256])
    @pytest.mark.parametrize("half", [0, 2])
    def test_pairs_of_rows_of_bytes_lie_on_different_banks(self, row_bytes: int, half: int):
        """What ldmatrix asks for of an int8 operand whose k is not contiguous: two rows of k in each four."""
        for first in range(0, 64, 16):
            for chunk in range(row_bytes // 16):
                rows = [first + 4 * place + half + odd for place in range(4) for odd in (0, 1)]
                columns = [int(swizzled([row, chunk * 16], row_bytes, 1, False, True)[-1]) for row in rows]
                places = {(r * row_bytes + column) % 128 // 16 for r, column in zip(rows, columns, strict=True)}
                assert len(places) == 8

    @pytest.mark.parametrize("columns", [16, 32, 48, 64, 96, 128])
    def test_words_of_four_rows_and_eight_columns_lie_on_different_banks(self, columns: int):
        """What a fragment of TF32 read across k asks for at a time."""
        for first in range(0, columns, 8):
            places = set()
            for row in range(4):
                for column in range(first, first + 8):
                    moved = int(swizzled([row, column], columns * 4, 4, True)[-1])
                    places.add((row * columns + moved) % 32)
            assert len(places) == 32

    @pytest.mark.parametrize("words", [False, True])
    def test_chunks_of_a_row_only_trade_places(self, words: bool):
        for row in range(16):
            columns = [int(swizzled([row, column], 256, 2, words)[-1]) for column in range(128)]
            assert sorted(columns) == list(range(128))
            assert all(b == a + 1 for a, b in zip(columns[::2], columns[1::2], strict=True))


@pytest.fixture(scope="module")
def compiled() -> nvrtc.Compiled:
    """One translation unit with a kernel of every family."""
    texts = [source(variant, ARCH).source for variant in FAMILIES.values()]
    reductions = [cuda_reduce.source(dtype, ARCH).source for dtype in ("float32", "float16", "bfloat16", "int8")]
    return nvrtc.compile_nvrtc("\n".join([PRELUDE, *texts, *reductions]), ARCH)


@pytest.fixture(scope="module")
def sass(compiled: nvrtc.Compiled, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Machine code by kernel."""
    return disassembled(compiled, tmp_path_factory.mktemp("sass"))


def disassembled(compiled: nvrtc.Compiled, folder: Path) -> dict[str, str]:
    tool = disassembler()
    if tool is None:
        pytest.skip("reads machine code: needs cuobjdump (pip install '.[dev]')")
    path = folder / "unit.cubin"
    path.write_bytes(compiled.cubin)
    text = subprocess.run([str(tool), "--dump-sass", str(path)], check=True, capture_output=True, text=True).stdout
    _, *parts = re.split(r"Function : (\w+)", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


MEANT = {
    "tensor_core_f16": ("HMMA.16816.F32 ", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS"),
    "tensor_core_f16_narrow": ("HMMA.16816.F32 ", "LDSM.16.MT88.4", "LDGSTS.E"),
    "tensor_core_f16_single": ("HMMA.16816.F32 ", "LDSM.16.M88.4", "LDG.E.U16", "STS.U16"),
    "tensor_core_bf16_shared": ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "STS.64", "LDS.128"),
    "tensor_core_tf32": ("HMMA.1688.F32.TF32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDS R"),
    "tensor_core_tf32_along_k": ("HMMA.1688.F32.TF32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"),
    "cuda_core_f32": ("FFMA", "LDS.128", "LDGSTS.E.BYPASS", "STG.E.128"),
    "cuda_core_f16": ("FFMA", "LDS.128", "LDGSTS.E.BYPASS"),
    "tensor_core_s8": ("IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"),
    "tensor_core_s8_pairs": ("IMMA.16832.S8.S8", "LDSM.16.MT88.4", "PRMT", "LDGSTS.E", "STS.128"),
    "skinny_s8": ("IMAD", "LDG.E.64", "SHFL.BFLY"),
    "skinny_along_k": ("FFMA", "LDG.E.128", "SHFL.BFLY"),
    "skinny_along_n": ("FFMA", "LDG.E.128", "LDS"),
}
NOT_MEANT = {
    Backend.TENSOR_CORE: ("LDL", "STL", "FFMA"),
    Backend.CUDA_CORE: ("LDL", "STL", "HMMA"),
    Backend.SKINNY: ("LDL", "STL", "HMMA", "LDGSTS"),
}


@an_nvrtc
class TestMachineCode:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_no_spills_no_stack(self, compiled: nvrtc.Compiled, name: str):
        used = compiled.resources[FAMILIES[name].name]
        assert (used.spills, used.stack, used.shared_bytes) == (0, 0, 0)
        assert 16 <= used.registers <= 255

    def test_reductions_are_small(self, compiled: nvrtc.Compiled):
        for dtype in ("float32", "float16", "bfloat16", "int32"):
            used = compiled.resources[f"reduce_{dtype}"]
            assert (used.spills, used.stack) == (0, 0)
            assert used.registers <= 64

    @pytest.mark.parametrize("name", FAMILIES)
    def test_the_instructions_meant(self, sass: dict[str, str], name: str):
        text = sass[FAMILIES[name].name]
        assert [part for part in MEANT[name] if part not in text] == []
        backend = FAMILIES[name].strategy.backend
        assert [part for part in NOT_MEANT[backend] if re.search(rf"\s{part}[. ]", text)] == []

    def test_offsets_of_rows_are_wide(self, compiled: nvrtc.Compiled):
        entry = compiled.ptx.partition(f".entry {FAMILIES['tensor_core_f16'].name}")[2].partition(".entry")[0]
        assert "mul.wide.s32" in entry or "mad.wide.s32" in entry or "mul.lo.s64" in entry
        assert "cp.async.cg.shared.global.L2::128B" in entry

    def test_ptx_names_the_architecture(self, compiled: nvrtc.Compiled):
        assert ".target sm_80" in compiled.ptx


def cycles_of_reads(text: str) -> list[int]:
    """Of each float32 multiply-add, how long two banks of registers need for what the one before has not left."""
    cycles, left = [], {}
    for line in re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", text):
        if not line.startswith("FFMA"):
            left = {}
            continue
        operands = re.findall(r"R(\d+)(\.reuse)?", line)[1:4]
        reads = {int(name) for place, (name, _) in enumerate(operands) if left.get(place) != name}
        cycles.append(max(1, *(sum(name % 2 == bank for name in reads) for bank in (0, 1))))
        left = {place: name for place, (name, reuse) in enumerate(operands) if reuse}
    return cycles


@an_nvrtc
@pytest.mark.parametrize("layout", [(a, b) for a in (False, True) for b in (False, True)])
def test_registers_are_read_as_fast_as_hopper_multiplies(layout: tuple[bool, bool], tmp_path: Path):
    variant = Variant(cuda_core(), *layout, 16)
    unit = nvrtc.compile_nvrtc("\n".join([PRELUDE, source(variant, "sm_90a").source]), "sm_90a")
    cycles = cycles_of_reads(disassembled(unit, tmp_path)[variant.name])
    assert len(cycles) >= 1024 and sum(cycles) <= 1.25 * len(cycles)


@pytest.fixture(scope="module")
def turing() -> nvrtc.Compiled:
    texts = [source(variant, "sm_75").source for variant in TURING.values()]
    reductions = [cuda_reduce.source(dtype, "sm_75").source for dtype in ("float32", "float16")]
    return nvrtc.compile_nvrtc("\n".join([PRELUDE, *texts, *reductions]), "sm_75")


@an_nvrtc
class TestTuring:
    def test_no_spills_no_stack_no_asynchronous_copies(self, turing: nvrtc.Compiled):
        used = [turing.resources[variant.name] for variant in TURING.values()]
        assert [(x.spills, x.stack) for x in used] == [(0, 0)] * len(TURING)
        assert "cp.async" not in turing.ptx and ".target sm_75" in turing.ptx

    def test_the_instructions_meant(self, turing: nvrtc.Compiled, tmp_path: Path):
        machine = disassembled(turing, tmp_path)
        for name in ("turing_f16", "turing_f16_shared"):
            text = machine[TURING[name].name]
            assert [part for part in ("HMMA.1688.F32 ", "LDSM.16.M", "LDG.E", "STS") if part not in text] == []
            assert not re.search(r"\s(LDL|STL|FFMA|HMMA.16816)[. ]", text)
        loads = machine[TURING["turing_f16"].name]
        # The loop over stages asks for the next one before it multiplies, and stores it after.
        loop = loads[loads.index("BAR.SYNC") :]
        assert loop.index("LDG.E.128") < loop.index("STS.128")

    def test_three_stages_have_no_room_in_registers(self):
        with pytest.raises(CodegenError, match=r"3 stages without cp\.async"):
            source(FAMILIES["tensor_core_f16"], "sm_75")

    def test_an_instruction_without_code_is_named(self):
        odd = replace(tensor_core("bfloat16"), thread=Tile(16, 8, 8))
        with pytest.raises(CodegenError, match="no code for an instruction of 16x8x8 on bfloat16"):
            source(Variant(odd, False, False, 16), ARCH)


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Emitted], list[float]]:
    folder, told = tmp_path_factory.mktemp("emitted"), []
    variants = [FAMILIES["tensor_core_f16"], FAMILIES["cuda_core_f32"], FAMILIES["skinny_along_k"]]
    made = emit(variants, load_spec("a100"), folder, 2, lambda what, share: told.append(share))
    return folder, made, told


@an_nvrtc
class TestEmit:
    def test_a_kernel_and_its_split_form_are_one_symbol(self, emitted: tuple[Path, list[Emitted], list[float]]):
        rows = [row for row in emitted[1] if row.variant == FAMILIES["tensor_core_f16"]]
        assert [row.split for row in rows] == [False, True]
        assert rows[0].symbol == rows[1].symbol == FAMILIES["tensor_core_f16"].name
        assert rows[0].args == ("*A", "*B", "*C", "M", "N", "K", "lda", "ldb", "ldc", "chunk", "raster")
        assert rows[1].args == ("*A", "*B", "*W", "M", "N", "K", "lda", "ldb", "N", "chunk", "raster")

    def test_every_type_of_c_has_its_reduction(self, emitted: tuple[Path, list[Emitted], list[float]]):
        assert {row.symbol for row in emitted[1] if row.variant is None} == {"reduce_float16", "reduce_float32"}
        assert all(row.args == cuda_reduce.ARGS for row in emitted[1] if row.variant is None)

    def test_files_hold_the_entries(self, emitted: tuple[Path, list[Emitted], list[float]]):
        folder, rows, told = emitted
        for row in rows:
            assert row.symbol.encode() in (folder / row.file).read_bytes()
            assert f".entry {row.symbol}(" in (folder / row.file).with_suffix(".ptx").read_text()
        assert told == sorted(told)
        assert told[-1] == 1.0

    def test_a_strategy_that_does_not_schedule_is_named_across_processes(self, tmp_path: Path):
        wrong = BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(24, 32, 16), Tile(48, 64, 32), Tile(16, 8, 16), 3)
        with pytest.raises(CodegenError, match="24x32x16"):
            emit([Variant(wrong, False, False, 16)], load_spec("a100"), tmp_path, 2)

    def test_more_shared_memory_than_a_block_has_is_refused(self, tmp_path: Path):
        wide = Variant(tensor_core(tile=(128, 128, 64), stages=6), False, False, 16)
        with pytest.raises(CodegenError, match="196608 bytes of shared memory"):
            emit([wide], load_spec("a100"), tmp_path, 1)


class TestUnits:
    @pytest.mark.parametrize(("count", "workers"), [(1, 2), (5, 2), (24, 2), (25, 2), (150, 2), (150, 7)])
    def test_every_variant_once_in_even_units(self, count: int, workers: int):
        variants = [Variant(tensor_core(tile=(32 * (1 + i), 64, 32)), False, False, 16) for i in range(count)]
        parts = units(variants, workers)
        assert sorted(variant for part in parts for variant in part) == sorted(variants)
        assert max(map(len, parts)) <= UNIT
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_split_args(self):
        assert split_args(("*A", "*C", "ldc", "chunk")) == ("*A", "*W", "N", "chunk")


LOG = """
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    24 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 1024 bytes smem, 412 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 412 bytes cmem[0]
"""


class TestToolchain:
    def test_resources_by_kernel(self):
        assert nvrtc.resources(LOG) == {
            "first": nvrtc.Resources(registers=255, stack=24, spills=28, shared_bytes=1024),
            "second": nvrtc.Resources(registers=32, stack=0, spills=0, shared_bytes=0),
        }

    def test_without_nvrtc_the_remedy_is_told(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.delenv("CUDA_PATH", raising=False)
        with pytest.raises(ToolchainError, match=r"pip install 'vortex\[cuda\]'"):
            nvrtc.library_path()

    @an_nvrtc
    def test_a_source_that_does_not_compile_is_told(self):
        with pytest.raises(CodegenError, match="nonsense"):
            nvrtc.compile_nvrtc('extern "C" __global__ void k() { nonsense(); }', ARCH)

    def test_nvcc_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
        for ask in (lambda: nvrtc.compile_nvcc("", ARCH), lambda: nvrtc.release("nvcc")):
            with pytest.raises(ToolchainError, match="neither on PATH nor in CUDA_PATH/bin; install"):
                ask()

    def test_nvcc_of_the_toolkit_that_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        tool = tmp_path / "cuda" / "bin" / "nvcc"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 99.1, V99.1.23'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
        assert nvrtc.release("nvcc") == "99.1.23"
        tool.write_text("#!/bin/sh\n")
        with pytest.raises(ToolchainError, match="does not tell a release"):
            nvrtc.release("nvcc")

    def test_another_compiler_is_refused(self):
        with pytest.raises(UnknownNameError, match="compiler='nvc': expected nvrtc or nvcc; did you mean"):
            nvrtc.release("nvc")
