"""Kernels for sm_90a as machine code: the instructions meant, and nothing that ptxas had to give up."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from test_codegen_cuda import GOLDEN, UPDATE, an_nvrtc, disassembler

from vortex.candidates import Tile
from vortex.codegen import hopper_tiles, nvrtc, tensor_core_hopper
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.errors import CodegenError
from vortex.gpu_candidates import Backend, BlockStrategy, Variant


def hopper(
    dtype: str,
    warpgroup: tuple[int, int],
    rows: int,
    stages: int,
    store: str = "shared",
    cluster: int = 1,
    *,
    at: bool,
    bt: bool,
) -> Variant:
    k = 8 if dtype == "tfloat32" else 16
    l0, l1 = Tile(*warpgroup, k), Tile(rows, warpgroup[1], 4 * k)
    strategy = BlockStrategy(Backend.HOPPER, dtype, l0, l1, Tile(64, warpgroup[1], k), stages, store, cluster)
    return Variant(strategy, at, bt, 16)


HEAVY = [
    hopper("float16", (64, 256), 128, 4, at=False, bt=True),
    hopper("bfloat16", (128, 192), 256, 3, at=True, bt=False),
    hopper("float16", (128, 128), 256, 4, "direct", at=False, bt=False),
    hopper("tfloat32", (64, 256), 128, 4, "direct", at=False, bt=True),
    hopper("float16", (64, 256), 128, 4, cluster=2, at=False, bt=True),
    hopper("bfloat16", (128, 192), 256, 3, cluster=2, at=False, bt=False),
]


@cache
def compiled(variant: Variant) -> nvrtc.Compiled:
    text = PRELUDE + tensor_core_hopper.source(variant, "sm_90a").source
    # NVRTC looks for a driver: where other tests have loaded the fake one, it would find that.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(nvrtc.compile_nvrtc, text, "sm_90a").result()


@an_nvrtc
@pytest.mark.parametrize("variant", HEAVY, ids=lambda variant: variant.name)
class TestMachineCode:
    def test_everything_stays_in_registers(self, variant: Variant):
        used = compiled(variant).resources[variant.name]
        assert used.spills == 0 and used.stack == 0
        assert used.registers * variant.strategy.threads <= 65536

    def test_the_instructions_meant(self, variant: Variant):
        ptx = compiled(variant).ptx
        kind = hopper_tiles.KINDS[variant.strategy.dtype]
        for instruction in (
            rf"wgmma\.mma_async\.sync\.aligned\.m64n{variant.strategy.l1.n}k\d+\.f32\.{kind}\.{kind}",
            r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global",
            r"mbarrier\.try_wait\.parity",
            r"setmaxnreg\.dec",
            r"setmaxnreg\.inc",
        ):
            assert re.search(instruction, ptx), instruction
        assert not re.search(r"\bmma\.sync|[ls]d\.local|\bcp\.async\.c[ag]\b", ptx)
        for instruction in (r"\.multicast::cluster", r"barrier\.cluster\.wait", r"\.reqnctapercluster 2"):
            assert bool(re.search(instruction, ptx)) == (variant.strategy.cluster > 1), instruction

    def test_products_are_not_serialized(self, variant: Variant, tmp_path: Path):
        """ptxas would wait after each of them: here one waits inside the loop and one behind it, however unrolled."""
        cuobjdump = disassembler()
        if cuobjdump is None:
            pytest.skip("reads machine code: needs cuobjdump (pip install '.[dev]')")
        (tmp_path / "kernel.cubin").write_bytes(compiled(variant).cubin)
        command = [str(cuobjdump), "--dump-sass", str(tmp_path / "kernel.cubin")]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        products, waits = sass.count("HGMMA"), sass.count("WARPGROUP.DEPBAR")
        assert products >= 8 and "UTMALDG" in sass and "USETMAXREG" in sass
        assert waits <= products // 4 and not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("tensor_core_hopper_f16", hopper("float16", (64, 64), 128, 4, at=False, bt=False)),
        ("tensor_core_hopper_tf32", hopper("tfloat32", (64, 128), 64, 3, "direct", at=False, bt=True)),
        ("tensor_core_hopper_cluster", hopper("float16", (64, 192), 128, 4, cluster=2, at=False, bt=False)),
    ],
)
def test_the_text_is_the_recorded_one(name: str, variant: Variant):
    """`UPDATE_GOLDEN=1 pytest tests/test_tensor_core_hopper.py` writes them anew."""
    made = tensor_core_hopper.source(variant, "sm_90a")
    header = f"// args {', '.join(made.args)}; block {made.block}; {made.shared_bytes} bytes of shared memory\n"
    text = header + made.source[made.source.index('extern "C"') :]
    path = GOLDEN / f"{name}.cu"
    if os.environ.get(UPDATE):
        path.write_text(text)
    assert text == path.read_text(), f"the emitted source changed; if meant, run with {UPDATE}=1"


class TestRefusals:
    @pytest.mark.parametrize(
        ("variant", "reason"),
        [
            (hopper("tfloat32", (64, 128), 128, 4, at=False, bt=False), "along k alone"),
            (hopper("float16", (64, 128), 128, 1, at=False, bt=True), "two at least"),
            (hopper("float16", (64, 256), 128, 5, at=False, bt=True), "bytes of shared memory"),
            (hopper("float16", (64, 20), 128, 4, at=False, bt=True), "in steps of 8"),
            (hopper("float16", (32, 64), 64, 4, at=False, bt=True), "64 rows"),
            (hopper("float32", (64, 64), 64, 4, at=False, bt=True), "wgmma has no float32"),
            (hopper("float16", (64, 64), 64, 4, cluster=3, at=False, bt=True), "clusters have 1 or 2 blocks"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_the_hardware_cannot_do(self, variant: Variant, reason: str):
        with pytest.raises(CodegenError, match=reason):
            tensor_core_hopper.source(variant, "sm_90a")

    def test_narrow_rows(self):
        wide = hopper("float16", (64, 64), 64, 4, at=False, bt=True)
        with pytest.raises(CodegenError, match="16 bytes"):
            tensor_core_hopper.source(Variant(wide.strategy, False, True, 8), "sm_90a")


class TestLayout:
    def test_boxes_are_rows_of_128_bytes(self):
        assert hopper_tiles.boxes(hopper("float16", (64, 96), 128, 4, at=False, bt=True)) == ((64, 128), (64, 96))
        assert hopper_tiles.boxes(hopper("float16", (64, 96), 128, 4, at=True, bt=False)) == ((64, 64), (64, 64))
        assert hopper_tiles.boxes(hopper("tfloat32", (64, 96), 128, 4, at=False, bt=True)) == (
            (32, 128),
            (32, 96),
        )

    def test_each_block_of_a_cluster_asks_for_its_share_of_columns_along_k(self):
        shared = hopper("float16", (64, 96), 128, 4, cluster=2, at=False, bt=True)
        assert hopper_tiles.boxes(shared) == ((64, 128), (64, 48))

    def test_columns_across_k_come_in_whole_rows(self):
        along = hopper("float16", (64, 32), 64, 4, at=False, bt=True)
        across = hopper("float16", (64, 32), 64, 4, at=False, bt=False)
        ends = [hopper_tiles.shared_layout(variant)[3] for variant in (along, across)]
        assert ends[1] - ends[0] == 4 * 32 * 64 * 2

    def test_registers_are_shared_out_where_an_even_share_is_too_little(self):
        assert hopper_tiles.register_split(64, 2) is None
        assert hopper_tiles.register_split(192, 1) is None
        fewer, more = hopper_tiles.register_split(128, 2)
        assert 128 * (2 * more + fewer) <= 65536 and more >= 128 + 40
