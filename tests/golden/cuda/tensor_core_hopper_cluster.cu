// args @A, @B, *C, M, N, K, ldc, chunk, raster; block (384, 1, 1); 180288 bytes of shared memory
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384) hp_f16_128x192x64_l0_64x192x16_t64x192x16_s4_sh_c2_nn_v16(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* __restrict__ c, int M, int N, int K, int ldc, int chunk, int raster) {
  int tall = ((M + 255) >> 8);
  int wide = (((N + 191) / 192) + (((N + 191) % 192) >> 31));
  int first = (((int)blockIdx.x) >> 1);
  int apart = (blocks_in_grid() >> 1);
  int origin = (((int)blockIdx.z) * chunk);
  int tiles = max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1);
  int group = warp_uniform((((int)threadIdx.x) >> 7));
  if (((int)threadIdx.x) == 0) {
    prefetch_map(((unsigned long long)(&(a))));
    prefetch_map(((unsigned long long)(&(b))));
    for (int stage = 0; stage < 4; ++stage) {
      mbarrier_init(shared_at(((stage * 8) + 180224)), 1);
      mbarrier_init(shared_at(((stage * 8) + 180256)), 16);
    }
  }
  mbarriers_ready_in_cluster();
  if (group == 2) {
    if (warp_uniform(((((int)threadIdx.x) & 127) >> 5)) == 0) {
      bool asks = elected();
      alignas(64) int ring_ptr[7];
      ring_ptr[0] = 0;
      ring_ptr[1] = 1;
      int condval;
      if ((((M + 255) >> 8) == 1) || ((((N + 191) / 192) + (((N + 191) % 192) >> 31)) == 1)) {
        condval = spread((((int)blockIdx.x) >> 1), max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1));
      } else {
        condval = 0;
      }
      ring_ptr[2] = ((condval * 64) + (((int)blockIdx.z) * chunk));
      ring_ptr[4] = (((((((N + 191) / 192) + (((N + 191) % 192) >> 31)) == 1) && (((22 >> min(max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1), 31)) & 1) == 1)) ? 0 : 24576) + 16384);
      ring_ptr[5] = (((int)blockIdx.x) >> 1);
      ring_ptr[6] = 0;
      #pragma unroll 1
      while (1) {
        if (!((ring_ptr[5] < (((M + 255) >> 8) * (((N + 191) / 192) + (((N + 191) % 192) >> 31)))))) { break; }
        int row = ((row_of_tile(ring_ptr[5], ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 256) + ((((int)blockIdx.x) & 1) * 128));
        int column = (column_of_tile(ring_ptr[5], ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 192);
        ring_ptr[3] = ((ring_ptr[6] < 4) ? 40960 : ring_ptr[4]);
        #pragma unroll 1
for (int _t = 0; _t < max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1); ++_t) {
          mbarrier_wait(shared_at(((ring_ptr[0] * 8) + 180256)), ring_ptr[1]);
          if (asks) {
            mbarrier_expect(shared_at(((ring_ptr[0] * 8) + 180224)), ring_ptr[3]);
            tensor_copy(shared_at((ring_ptr[0] * 16384)), ((unsigned long long)(&(a))), ring_ptr[2], row, shared_at(((ring_ptr[0] * 8) + 180224)));
            if (16384 < ring_ptr[3]) {
              #pragma unroll
              for (int j = 0; j < 3; ++j) {
                if ((j & 1) == (((int)blockIdx.x) & 1)) {
                  tensor_copy_to_all(shared_at((((ring_ptr[0] * 24576) + (j * 8192)) + 65536)), ((unsigned long long)(&(b))), ((j * 64) + column), ring_ptr[2], shared_at(((ring_ptr[0] * 8) + 180224)), 3);
                }
              }
            }
          }
          ring_ptr[2] = (((ring_ptr[2] + 64) < ((max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1) * 64) + (((int)blockIdx.z) * chunk))) ? (ring_ptr[2] + 64) : (((int)blockIdx.z) * chunk));
          ring_ptr[1] = (ring_ptr[1] ^ ((ring_ptr[0] == 3) ? 1 : 0));
          ring_ptr[0] = ((ring_ptr[0] == 3) ? 0 : (ring_ptr[0] + 1));
        }
        ring_ptr[6] = min((max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) / 64), 1) + ring_ptr[6]), 4);
        ring_ptr[5] = (ring_ptr[5] + apart);
      }
      for (int _left = 0; _left < 4; ++_left) {
        mbarrier_wait(shared_at(((ring_ptr[0] * 8) + 180256)), ring_ptr[1]);
        ring_ptr[1] = (ring_ptr[1] ^ ((ring_ptr[0] == 3) ? 1 : 0));
        ring_ptr[0] = ((ring_ptr[0] == 3) ? 0 : (ring_ptr[0] + 1));
      }
    }
  } else {
    int own = (group * 8192);
    int warp = ((((int)threadIdx.x) & 127) >> 5);
    int lane = (((int)threadIdx.x) & 31);
    bool partial = (chunk < K);
    alignas(64) float sums_ptr[96];
    alignas(64) int ring_ptr_1[4];
    ring_ptr_1[0] = 0;
    ring_ptr_1[1] = 0;
    ring_ptr_1[3] = (((int)blockIdx.x) >> 1);
    #pragma unroll 1
    while (1) {
      if (!((ring_ptr_1[3] < (((M + 255) >> 8) * (((N + 191) / 192) + (((N + 191) % 192) >> 31)))))) { break; }
      int row_1 = warp_uniform(((row_of_tile(ring_ptr_1[3], ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 256) + ((((int)blockIdx.x) & 1) * 128)));
      int column_1 = warp_uniform((column_of_tile(ring_ptr_1[3], ((M + 255) >> 8), (((N + 191) / 192) + (((N + 191) % 192) >> 31)), max((raster / 2), 1)) * 192));
      mbarrier_wait(shared_at(((ring_ptr_1[0] * 8) + 180224)), ring_ptr_1[1]);
      wgmma_fence();
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          wgmma_192_f16_nt((&(sums_ptr[0])), matrix((((ring_ptr_1[0] * 16384) + (group * 8192)) + (k * 32)), 8192, 1024), matrix((((ring_ptr_1[0] * 24576) + (k * 2048)) + 65536), 8192, 1024), ((k == 0) ? 0 : 1));
        }
      }
      wgmma_commit();
      for (int _u = 0; _u < max((((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 63) >> 6) - 1), 0); ++_u) {
        ring_ptr_1[2] = ring_ptr_1[0];
        ring_ptr_1[1] = (ring_ptr_1[1] ^ ((ring_ptr_1[0] == 3) ? 1 : 0));
        ring_ptr_1[0] = ((ring_ptr_1[0] == 3) ? 0 : (ring_ptr_1[0] + 1));
        mbarrier_wait(shared_at(((ring_ptr_1[0] * 8) + 180224)), ring_ptr_1[1]);
        wgmma_fence();
        #pragma unroll
        for (int k_1 = 0; k_1 < 4; ++k_1) {
          #pragma unroll
          for (int i_1 = 0; i_1 < 1; ++i_1) {
            wgmma_192_f16_nt((&(sums_ptr[0])), matrix((((ring_ptr_1[0] * 16384) + (group * 8192)) + (k_1 * 32)), 8192, 1024), matrix((((ring_ptr_1[0] * 24576) + (k_1 * 2048)) + 65536), 8192, 1024), 1);
          }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if ((((int)threadIdx.x) % 32) == 0) {
          mbarrier_arrive_in_all<2>(shared_at(((ring_ptr_1[2] * 8) + 180256)));
        }
      }
      wgmma_wait<0>();
      settled<96>((&(sums_ptr[0])));
      if ((((int)threadIdx.x) % 32) == 0) {
        mbarrier_arrive_in_all<2>(shared_at(((ring_ptr_1[0] * 8) + 180256)));
      }
      ring_ptr_1[1] = (ring_ptr_1[1] ^ ((ring_ptr_1[0] == 3) ? 1 : 0));
      ring_ptr_1[0] = ((ring_ptr_1[0] == 3) ? 0 : (ring_ptr_1[0] + 1));
      int top = (((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + row_1);
      if (K <= chunk) {
        #pragma unroll
        for (int i_2 = 0; i_2 < 1; ++i_2) {
          #pragma unroll
          for (int q = 0; q < 3; ++q) {
            #pragma unroll
            for (int g = 0; g < 8; ++g) {
              #pragma unroll
              for (int h = 0; h < 2; ++h) {
                stage_f16((((group * 8192) + (((((int)threadIdx.x) & 127) >> 5) * 2048)) + 163840), ((h * 8) + ((((int)threadIdx.x) & 31) >> 2)), ((g * 8) + ((((int)threadIdx.x) & 3) * 2)), sums_ptr[(((q * 32) + (g * 4)) + (h * 2))], sums_ptr[((((q * 32) + (g * 4)) + (h * 2)) + 1)]);
              }
            }
            __syncwarp();
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
              if (((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row_1) < M) && ((((q * 64) + ((((int)threadIdx.x) & 7) * 8)) + column_1) < N)) {
                store_staged(c, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (v * 4)) + ((((int)threadIdx.x) & 31) >> 3)) + row_1), ldc, (((q * 64) + ((((int)threadIdx.x) & 7) * 8)) + column_1), (((group * 8192) + (((((int)threadIdx.x) & 127) >> 5) * 2048)) + 163840), ((v * 4) + ((((int)threadIdx.x) & 31) >> 3)), ((((int)threadIdx.x) & 7) * 8));
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
              for (int g_1 = 0; g_1 < 24; ++g_1) {
                if ((((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1) < N) {
                  store_pair_f16(c, (bool)1, ((int)blockIdx.z), M, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h_1 * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row_1), ldc, (((g_1 * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1), sums_ptr[((g_1 * 4) + (h_1 * 2))], sums_ptr[(((g_1 * 4) + (h_1 * 2)) + 1)]);
                }
              }
            }
          }
        }
      }
      ring_ptr_1[3] = (ring_ptr_1[3] + apart);
    }
  }
}
