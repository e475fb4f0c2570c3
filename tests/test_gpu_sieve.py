"""The sieve on GPUs: every candidate fits the device, multiples between levels, filters that do what they say."""

from dataclasses import replace
from functools import cache

import pytest

from vortex import operators as ops
from vortex.candidates import Tile
from vortex.errors import SpecError
from vortex.gpu_candidates import WARP, Backend, BlockStrategy, Variant
from vortex.gpu_sieve import GpuSieve, backends, copies_divide, hides_latency, registers_needed, resident_blocks, sieve
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.specs import gpus, load_spec, what_if

DTYPES = ("float32", "tfloat32", "float16", "bfloat16")


@cache
def found(hw: str, dtype: str, backend: Backend) -> GpuSieve:
    return sieve(decompose(Gemm(dtype), load_spec(hw)), backend)


def cases() -> list[tuple[str, str, Backend]]:
    rows = []
    for spec in gpus():
        for dtype in DTYPES:
            if dtype in {row.dtype for row in spec.instructions}:
                rows += [(spec.name, dtype, backend) for backend in backends(decompose(Gemm(dtype), spec))]
    return rows


def counts(result: GpuSieve) -> dict[str, int]:
    return {f"{row.level} {row.filter}": row.count for row in result.admitted}


@pytest.mark.parametrize(("hw", "dtype", "backend"), cases())
class TestEveryCandidate:
    def test_fits_the_device(self, hw: str, dtype: str, backend: Backend):
        spec = load_spec(hw)
        for s in found(hw, dtype, backend).strategies:
            assert s.threads == WARP * s.warps <= spec.threads_per_block
            assert s.shared_bytes <= spec.shared_per_block_bytes
            assert registers_needed(spec, s) <= spec.registers_per_thread
            assert registers_needed(spec, s) * s.threads <= spec.registers_per_sm
            assert resident_blocks(spec, s) >= 1

    def test_is_a_multiple_of_the_level_below(self, hw: str, dtype: str, backend: Backend):
        for s in found(hw, dtype, backend).strategies:
            for axis in "mnk":
                l1, l0, t = (getattr(tile, axis) for tile in (s.l1, s.l0, s.thread))
                assert l1 % l0 == 0 == l0 % t, s

    def test_is_there_once_under_a_name_of_its_own(self, hw: str, dtype: str, backend: Backend):
        strategies = found(hw, dtype, backend).strategies
        assert strategies
        names = {Variant(s, a, b, v).name for s in strategies for a in (0, 1) for b in (0, 1) for v in (16, 2)}
        assert len(names) == 8 * len(strategies)
        assert all(name.isidentifier() for name in names)

    def test_counts_shrink_level_by_level(self, hw: str, dtype: str, backend: Backend):
        result = found(hw, dtype, backend)
        for level in ("L0", "L1"):
            rows = [row.count for row in result.admitted if row.level == f"{backend} {level}"]
            assert rows == sorted(rows, reverse=True)
        assert result.admitted[-1].count == len(result.strategies)

    def test_without_asynchronous_copies_there_are_two_stages_at_most(self, hw: str, dtype: str, backend: Backend):
        stages = {s.stages for s in found(hw, dtype, backend).strategies}
        if backend is Backend.SKINNY:
            assert stages == {1}
        elif not load_spec(hw).async_copy:
            assert stages == {1, 2}
        else:
            assert min(stages) == 2


