"""What a GPU strategy is made of: warps, threads, shared memory and accumulators, and the name of a kernel."""

import pickle

from vortex.candidates import Tile
from vortex.gpu_candidates import Backend, BlockStrategy, Variant

LARGE = BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(64, 64, 16), Tile(128, 128, 32), Tile(16, 8, 16), 3)


def test_a_large_tensor_core_block():
    assert (LARGE.warps, LARGE.threads, LARGE.accumulators) == (4, 128, 128)
    assert LARGE.stage_bytes == 2 * 128 * 32 * 2
    assert LARGE.shared_bytes == 3 * LARGE.stage_bytes == 49_152


def test_a_large_cuda_core_block():
    s = BlockStrategy(Backend.CUDA_CORE, "float32", Tile(32, 64, 1), Tile(128, 128, 8), Tile(8, 8, 1), 3)
    assert (s.warps, s.accumulators, s.shared_bytes) == (8, 64, 24_576)


def test_a_warpgroup_counts_as_four_warps_and_one_more_produces():
    s = BlockStrategy(Backend.HOPPER, "bfloat16", Tile(64, 256, 16), Tile(128, 256, 64), Tile(64, 256, 16), 4)
    assert (s.computing_warps, s.warps, s.threads, s.accumulators) == (8, 12, 384, 128)


def test_skinny_warps_share_the_depth_and_add_up_in_shared_memory():
    s = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 256, 4), Tile(4, 256, 32), Tile(4, 8, 4), 1)
    assert (s.warps, s.accumulators, s.stage_bytes) == (8, 32, 0)
    assert s.shared_bytes == 8 * 4 * 256 * 4
    alone = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 2, 256), Tile(4, 16, 256), Tile(4, 2, 8), 1)
    assert (alone.warps, alone.shared_bytes) == (8, 0)


def test_c_leaves_through_shared_memory_that_its_tile_fits():
    s = BlockStrategy(
        Backend.TENSOR_CORE, "float16", Tile(64, 64, 16), Tile(128, 128, 32), Tile(16, 8, 16), 1, "shared"
    )
    assert s.shared_bytes == 128 * 128 * 4 > s.stage_bytes


def test_hopper_keeps_barriers_and_whole_rows_of_b():
    s = BlockStrategy(Backend.HOPPER, "float16", Tile(64, 96, 16), Tile(128, 96, 64), Tile(64, 96, 16), 4)
    assert s.stage_bytes == (128 + 96) * 64 * 2
    assert s.shared_bytes == 4 * ((128 + 128) * 64 * 2 + 16)


def test_blocks_of_a_cluster_are_below_one_another():
    s = BlockStrategy(Backend.HOPPER, "float16", Tile(64, 96, 16), Tile(128, 96, 64), Tile(64, 96, 16), 4, "shared", 2)
    assert s.grid_tile == Tile(256, 96, 64) and LARGE.grid_tile == LARGE.l1
    assert Variant(s, False, True, 16).name.endswith("_s4_sh_c2_nt_v16") and str(s).endswith("clusters of 2")


def test_pieces_that_a_thread_copies():
    assert Variant(LARGE, False, False, 16).copies == 8
    assert Variant(LARGE, False, False, 2).copies == 64
    skinny = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 2, 256), Tile(4, 8, 256), Tile(4, 2, 8), 1)
    assert Variant(skinny, False, True, 16).copies == 6


def test_the_name_says_all_that_tells_kernels_apart():
    name = Variant(LARGE, False, True, 16).name
    assert name == "tc_f16_128x128x32_l0_64x64x16_t16x8x16_s3_nt_v16"
    stored = BlockStrategy(*LARGE.__dict__.values()).__dict__ | {"store": "shared"}
    assert Variant(BlockStrategy(**stored), True, False, 2).name == "tc_f16_128x128x32_l0_64x64x16_t16x8x16_s3_sh_tn_v2"


def test_values_are_plain():
    variant = Variant(LARGE, True, True, 8)
    assert pickle.loads(pickle.dumps(variant)) == variant
    assert sorted([variant, Variant(LARGE, False, True, 8)])[0].transpose_a is False
    assert "128x128x32" in str(LARGE)
    assert f"{LARGE.backend}" == "tensor_core"
