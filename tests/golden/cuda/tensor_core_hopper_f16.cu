// args @A, @B, *C, M, N, K, ldc, chunk, raster; block (384, 1, 1); 114752 bytes of shared memory
extern "C" __global__ void __launch_bounds__(384) hp_f16_128x64x64_l0_64x64x16_t64x64x16_s4_sh_nn_v16(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* __restrict__ c, int M, int N, int K, int ldc, int chunk, int raster) {
  int tall = ((M + 127) >> 7);
  int wide = ((N + 63) >> 6);
  int first = ((int)blockIdx.x);
  int apart = blocks_in_grid();
  int turns = turns_of_block(((int)blockIdx.x), apart, (((M + 127) >> 7) * ((N + 63) >> 6)));
  int origin = (((int)blockIdx.z) * chunk);
  int tiles = max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1);
  int group = warp_uniform((((int)threadIdx.x) >> 7));
  if (((int)threadIdx.x) == 0) {
    for (int stage = 0; stage < 4; ++stage) {
      mbarrier_init(shared_at(((stage * 8) + 114688)), 1);
      mbarrier_init(shared_at(((stage * 8) + 114720)), 8);
    }
  }
  mbarriers_ready();
  if (group == 2) {
    if (((int)threadIdx.x) == 256) {
      prefetch_map(((unsigned long long)(&(a))));
      prefetch_map(((unsigned long long)(&(b))));
      for (int turn = 0; turn < turns; ++turn) {
        int row = (row_of_block((((int)blockIdx.x) + (turn * apart)), ((M + 127) >> 7), ((N + 63) >> 6), raster) * 128);
        int column = (column_of_block((((int)blockIdx.x) + (turn * apart)), ((M + 127) >> 7), ((N + 63) >> 6), raster) * 64);
        #pragma unroll 1
for (int t = 0; t < max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1); ++t) {
          int use = ((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t);
          int stage_1 = (((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3);
          mbarrier_wait(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 8) + 114720)), (((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 7) >> 2) ^ 1));
          mbarrier_expect(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 8) + 114688)), 24576);
          tensor_copy(shared_at(((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 16384)), ((unsigned long long)(&(a))), ((t * 64) + (((int)blockIdx.z) * chunk)), row, shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 8) + 114688)));
          #pragma unroll
          for (int j = 0; j < 1; ++j) {
            tensor_copy(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 8192) + 65536)), ((unsigned long long)(&(b))), column, ((t * 64) + (((int)blockIdx.z) * chunk)), shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + t) & 3) * 8) + 114688)));
          }
        }
      }
    }
  } else {
    int own = (group * 8192);
    int warp = ((((int)threadIdx.x) & 127) >> 5);
    int lane = (((int)threadIdx.x) & 31);
    bool partial = (chunk < K);
    alignas(64) float sums_ptr[32];
    for (int turn_1 = 0; turn_1 < turns; ++turn_1) {
      int begin = (turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1));
      mbarrier_wait(shared_at(((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) & 3) * 8) + 114688)), (((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) & 7) >> 2));
      wgmma_fence();
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          wgmma_64_f16_nt((&(sums_ptr[0])), matrix((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) & 3) * 16384) + (group * 8192)) + (k * 32)), 8192, 1024), matrix((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) & 3) * 8192) + (k * 2048)) + 65536), 8192, 1024), ((k == 0) ? 0 : 1));
        }
      }
      wgmma_commit();
      for (int u = 0; u < max((((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) >> 6) - 1), 0); ++u) {
        int use_1 = (((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1);
        int stage_2 = ((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1) & 3);
        mbarrier_wait(shared_at(((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1) & 3) * 8) + 114688)), (((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1) & 7) >> 2));
        wgmma_fence();
        #pragma unroll
        for (int k_1 = 0; k_1 < 4; ++k_1) {
          #pragma unroll
          for (int i_1 = 0; i_1 < 1; ++i_1) {
            wgmma_64_f16_nt((&(sums_ptr[0])), matrix((((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1) & 3) * 16384) + (group * 8192)) + (k_1 * 32)), 8192, 1024), matrix((((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) + 1) & 3) * 8192) + (k_1 * 2048)) + 65536), 8192, 1024), 1);
          }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if ((((int)threadIdx.x) % 32) == 0) {
          mbarrier_arrive(shared_at((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + u) & 3) * 8) + 114720)));
        }
      }
      wgmma_wait<0>();
      settled<32>((&(sums_ptr[0])));
      if ((((int)threadIdx.x) % 32) == 0) {
        mbarrier_arrive(shared_at(((((((turn_1 + 1) * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1)) + 3) & 3) * 8) + 114720)));
      }
      int row_1 = (row_of_block((((int)blockIdx.x) + (turn_1 * apart)), ((M + 127) >> 7), ((N + 63) >> 6), raster) * 128);
      int column_1 = (column_of_block((((int)blockIdx.x) + (turn_1 * apart)), ((M + 127) >> 7), ((N + 63) >> 6), raster) * 64);
      int top = (((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + row_1);
      if (K <= chunk) {
        #pragma unroll
        for (int i_2 = 0; i_2 < 1; ++i_2) {
          #pragma unroll
          for (int q = 0; q < 1; ++q) {
            #pragma unroll
            for (int g = 0; g < 8; ++g) {
              #pragma unroll
              for (int h = 0; h < 2; ++h) {
                stage_f16((((group * 8192) + (((((int)threadIdx.x) & 127) >> 5) * 2048)) + 98304), ((h * 8) + ((((int)threadIdx.x) & 31) >> 2)), ((g * 8) + ((((int)threadIdx.x) & 3) * 2)), sums_ptr[((g * 4) + (h * 2))], sums_ptr[(((g * 4) + (h * 2)) + 1)]);
              }
            }
            __syncwarp();
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
              if (((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row_1) < M) && ((((((int)threadIdx.x) & 7) * 8) + column_1) < N)) {
                store_staged(c, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row_1), ldc, (((((int)threadIdx.x) & 7) * 8) + column_1), (((group * 8192) + (((((int)threadIdx.x) & 127) >> 5) * 2048)) + 98304), ((v * 4) + ((((int)threadIdx.x) & 31) >> 3)), ((((int)threadIdx.x) & 7) * 8));
              }
            }
            __syncwarp();
          }
        }
      }
      if (chunk < K) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 1; ++i_3) {
          #pragma unroll
          for (int h_1 = 0; h_1 < 2; ++h_1) {
            if ((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row_1) < M) {
              #pragma unroll
              for (int g_1 = 0; g_1 < 8; ++g_1) {
                if ((((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1) < N) {
                  store_pair_f16(c, (bool)1, ((int)blockIdx.z), M, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row_1), ldc, (((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1), sums_ptr[((g_1 * 4) + (h_1 * 2))], sums_ptr[(((g_1 * 4) + (h_1 * 2)) + 1)]);
                }
              }
            }
          }
        }
      }
    }
  }
}