class TestBackends:
    def test_of_an_a100(self):
        half = backends(decompose(Gemm("float16"), load_spec("a100")))
        assert half == (Backend.TENSOR_CORE, Backend.CUDA_CORE, Backend.SKINNY)
        plain = backends(decompose(Gemm(), load_spec("a100")))
        assert plain == (Backend.CUDA_CORE, Backend.SKINNY)  # no Tensor Cores unless TF32 is asked for
        assert backends(decompose(Gemm("tfloat32"), load_spec("a100"))) == (Backend.TENSOR_CORE, Backend.SKINNY)

    def test_of_an_h200(self):
        assert backends(decompose(Gemm("bfloat16"), load_spec("h200")))[0] is Backend.HOPPER

    @pytest.mark.parametrize("dtype", ["tfloat32", "bfloat16"])
    def test_what_turing_has_no_instruction_for_is_refused(self, dtype: str):
        with pytest.raises(SpecError, match=rf"t4 \(sm_75\) has no instruction for {dtype}.*it has float32, float16"):
            backends(decompose(Gemm(dtype), load_spec("t4")))  # type: ignore[arg-type]

    def test_turing_multiplies_half_precision_in_two_instructions_a_step(self):
        assert backends(decompose(Gemm("float16"), load_spec("t4")))[0] is Backend.TENSOR_CORE
        strategies = found("t4", "float16", Backend.TENSOR_CORE).strategies
        assert {(s.thread, s.l0.k) for s in strategies} == {(Tile(16, 8, 8), 16)}
        assert {s.stages for s in strategies} == {1, 2}

    def test_without_cp_async_the_next_stage_takes_registers(self):
        strategies = found("t4", "float16", Backend.TENSOR_CORE).strategies
        one, two = (next(s for s in strategies if s.stages == stages and s.l1.m == 64) for stages in (1, 2))
        held = replace(one, stages=2)
        assert registers_needed(load_spec("t4"), held) - registers_needed(load_spec("t4"), one) == (
            one.stage_bytes // (4 * one.threads)
        )
        assert registers_needed(load_spec("a100"), two) == registers_needed(load_spec("a100"), replace(two, stages=1))


