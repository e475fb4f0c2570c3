// args @A, @B, *C, M, N, K, ldc, chunk, raster; block (384, 1, 1); 163904 bytes of shared memory
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384) hp_f16_128x192x64_l0_64x192x16_t64x192x16_s4_sh_c2_nn_v16(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* __restrict__ c, int M, int N, int K, int ldc, int chunk, int raster) {
  int tall = ((M + 255) >> 8);
  int wide = (((N + 191) / 192) + (((N + 191) % 192) >> 31));
  int row = ((row_of_block((((int)blockIdx.x) >> 1), ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 256) + ((((int)blockIdx.x) & 1) * 128));
  int column = (column_of_block((((int)blockIdx.x) >> 1), ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 192);
  int origin = (((int)blockIdx.z) * chunk);
  int tiles = max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1);
  int group = warp_uniform((((int)threadIdx.x) >> 7));
  if (((int)threadIdx.x) == 0) {
    for (int stage = 0; stage < 4; ++stage) {
      mbarrier_init(shared_at(((stage * 8) + 163840)), 1);
      mbarrier_init(shared_at(((stage * 8) + 163872)), 16);
    }
  }
  mbarriers_ready_in_cluster();
  if (group == 2) {
    if (((int)threadIdx.x) == 256) {
      prefetch_map(((unsigned long long)(&(a))));
      prefetch_map(((unsigned long long)(&(b))));
      for (int t = 0; t < max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1); ++t) {
        int stage_1 = (t & 3);
        mbarrier_wait(shared_at((((t & 3) * 8) + 163872)), (((t & 7) >> 2) ^ 1));
        mbarrier_expect(shared_at((((t & 3) * 8) + 163840)), 40960);
        tensor_copy(shared_at(((t & 3) * 16384)), ((unsigned long long)(&(a))), ((t * 64) + (((int)blockIdx.z) * chunk)), row, shared_at((((t & 3) * 8) + 163840)));
        #pragma unroll
        for (int j = 0; j < 3; ++j) {
          if ((j & 1) == (((int)blockIdx.x) & 1)) {
            tensor_copy_to_all(shared_at(((((t & 3) * 24576) + (j * 8192)) + 65536)), ((unsigned long long)(&(b))), ((j * 64) + column), ((t * 64) + (((int)blockIdx.z) * chunk)), shared_at((((t & 3) * 8) + 163840)), 3);
          }
        }
      }
    }
  } else {
    int own = (group * 8192);
    alignas(64) float sums_ptr[96];
    mbarrier_wait(shared_at(163840), 0);
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      #pragma unroll
      for (int i = 0; i < 1; ++i) {
        wgmma_192_f16_nt((&(sums_ptr[0])), matrix(((group * 8192) + (k * 32)), 8192, 1024), matrix(((k * 2048) + 65536), 8192, 1024), ((k == 0) ? 0 : 1));
      }
    }
    wgmma_commit();
    for (int u = 0; u < max((((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) >> 6) - 1), 0); ++u) {
      int stage_2 = ((u + 1) & 3);
      mbarrier_wait(shared_at(((((u + 1) & 3) * 8) + 163840)), (((u + 1) & 7) >> 2));
      wgmma_fence();
      #pragma unroll
      for (int k_1 = 0; k_1 < 4; ++k_1) {
        #pragma unroll
        for (int i_1 = 0; i_1 < 1; ++i_1) {
          wgmma_192_f16_nt((&(sums_ptr[0])), matrix((((((u + 1) & 3) * 16384) + (group * 8192)) + (k_1 * 32)), 8192, 1024), matrix((((((u + 1) & 3) * 24576) + (k_1 * 2048)) + 65536), 8192, 1024), 1);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if ((((int)threadIdx.x) % 32) == 0) {
        #pragma unroll
        for (int other = 0; other < 2; ++other) {
          mbarrier_arrive_at(shared_at((((u & 3) * 8) + 163872)), other);
        }
      }
    }
    wgmma_wait<0>();
    settled<96>((&(sums_ptr[0])));
    int warp = ((((int)threadIdx.x) & 127) >> 5);
    int lane = (((int)threadIdx.x) & 31);
    bool partial = (chunk < K);
    int top = (((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + row);
    if (K <= chunk) {
      warpgroup_barrier(group);
      #pragma unroll
      for (int i_2 = 0; i_2 < 1; ++i_2) {
        #pragma unroll
        for (int q = 0; q < 3; ++q) {
          #pragma unroll
          for (int g = 0; g < 8; ++g) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
              stage_f16((((q * 16384) + (group * 8192)) + (((((int)threadIdx.x) & 127) >> 5) * 2048)), ((h * 8) + ((((int)threadIdx.x) & 31) >> 2)), ((g * 8) + ((((int)threadIdx.x) & 3) * 2)), sums_ptr[(((q * 32) + (g * 4)) + (h * 2))], sums_ptr[((((q * 32) + (g * 4)) + (h * 2)) + 1)]);
            }
          }
          __syncwarp();
          #pragma unroll
          for (int v = 0; v < 4; ++v) {
            if (((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row) < M) && ((((q * 64) + ((((int)threadIdx.x) & 7) * 8)) + column) < N)) {
              store_staged(c, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row), ldc, (((q * 64) + ((((int)threadIdx.x) & 7) * 8)) + column), (((q * 16384) + (group * 8192)) + (((((int)threadIdx.x) & 127) >> 5) * 2048)), ((v * 4) + ((((int)threadIdx.x) & 31) >> 3)), ((((int)threadIdx.x) & 7) * 8));
            }
          }
        }
      }
    }
    if (chunk < K) {
      #pragma unroll
      for (int i_3 = 0; i_3 < 1; ++i_3) {
        #pragma unroll
        for (int h_1 = 0; h_1 < 2; ++h_1) {
          if ((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row) < M) {
            #pragma unroll
            for (int g_1 = 0; g_1 < 24; ++g_1) {
              if ((((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column) < N) {
                store_pair_f16(c, (bool)1, ((int)blockIdx.z), M, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row), ldc, (((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column), sums_ptr[((g_1 * 4) + (h_1 * 2))], sums_ptr[(((g_1 * 4) + (h_1 * 2)) + 1)]);
              }
            }
          }
        }
      }
    }
  }
  cluster_sync();
}
