// args *A, *B, *C, M, N, K, lda, ldb, ldc, chunk, raster; block (32, 4, 1); 256 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) sk_f16_4x8x512_l0_4x4x256_t4x4x8_s1_nt_v16(half* __restrict__ A, half* __restrict__ B, float* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 3) >> 2), ((N + 7) >> 3), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 3) >> 2), ((N + 7) >> 3), raster);
  alignas(64) float total_ptr[16];
  alignas(64) float own_ptr[1];
  alignas(64) half left_ptr[32];
  alignas(64) half right_ptr[32];
  int i0 = (row_block * 4);
  int j0 = ((column_block * 8) + ((((int)threadIdx.y) >> 1) * 4));
  own_ptr[0] = 0x0p+0f/*0.000000e+00*/;
  #pragma unroll
  for (int e = 0; e < 16; ++e) {
    total_ptr[e] = 0x0p+0f/*0.000000e+00*/;
  }
  for (int turn = 0; turn < ((chunk + 511) >> 9); ++turn) {
    int k0 = ((((turn * 512) + ((((int)threadIdx.y) & 1) * 256)) + (((int)threadIdx.x) * 8)) + (((int)blockIdx.z) * chunk));
    #pragma unroll
    for (int p = 0; p < 4; ++p) {
      copy_16((&(left_ptr[(p * 8)])), ((void*)at(A, ((row_block * 4) + p), lda, ((((turn * 512) + ((((int)threadIdx.y) & 1) * 256)) + (((int)threadIdx.x) * 8)) + (((int)blockIdx.z) * chunk)))), ((((row_block * 4) + p) < M) && (((((turn * 512) + ((((int)threadIdx.y) & 1) * 256)) + (((int)threadIdx.x) * 8)) + (((int)blockIdx.z) * chunk)) < K)));
    }
    #pragma unroll
    for (int p_1 = 0; p_1 < 4; ++p_1) {
      copy_16((&(right_ptr[(p_1 * 8)])), ((void*)at(B, (((column_block * 8) + ((((int)threadIdx.y) >> 1) * 4)) + p_1), ldb, ((((turn * 512) + ((((int)threadIdx.y) & 1) * 256)) + (((int)threadIdx.x) * 8)) + (((int)blockIdx.z) * chunk)))), (((((column_block * 8) + ((((int)threadIdx.y) >> 1) * 4)) + p_1) < N) && (((((turn * 512) + ((((int)threadIdx.y) & 1) * 256)) + (((int)threadIdx.x) * 8)) + (((int)blockIdx.z) * chunk)) < K)));
    }
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
          total_ptr[((i * 4) + j)] = (total_ptr[((i * 4) + j)] + (((float)left_ptr[((i * 8) + k)]) * ((float)right_ptr[((j * 8) + k)])));
        }
      }
    }
  }
  #pragma unroll
  for (int e_1 = 0; e_1 < 16; ++e_1) {
    total_ptr[e_1] = sum_of_lanes(total_ptr[e_1]);
  }
  float* const product_ptr = (float*)(shared_memory + 0);
  int place = (((((int)threadIdx.y) & 1) * 32) + ((((int)threadIdx.y) >> 1) * 4));
  #pragma unroll
  for (int group = 0; group < 1; ++group) {
    own_ptr[0] = ((((int)threadIdx.x) == 15) ? total_ptr[15] : ((((int)threadIdx.x) == 14) ? total_ptr[14] : ((((int)threadIdx.x) == 13) ? total_ptr[13] : ((((int)threadIdx.x) == 12) ? total_ptr[12] : ((((int)threadIdx.x) == 11) ? total_ptr[11] : ((((int)threadIdx.x) == 10) ? total_ptr[10] : ((((int)threadIdx.x) == 9) ? total_ptr[9] : ((((int)threadIdx.x) == 8) ? total_ptr[8] : ((((int)threadIdx.x) == 7) ? total_ptr[7] : ((((int)threadIdx.x) == 6) ? total_ptr[6] : ((((int)threadIdx.x) == 5) ? total_ptr[5] : ((((int)threadIdx.x) == 4) ? total_ptr[4] : ((((int)threadIdx.x) == 3) ? total_ptr[3] : ((((int)threadIdx.x) == 2) ? total_ptr[2] : ((((int)threadIdx.x) == 1) ? total_ptr[1] : ((((int)threadIdx.x) == 0) ? total_ptr[0] : 0x0p+0f/*0.000000e+00*/))))))))))))))));
    if (((int)threadIdx.x) < 16) {
      product_ptr[(((((((int)threadIdx.y) & 1) * 32) + ((((int)threadIdx.x) >> 2) * 8)) + ((((int)threadIdx.y) >> 1) * 4)) + (((int)threadIdx.x) & 3))] = own_ptr[0];
    }
  }
  __syncthreads();
  for (int turn_1 = 0; turn_1 < 1; ++turn_1) {
    int element = ((((int)threadIdx.y) * 32) + ((int)threadIdx.x));
    if (((((int)threadIdx.y) < 1) && ((((row_block * 4) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) < M)) && (((column_block * 8) + (((int)threadIdx.x) & 7)) < N)) {
      own_ptr[0] = 0x0p+0f/*0.000000e+00*/;
      #pragma unroll
      for (int d = 0; d < 2; ++d) {
        own_ptr[0] = (own_ptr[0] + product_ptr[(((d * 32) + (((int)threadIdx.y) * 32)) + ((int)threadIdx.x))]);
      }
      store_f16_1(C, (chunk < K), ((int)blockIdx.z), M, (((row_block * 4) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)), ldc, ((column_block * 8) + (((int)threadIdx.x) & 7)), (&(own_ptr[0])));
    }
  }
}