class TestTensorCores:
    def test_warp_tiles_are_pairs_of_instructions(self):
        for s in found("a100", "float16", Backend.TENSOR_CORE).strategies:
            assert s.thread == Tile(16, 8, 16)
            assert s.l0.m % 16 == 0 == s.l0.n % 16
            assert s.l0.m * s.l0.n // 32 == s.accumulators

    def test_the_paper_s_favourites_are_among_them(self):
        tiles = {s.l1 for s in found("a100", "float16", Backend.TENSOR_CORE).strategies}
        assert {Tile(128, 128, 32), Tile(256, 128, 32), Tile(64, 64, 64), Tile(16, 64, 64)} <= tiles

    def test_tf32_steps_are_half_as_deep(self):
        assert {s.l0.k for s in found("a100", "tfloat32", Backend.TENSOR_CORE).strategies} == {8}

    def test_a_warpgroup_is_four_warps_and_another_one_asks_for_operands(self):
        for s in found("h200", "float16", Backend.HOPPER).strategies:
            assert s.warps == 4 + 4 * (s.l1.m // s.l0.m) * (s.l1.n // s.l0.n)
            assert (s.l0.n if s.is_turned else s.l0.m) % 64 == 0
            assert s.l1.k * s.item_bytes == 128

    def test_each_hopper_tile_is_there_alone_and_in_clusters_of_two(self):
        strategies = set(found("h200", "float16", Backend.HOPPER).strategies)
        assert {s.cluster for s in strategies} == {1, 2}
        assert all(replace(s, cluster=3 - s.cluster) in strategies for s in strategies if not s.is_turned)
        assert {s.cluster for s in found("h200", "float16", Backend.TENSOR_CORE).strategies} == {1}

    def test_few_rows_are_columns_of_the_transpose(self):
        turned = [s for s in found("h200", "float16", Backend.HOPPER).strategies if s.is_turned]
        assert {s.l1.m for s in turned} == {16, 32} and {s.l1.n for s in turned} == {64, 128}
        assert all(s.thread == s.l0 and s.cluster == 1 and s.store == "direct" for s in turned)

    def test_halves_leave_in_whole_sectors_but_for_what_an_epilogue_reads(self):
        upright = [s for s in found("h200", "float16", Backend.HOPPER).strategies if not s.is_turned]
        assert {s.store for s in upright} == {"shared"}
        finished = sieve(decompose(Gemm("float16", ops.relu()), load_spec("h200")), Backend.HOPPER).strategies
        assert {s.store for s in finished} == {"direct"}


class TestCudaCores:
    def test_lanes_and_thread_tiles_make_the_warp_tile(self):
        for s in found("a100", "float32", Backend.CUDA_CORE).strategies:
            lanes = (s.l0.m // s.thread.m) * (s.l0.n // s.thread.n)
            assert lanes == 32

    def test_half_precision_is_served_too(self):
        assert {s.dtype for s in found("a100", "float16", Backend.CUDA_CORE).strategies} == {"float16"}


class TestSkinny:
    def test_lanes_lie_along_one_axis(self):
        for s in found("a100", "float16", Backend.SKINNY).strategies:
            ratios = [getattr(s.l0, axis) // getattr(s.thread, axis) for axis in "mnk"]
            assert sorted(ratios) == [1, 1, 32]

    def test_both_few_rows_and_few_columns(self):
        tiles = {(s.l1.m, s.l1.n) for s in found("a100", "float32", Backend.SKINNY).strategies}
        assert {(n, m) for m, n in tiles} == tiles
        assert all(min(tile) <= 16 for tile in tiles)
        assert any(m == 1 for m, _ in tiles)

    def test_tf32_is_served_in_float32(self):
        assert {s.dtype for s in found("a100", "tfloat32", Backend.SKINNY).strategies} == {"float32"}


class TestFilters:
    """Each filter on its own: a device with less of one thing admits less there."""

    @pytest.mark.parametrize(
        ("change", "filter_"),
        [
            ({"registers_per_thread": 128}, "tensor_core L0 FilterByRegisters"),
            ({"L0.min_utilization": 0.2}, "tensor_core L0 FilterByUtilization"),
            ({"threads_per_block": 128}, "tensor_core L1 FilterByThreads"),
            ({"shared_per_block_bytes": 90 * 1024}, "tensor_core L1 FilterBySharedMemory"),
            ({"L1.min_utilization": 0.4}, "tensor_core L1 FilterBySharedMemory"),
            ({"L1.max_utilization": 0.4}, "tensor_core L1 FilterBySharedMemory"),
            ({"registers_per_sm": 32_768}, "tensor_core L1 FilterByOccupancy"),
            ({"mma.m16n8k16.f16.latency_cycles": 500}, "tensor_core L1 FilterByLatency"),
        ],
        ids=str,
    )
    def test_less_of_it_admits_less(self, change: dict[str, float], filter_: str):
        before = counts(found("a100", "float16", Backend.TENSOR_CORE))
        spec = what_if(load_spec("a100"), change)
        after = counts(sieve(decompose(Gemm("float16"), spec), Backend.TENSOR_CORE))
        names = list(before)
        earlier = names[: names.index(filter_)]
        assert after[filter_] < before[filter_]
        assert [after[name] for name in earlier] == [before[name] for name in earlier]

    def test_copies_divide(self):
        l0, thread = Tile(16, 16, 16), Tile(16, 8, 16)
        tile = BlockStrategy(Backend.TENSOR_CORE, "float16", l0, Tile(16, 64, 64), thread, 3)
        assert copies_divide(tile)  # 4 warps copy 1024 halves of A at a time: 16 x 64
        assert not copies_divide(BlockStrategy(Backend.TENSOR_CORE, "float16", l0, Tile(16, 64, 32), thread, 3))

    def test_one_dependent_instruction_at_a_time_is_too_few(self):
        spec = what_if(load_spec("a100"), {"blocks_per_sm": 1})
        thread = Tile(16, 8, 16)
        lonely = BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(16, 16, 16), Tile(16, 16, 64), thread, 2)
        wide = BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(64, 64, 16), Tile(128, 128, 32), thread, 2)
        assert not hides_latency(spec, lonely)
        assert hides_latency(spec, wide)


class TestResidency:
    def tile(self, stages: int = 3) -> BlockStrategy:
        return BlockStrategy(
            Backend.TENSOR_CORE, "float16", Tile(64, 64, 16), Tile(128, 128, 32), Tile(16, 8, 16), stages
        )

    def test_by_registers(self):
        assert resident_blocks(load_spec("a100"), self.tile(), registers=128) == 3  # 49 KiB of 164: shared memory
        assert resident_blocks(load_spec("a100"), self.tile(), registers=255) == 2
        assert resident_blocks(load_spec("a100"), self.tile(), registers=249) == 2

    def test_by_shared_memory_with_what_the_system_takes(self):
        """Ten stages of 16 KiB fit an SM of 164 KiB; two blocks of five leave 2 KiB for each and need 1 KiB."""
        assert resident_blocks(load_spec("a100"), self.tile(5), registers=64) == 2
        full = what_if(load_spec("a100"), {"shared.capacity_bytes": 160 * 1024, "shared_per_block_bytes": 159 * 1024})
        assert resident_blocks(full, self.tile(5), registers=64) == 1

    def test_by_warps_and_blocks(self):
        tiny = BlockStrategy(Backend.CUDA_CORE, "float32", Tile(8, 32, 1), Tile(8, 32, 8), Tile(2, 4, 1), 2)
        assert resident_blocks(load_spec("a100"), tiny, registers=32) == 32
        assert resident_blocks(load_spec("t4"), tiny, registers=32) == 16
