// args *A, *B, *C, M, N, K, lda, ldb, ldc, chunk, raster; block (8, 4, 4); 36864 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) cc_f32_64x128x16_l0_32x64x1_t8x8x1_s3_nn_v16(float* __restrict__ A, float* __restrict__ B, float* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 127) >> 7), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 127) >> 7), raster);
  alignas(64) float product_fragment_ptr[64];
  alignas(64) float A_fragment_ptr[32];
  alignas(64) float B_fragment_ptr[32];
  float* const A_shared_ptr = (float*)(shared_memory + 0);
  float* const B_shared_ptr = (float*)(shared_memory + 12288);
  #pragma unroll
  for (int i_2_0_init = 0; i_2_0_init < 8; ++i_2_0_init) {
    #pragma unroll
    for (int j_2_0_init = 0; j_2_0_init < 2; ++j_2_0_init) {
      #pragma unroll
      for (int j_2_2_init = 0; j_2_2_init < 4; ++j_2_2_init) {
        product_fragment_ptr[(((i_2_0_init * 8) + (j_2_0_init * 4)) + j_2_2_init)] = 0x0p+0f/*0.000000e+00*/;
      }
    }
  }
  #pragma unroll
  for (int early = 0; early < 2; ++early) {
    if (early < ((chunk + 15) >> 4)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 2; ++ax0_0_ax1_0_fused) {
        cp_async_16((&(A_shared_ptr[((((((early * 1024) + (ax0_0_ax1_0_fused * 512)) + (((int)threadIdx.z) * 128)) + (((int)threadIdx.y) * 32)) + ((((int)threadIdx.x) >> 2) * 16)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 4))])), ((void*)at(A, (((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), lda, (((early * 16) + ((((int)threadIdx.x) & 3) * 4)) + (((int)blockIdx.z) * chunk)))), (((((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < M) && ((((early * 16) + ((((int)threadIdx.x) & 3) * 4)) + (((int)blockIdx.z) * chunk)) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 4; ++ax0_0_ax1_0_fused_1) {
        cp_async_16((&(B_shared_ptr[(((((early * 2048) + (ax0_0_ax1_0_fused_1 * 512)) + (((int)threadIdx.z) * 128)) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4))])), ((void*)at(B, ((((early * 16) + (ax0_0_ax1_0_fused_1 * 4)) + (((int)blockIdx.z) * chunk)) + ((int)threadIdx.z)), ldb, (((column_block * 128) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4)))), (((((column_block * 128) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4)) < N) && (((((early * 16) + (ax0_0_ax1_0_fused_1 * 4)) + (((int)blockIdx.z) * chunk)) + ((int)threadIdx.z)) < K)));
      }
    }
    cp_async_commit();
  }
  for (int k_0 = 0; k_0 < ((chunk + 15) >> 4); ++k_0) {
    cp_async_wait<1>();
    __syncthreads();
    if ((k_0 + 2) < ((chunk + 15) >> 4)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 2; ++ax0_0_ax1_0_fused_2) {
        cp_async_16((&(A_shared_ptr[((((((((k_0 + 2) % 3) * 1024) + (ax0_0_ax1_0_fused_2 * 512)) + (((int)threadIdx.z) * 128)) + (((int)threadIdx.y) * 32)) + ((((int)threadIdx.x) >> 2) * 16)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 4))])), ((void*)at(A, (((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), lda, ((((k_0 * 16) + ((((int)threadIdx.x) & 3) * 4)) + (((int)blockIdx.z) * chunk)) + 32))), (((((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < M) && (((((k_0 * 16) + ((((int)threadIdx.x) & 3) * 4)) + (((int)blockIdx.z) * chunk)) + 32) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 4; ++ax0_0_ax1_0_fused_3) {
        cp_async_16((&(B_shared_ptr[(((((((k_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_3 * 512)) + (((int)threadIdx.z) * 128)) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4))])), ((void*)at(B, (((((k_0 * 16) + (ax0_0_ax1_0_fused_3 * 4)) + (((int)blockIdx.z) * chunk)) + ((int)threadIdx.z)) + 32), ldb, (((column_block * 128) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4)))), (((((column_block * 128) + (((int)threadIdx.y) * 32)) + (((int)threadIdx.x) * 4)) < N) && ((((((k_0 * 16) + (ax0_0_ax1_0_fused_3 * 4)) + (((int)blockIdx.z) * chunk)) + ((int)threadIdx.z)) + 32) < K)));
      }
    }
    cp_async_commit();
    #pragma unroll
    for (int k_1 = 0; k_1 < 4; ++k_1) {
      #pragma unroll
      for (int ax1_0 = 0; ax1_0 < 8; ++ax1_0) {
        move_16((&(A_fragment_ptr[(ax1_0 * 4)])), (&(A_shared_ptr[((((((k_0 % 3) * 1024) + ((((int)threadIdx.z) >> 1) * 512)) + (ax1_0 * 64)) + (((int)threadIdx.y) * 16)) + ((k_1 ^ (((ax1_0 & 1) * 2) + (((int)threadIdx.y) >> 1))) * 4))])));
      }
      #pragma unroll
      for (int ax1 = 0; ax1 < 4; ++ax1) {
        #pragma unroll
        for (int ax2_0 = 0; ax2_0 < 2; ++ax2_0) {
          move_16((&(B_fragment_ptr[((ax1 * 8) + (ax2_0 * 4))])), (&(B_shared_ptr[(((((((k_0 % 3) * 2048) + (k_1 * 512)) + (ax1 * 128)) + ((((int)threadIdx.z) & 1) * 64)) + (ax2_0 * 32)) + (((int)threadIdx.x) * 4))])));
        }
      }
      #pragma unroll
      for (int k_2 = 0; k_2 < 4; ++k_2) {
        #pragma unroll
        for (int i_2_0 = 0; i_2_0 < 8; ++i_2_0) {
          #pragma unroll
          for (int j_2_0 = 0; j_2_0 < 2; ++j_2_0) {
            #pragma unroll
            for (int j_2_2 = 0; j_2_2 < 4; ++j_2_2) {
              product_fragment_ptr[(((i_2_0 * 8) + (j_2_0 * 4)) + j_2_2)] = (product_fragment_ptr[(((i_2_0 * 8) + (j_2_0 * 4)) + j_2_2)] + (A_fragment_ptr[((i_2_0 * 4) + k_2)] * B_fragment_ptr[(((k_2 * 8) + (j_2_0 * 4)) + j_2_2)]));
            }
          }
        }
      }
    }
  }
  #pragma unroll
  for (int ax0_0 = 0; ax0_0 < 8; ++ax0_0) {
    #pragma unroll
    for (int ax1_0_1 = 0; ax1_0_1 < 2; ++ax1_0_1) {
      if ((((((row_block * 64) + ((((int)threadIdx.z) >> 1) * 32)) + (ax0_0 * 4)) + ((int)threadIdx.y)) < M) && (((((column_block * 128) + ((((int)threadIdx.z) & 1) * 64)) + (ax1_0_1 * 32)) + (((int)threadIdx.x) * 4)) < N)) {
        store_f32_4(C, (chunk < K), ((int)blockIdx.z), M, ((((row_block * 64) + ((((int)threadIdx.z) >> 1) * 32)) + (ax0_0 * 4)) + ((int)threadIdx.y)), ldc, ((((column_block * 128) + ((((int)threadIdx.z) & 1) * 64)) + (ax1_0_1 * 32)) + (((int)threadIdx.x) * 4)), (&(product_fragment_ptr[((ax0_0 * 8) + (ax1_0_1 * 4))])));
      }
    }
  }
}
