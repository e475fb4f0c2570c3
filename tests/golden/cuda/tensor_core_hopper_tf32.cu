// args @A, @B, *C, M, N, K, ldc, chunk, raster; block (256, 1, 1); 73776 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256) hp_tf32_64x128x32_l0_64x128x8_t64x128x8_s3_nt_v16(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* __restrict__ c, int M, int N, int K, int ldc, int chunk, int raster) {
  int tall = ((M + 63) >> 6);
  int wide = ((N + 127) >> 7);
  int first = ((int)blockIdx.x);
  int apart = blocks_in_grid();
  int origin = (((int)blockIdx.z) * chunk);
  int tiles = max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1);
  int group = warp_uniform((((int)threadIdx.x) >> 7));
  if (((int)threadIdx.x) == 0) {
    prefetch_map(((unsigned long long)(&(a))));
    prefetch_map(((unsigned long long)(&(b))));
    for (int stage = 0; stage < 3; ++stage) {
      mbarrier_init(shared_at(((stage * 8) + 73728)), 1);
      mbarrier_init(shared_at(((stage * 8) + 73752)), 4);
    }
  }
  mbarriers_ready();
  if (group == 1) {
    if (warp_uniform(((((int)threadIdx.x) & 127) >> 5)) == 0) {
      bool asks = elected();
      alignas(64) int ring_ptr[7];
      ring_ptr[0] = 0;
      ring_ptr[1] = 1;
      int condval;
      if ((((M + 63) >> 6) == 1) || (((N + 127) >> 7) == 1)) {
        condval = spread(((int)blockIdx.x), max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1));
      } else {
        condval = 0;
      }
      ring_ptr[2] = ((condval * 32) + (((int)blockIdx.z) * chunk));
      ring_ptr[4] = ((((((N + 127) >> 7) == 1) && (((10 >> min(max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1), 31)) & 1) == 1)) ? 0 : 16384) + 8192);
      ring_ptr[5] = ((int)blockIdx.x);
      ring_ptr[6] = 0;
      #pragma unroll 1
      while (1) {
        if (!((ring_ptr[5] < (((M + 63) >> 6) * ((N + 127) >> 7))))) { break; }
        int row = (row_of_tile(ring_ptr[5], ((M + 63) >> 6), ((N + 127) >> 7), raster) * 64);
        int column = (column_of_tile(ring_ptr[5], ((M + 63) >> 6), ((N + 127) >> 7), raster) * 128);
        ring_ptr[3] = ((ring_ptr[6] < 3) ? 24576 : ring_ptr[4]);
        #pragma unroll 1
for (int _t = 0; _t < max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1); ++_t) {
          mbarrier_wait(shared_at(((ring_ptr[0] * 8) + 73752)), ring_ptr[1]);
          if (asks) {
            mbarrier_expect(shared_at(((ring_ptr[0] * 8) + 73728)), ring_ptr[3]);
            tensor_copy(shared_at((ring_ptr[0] * 8192)), ((unsigned long long)(&(a))), ring_ptr[2], row, shared_at(((ring_ptr[0] * 8) + 73728)));
            if (8192 < ring_ptr[3]) {
              tensor_copy(shared_at(((ring_ptr[0] * 16384) + 24576)), ((unsigned long long)(&(b))), ring_ptr[2], column, shared_at(((ring_ptr[0] * 8) + 73728)));
            }
          }
          ring_ptr[2] = (((ring_ptr[2] + 32) < ((max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1) * 32) + (((int)blockIdx.z) * chunk))) ? (ring_ptr[2] + 32) : (((int)blockIdx.z) * chunk));
          ring_ptr[1] = (ring_ptr[1] ^ ((ring_ptr[0] == 2) ? 1 : 0));
          ring_ptr[0] = ((ring_ptr[0] == 2) ? 0 : (ring_ptr[0] + 1));
        }
        ring_ptr[6] = min((max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1) + ring_ptr[6]), 3);
        ring_ptr[5] = (ring_ptr[5] + apart);
      }
    }
  } else {
    int own = (group * 8192);
    int warp = ((((int)threadIdx.x) & 127) >> 5);
    int lane = (((int)threadIdx.x) & 31);
    bool partial = (chunk < K);
    alignas(64) float sums_ptr[64];
    alignas(64) int ring_ptr_1[4];
    ring_ptr_1[0] = 0;
    ring_ptr_1[1] = 0;
    ring_ptr_1[3] = ((int)blockIdx.x);
    #pragma unroll 1
    while (1) {
      if (!((ring_ptr_1[3] < (((M + 63) >> 6) * ((N + 127) >> 7))))) { break; }
      int row_1 = warp_uniform((row_of_tile(ring_ptr_1[3], ((M + 63) >> 6), ((N + 127) >> 7), raster) * 64));
      int column_1 = warp_uniform((column_of_tile(ring_ptr_1[3], ((M + 63) >> 6), ((N + 127) >> 7), raster) * 128));
      mbarrier_wait(shared_at(((ring_ptr_1[0] * 8) + 73728)), ring_ptr_1[1]);
      wgmma_fence();
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          wgmma_128_tf32_nn((&(sums_ptr[0])), matrix((((ring_ptr_1[0] * 8192) + (group * 8192)) + (k * 32)), 4096, 1024), matrix((((ring_ptr_1[0] * 16384) + (k * 32)) + 24576), 4096, 1024), ((k == 0) ? 0 : 1));
        }
      }
      wgmma_commit();
      for (int _u = 0; _u < max((((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) >> 5) - 1), 0); ++_u) {
        ring_ptr_1[2] = ring_ptr_1[0];
        ring_ptr_1[1] = (ring_ptr_1[1] ^ ((ring_ptr_1[0] == 2) ? 1 : 0));
        ring_ptr_1[0] = ((ring_ptr_1[0] == 2) ? 0 : (ring_ptr_1[0] + 1));
        mbarrier_wait(shared_at(((ring_ptr_1[0] * 8) + 73728)), ring_ptr_1[1]);
        wgmma_fence();
        #pragma unroll
        for (int k_1 = 0; k_1 < 4; ++k_1) {
          #pragma unroll
          for (int i_1 = 0; i_1 < 1; ++i_1) {
            wgmma_128_tf32_nn((&(sums_ptr[0])), matrix((((ring_ptr_1[0] * 8192) + (group * 8192)) + (k_1 * 32)), 4096, 1024), matrix((((ring_ptr_1[0] * 16384) + (k_1 * 32)) + 24576), 4096, 1024), 1);
          }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if ((((int)threadIdx.x) % 32) == 0) {
          mbarrier_arrive(shared_at(((ring_ptr_1[2] * 8) + 73752)));
        }
      }
      wgmma_wait<0>();
      settled<64>((&(sums_ptr[0])));
      if ((((int)threadIdx.x) % 32) == 0) {
        mbarrier_arrive(shared_at(((ring_ptr_1[0] * 8) + 73752)));
      }
      ring_ptr_1[1] = (ring_ptr_1[1] ^ ((ring_ptr_1[0] == 2) ? 1 : 0));
      ring_ptr_1[0] = ((ring_ptr_1[0] == 2) ? 0 : (ring_ptr_1[0] + 1));
      int top = (((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + row_1);
      #pragma unroll
      for (int i_2 = 0; i_2 < 1; ++i_2) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
          if ((((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row_1) < M) {
            #pragma unroll
            for (int g = 0; g < 16; ++g) {
              if ((((g * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1) < N) {
                store_pair_f32(c, (chunk < K), ((int)blockIdx.z), M, (((((group * 64) + (((((int)threadIdx.x) & 127) >> 5) * 16)) + (h * 8)) + ((((int)threadIdx.x) & 31) >> 2)) + row_1), ldc, (((g * 8) + ((((int)threadIdx.x) & 3) * 2)) + column_1), sums_ptr[((g * 4) + (h * 2))], sums_ptr[(((g * 4) + (h * 2)) + 1)]);
              }
            }
          }
        }
      }
      ring_ptr_1[3] = (ring_ptr_1[3] + apart);
    }
  }
}
