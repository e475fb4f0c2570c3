// args *A, *B, *C, M, N, K, lda, ldb, ldc, chunk, raster; block (8, 4, 4); 36864 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) cc_f16_64x128x32_l0_32x64x1_t8x8x1_s3_nt_v16(half* __restrict__ A, half* __restrict__ B, float* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 127) >> 7), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 127) >> 7), raster);
  alignas(64) float product_fragment_ptr[64];
  alignas(64) half A_fragment_ptr[32];
  alignas(64) half B_fragment_ptr[32];
  half* const A_shared_ptr = (half*)(shared_memory + 0);
  half* const B_shared_ptr = (half*)(shared_memory + 12288);
  #pragma unroll
  for (int i_2_0_init = 0; i_2_0_init < 8; ++i_2_0_init) {
    #pragma unroll
    for (int j_2_0_init = 0; j_2_0_init < 8; ++j_2_0_init) {
      product_fragment_ptr[((i_2_0_init * 8) + j_2_0_init)] = 0x0p+0f/*0.000000e+00*/;
    }
  }
  #pragma unroll
  for (int early = 0; early < 2; ++early) {
    if (early < ((chunk + 31) >> 5)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 2; ++ax0_0_ax1_0_fused) {
        cp_async_16((&(A_shared_ptr[((((((early * 2048) + (ax0_0_ax1_0_fused * 1024)) + (((int)threadIdx.z) * 256)) + (((int)threadIdx.y) * 64)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 8))])), ((void*)at(A, (((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), lda, (((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)))), (((((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < M) && ((((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 4; ++ax0_0_ax1_0_fused_1) {
        cp_async_16((&(B_shared_ptr[((((((early * 4096) + (ax0_0_ax1_0_fused_1 * 1024)) + (((int)threadIdx.z) * 256)) + (((int)threadIdx.y) * 64)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 8))])), ((void*)at(B, (((((column_block * 128) + (ax0_0_ax1_0_fused_1 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), ldb, (((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)))), (((((((column_block * 128) + (ax0_0_ax1_0_fused_1 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < N) && ((((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) < K)));
      }
    }
    cp_async_commit();
  }
  for (int k_0 = 0; k_0 < ((chunk + 31) >> 5); ++k_0) {
    cp_async_wait<1>();
    __syncthreads();
    if ((k_0 + 2) < ((chunk + 31) >> 5)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 2; ++ax0_0_ax1_0_fused_2) {
        cp_async_16((&(A_shared_ptr[((((((((k_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_2 * 1024)) + (((int)threadIdx.z) * 256)) + (((int)threadIdx.y) * 64)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 8))])), ((void*)at(A, (((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), lda, ((((k_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64))), (((((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < M) && (((((k_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 4; ++ax0_0_ax1_0_fused_3) {
        cp_async_16((&(B_shared_ptr[((((((((k_0 + 2) % 3) * 4096) + (ax0_0_ax1_0_fused_3 * 1024)) + (((int)threadIdx.z) * 256)) + (((int)threadIdx.y) * 64)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ ((int)threadIdx.y)) * 8))])), ((void*)at(B, (((((column_block * 128) + (ax0_0_ax1_0_fused_3 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)), ldb, ((((k_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64))), (((((((column_block * 128) + (ax0_0_ax1_0_fused_3 * 32)) + (((int)threadIdx.z) * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < N) && (((((k_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
      }
    }
    cp_async_commit();
    #pragma unroll
    for (int k_1 = 0; k_1 < 8; ++k_1) {
      #pragma unroll
      for (int ax1_0 = 0; ax1_0 < 8; ++ax1_0) {
        move_8((&(A_fragment_ptr[(ax1_0 * 4)])), (&(A_shared_ptr[(((((((k_0 % 3) * 2048) + ((((int)threadIdx.z) >> 1) * 1024)) + (ax1_0 * 128)) + (((int)threadIdx.y) * 32)) + (((k_1 >> 1) ^ (((ax1_0 & 1) * 2) + (((int)threadIdx.y) >> 1))) * 8)) + ((k_1 & 1) * 4))])));
      }
      #pragma unroll
      for (int ax1_0_1 = 0; ax1_0_1 < 8; ++ax1_0_1) {
        move_8((&(B_fragment_ptr[(ax1_0_1 * 4)])), (&(B_shared_ptr[(((((((k_0 % 3) * 4096) + ((((int)threadIdx.z) & 1) * 2048)) + (ax1_0_1 * 256)) + (((int)threadIdx.x) * 32)) + (((k_1 >> 1) ^ (((int)threadIdx.x) >> 1)) * 8)) + ((k_1 & 1) * 4))])));
      }
      #pragma unroll
      for (int k_2 = 0; k_2 < 4; ++k_2) {
        #pragma unroll
        for (int i_2_0 = 0; i_2_0 < 8; ++i_2_0) {
          #pragma unroll
          for (int j_2_0 = 0; j_2_0 < 8; ++j_2_0) {
            product_fragment_ptr[((i_2_0 * 8) + j_2_0)] = (product_fragment_ptr[((i_2_0 * 8) + j_2_0)] + (((float)A_fragment_ptr[((i_2_0 * 4) + k_2)]) * ((float)B_fragment_ptr[((j_2_0 * 4) + k_2)])));
          }
        }
      }
    }
  }
  #pragma unroll
  for (int ax0_0 = 0; ax0_0 < 8; ++ax0_0) {
    #pragma unroll
    for (int ax1_0_2 = 0; ax1_0_2 < 8; ++ax1_0_2) {
      if ((((((row_block * 64) + ((((int)threadIdx.z) >> 1) * 32)) + (ax0_0 * 4)) + ((int)threadIdx.y)) < M) && (((((column_block * 128) + ((((int)threadIdx.z) & 1) * 64)) + (ax1_0_2 * 8)) + ((int)threadIdx.x)) < N)) {
        store_f16_1(C, (chunk < K), ((int)blockIdx.z), M, ((((row_block * 64) + ((((int)threadIdx.z) >> 1) * 32)) + (ax0_0 * 4)) + ((int)threadIdx.y)), ldc, ((((column_block * 128) + ((((int)threadIdx.z) & 1) * 64)) + (ax1_0_2 * 8)) + ((int)threadIdx.x)), (&(product_fragment_ptr[((ax0_0 * 8) + ax1_0_2)])));
      }
    }
  }
}
