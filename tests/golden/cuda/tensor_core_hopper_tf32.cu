// args @A, @B, *C, M, N, K, ldc, chunk, raster; block (256, 1, 1); 73776 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256) hp_tf32_64x128x32_l0_64x128x8_t64x128x8_s3_nt_v16(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* __restrict__ c, int M, int N, int K, int ldc, int chunk, int raster) {
  int tall = ((M + 63) >> 6);
  int wide = ((N + 127) >> 7);
  int first = ((int)blockIdx.x);
  int apart = blocks_in_grid();
  int turns = turns_of_block(((int)blockIdx.x), apart, (((M + 63) >> 6) * ((N + 127) >> 7)));
  int origin = (((int)blockIdx.z) * chunk);
  int tiles = max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1);
  int group = warp_uniform((((int)threadIdx.x) >> 7));
  if (((int)threadIdx.x) == 0) {
    for (int stage = 0; stage < 3; ++stage) {
      mbarrier_init(shared_at(((stage * 8) + 73728)), 1);
      mbarrier_init(shared_at(((stage * 8) + 73752)), 4);
    }
  }
  mbarriers_ready();
  if (group == 1) {
    if (((int)threadIdx.x) == 128) {
      prefetch_map(((unsigned long long)(&(a))));
      prefetch_map(((unsigned long long)(&(b))));
      for (int turn = 0; turn < turns; ++turn) {
        int row = (row_of_block((((int)blockIdx.x) + (turn * apart)), ((M + 63) >> 6), ((N + 127) >> 7), raster) * 64);
        int column = (column_of_block((((int)blockIdx.x) + (turn * apart)), ((M + 63) >> 6), ((N + 127) >> 7), raster) * 128);
        #pragma unroll 1
for (int t = 0; t < max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1); ++t) {
          int use = ((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t);
          int stage_1 = (((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3);
          mbarrier_wait(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 8) + 73752)), (((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 6) / 3) ^ 1));
          mbarrier_expect(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 8) + 73728)), 24576);
          tensor_copy(shared_at(((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 8192)), ((unsigned long long)(&(a))), ((t * 32) + (((int)blockIdx.z) * chunk)), row, shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 8) + 73728)));
          tensor_copy(shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 16384) + 24576)), ((unsigned long long)(&(b))), ((t * 32) + (((int)blockIdx.z) * chunk)), column, shared_at((((((turn * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + t) % 3) * 8) + 73728)));
        }
      }
    }
  } else {
    int own = (group * 8192);
    int warp = ((((int)threadIdx.x) & 127) >> 5);
    int lane = (((int)threadIdx.x) & 31);
    bool partial = (chunk < K);
    alignas(64) float sums_ptr[64];
    for (int turn_1 = 0; turn_1 < turns; ++turn_1) {
      int begin = (turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1));
      mbarrier_wait(shared_at(((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) % 3) * 8) + 73728)), (((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) % 6) / 3));
      wgmma_fence();
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          wgmma_128_tf32_nn((&(sums_ptr[0])), matrix((((group * 8192) + (((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) % 3) * 8192)) + (k * 32)), 4096, 1024), matrix((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) % 3) * 16384) + (k * 32)) + 24576), 4096, 1024), ((k == 0) ? 0 : 1));
        }
      }
      wgmma_commit();
      for (int u = 0; u < max((((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) >> 5) - 1), 0); ++u) {
        int use_1 = (((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1);
        int stage_2 = ((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1) % 3);
        mbarrier_wait(shared_at(((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1) % 3) * 8) + 73728)), (((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1) % 6) / 3));
        wgmma_fence();
        #pragma unroll
        for (int k_1 = 0; k_1 < 4; ++k_1) {
          #pragma unroll
          for (int i_1 = 0; i_1 < 1; ++i_1) {
            wgmma_128_tf32_nn((&(sums_ptr[0])), matrix((((group * 8192) + (((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1) % 3) * 8192)) + (k_1 * 32)), 4096, 1024), matrix((((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) + 1) % 3) * 16384) + (k_1 * 32)) + 24576), 4096, 1024), 1);
          }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if ((((int)threadIdx.x) % 32) == 0) {
          mbarrier_arrive(shared_at((((((turn_1 * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + u) % 3) * 8) + 73752)));
        }
      }
      wgmma_wait<0>();
      settled<64>((&(sums_ptr[0])));
      if ((((int)threadIdx.x) % 32) == 0) {
        mbarrier_arrive(shared_at(((((((turn_1 + 1) * max(((min(chunk, (K - (((int)blockIdx.z) * chunk))) + 31) / 32), 1)) + 2) % 3) * 8) + 73752)));
      }
      int row_1 = (row_of_block((((int)blockIdx.x) + (turn_1 * apart)), ((M + 63) >> 6), ((N + 127) >> 7), raster) * 64);
      int column_1 = (column_of_block((((int)blockIdx.x) + (turn_1 * apart)), ((M + 63) >> 6), ((N + 127) >> 7), raster) * 128);
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
    }
  }
}
