// args *A, *B, *C, M, N, K, lda, ldb, ldc, chunk, raster; block (32, 4, 1); 24576 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) tc_s8_64x64x64_l0_32x32x32_t16x8x32_s3_nt_v16(signed char* __restrict__ A, signed char* __restrict__ B, int* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  alignas(64) int product_fragment_ptr[32];
  alignas(64) signed char A_fragment_ptr[64];
  alignas(64) signed char B_fragment_ptr[64];
  signed char* const A_shared_ptr = (signed char*)(shared_memory + 0);
  signed char* const B_shared_ptr = (signed char*)(shared_memory + 12288);
  #pragma unroll
  for (int i_0_2_init = 0; i_0_2_init < 2; ++i_0_2_init) {
    #pragma unroll
    for (int j_0_2_init = 0; j_0_2_init < 2; ++j_0_2_init) {
      #pragma unroll
      for (int e = 0; e < 8; ++e) {
        product_fragment_ptr[(((i_0_2_init * 16) + (j_0_2_init * 8)) + e)] = 0;
      }
    }
  }
  #pragma unroll
  for (int early = 0; early < 2; ++early) {
    if (early < ((chunk + 63) >> 6)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 2; ++ax0_0_ax1_0_fused) {
        cp_async_16((&(A_shared_ptr[(((((early * 4096) + (ax0_0_ax1_0_fused * 2048)) + (((int)threadIdx.y) * 512)) + ((((int)threadIdx.x) >> 2) * 64)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 16))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, (((early * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)))), ((((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && ((((early * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 2; ++ax0_0_ax1_0_fused_1) {
        cp_async_16((&(B_shared_ptr[(((((early * 4096) + (ax0_0_ax1_0_fused_1 * 2048)) + (((int)threadIdx.y) * 512)) + ((((int)threadIdx.x) >> 2) * 64)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 16))])), ((void*)at(B, ((((column_block * 64) + (ax0_0_ax1_0_fused_1 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), ldb, (((early * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)))), ((((((column_block * 64) + (ax0_0_ax1_0_fused_1 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < N) && ((((early * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) < K)));
      }
    }
    cp_async_commit();
  }
  cp_async_wait<1>();
  __syncthreads();
  #pragma unroll
  for (int ax0_0 = 0; ax0_0 < 2; ++ax0_0) {
    ldmatrix_s8((&(A_fragment_ptr[(ax0_0 * 16)])), (&(A_shared_ptr[(((((((int)threadIdx.y) >> 1) * 2048) + (ax0_0 * 1024)) + ((((int)threadIdx.x) & 15) * 64)) + (((((int)threadIdx.x) >> 4) ^ ((((int)threadIdx.x) & 7) >> 1)) * 16))])));
  }
  #pragma unroll
  for (int ax0_0_1 = 0; ax0_0_1 < 2; ++ax0_0_1) {
    ldmatrix_s8((&(B_fragment_ptr[(ax0_0_1 * 16)])), (&(B_shared_ptr[((((((((int)threadIdx.y) & 1) * 2048) + (ax0_0_1 * 1024)) + ((((int)threadIdx.x) >> 4) * 512)) + ((((int)threadIdx.x) & 7) * 64)) + ((((((int)threadIdx.x) & 15) >> 3) ^ ((((int)threadIdx.x) & 7) >> 1)) * 16))])));
  }
  for (int k_0_0 = 0; k_0_0 < ((chunk + 63) >> 6); ++k_0_0) {
    #pragma unroll
    for (int k_0_1 = 0; k_0_1 < 2; ++k_0_1) {
      if (k_0_1 == 1) {
        cp_async_wait<1>();
        __syncthreads();
      }
      #pragma unroll
      for (int ax0_0_2 = 0; ax0_0_2 < 2; ++ax0_0_2) {
        ldmatrix_s8((&(A_fragment_ptr[((((k_0_1 + 1) & 1) * 32) + (ax0_0_2 * 16))])), (&(A_shared_ptr[(((((((((k_0_1 + 1) >> 1) + k_0_0) % 3) * 4096) + ((((int)threadIdx.y) >> 1) * 2048)) + (ax0_0_2 * 1024)) + ((((int)threadIdx.x) & 15) * 64)) + ((((((k_0_1 + 1) & 1) * 2) + (((int)threadIdx.x) >> 4)) ^ ((((int)threadIdx.x) & 7) >> 1)) * 16))])));
      }
      #pragma unroll
      for (int ax0_0_3 = 0; ax0_0_3 < 2; ++ax0_0_3) {
        ldmatrix_s8((&(B_fragment_ptr[((((k_0_1 + 1) & 1) * 32) + (ax0_0_3 * 16))])), (&(B_shared_ptr[((((((((((k_0_1 + 1) >> 1) + k_0_0) % 3) * 4096) + ((((int)threadIdx.y) & 1) * 2048)) + (ax0_0_3 * 1024)) + ((((int)threadIdx.x) >> 4) * 512)) + ((((int)threadIdx.x) & 7) * 64)) + ((((((k_0_1 + 1) & 1) * 2) + ((((int)threadIdx.x) & 15) >> 3)) ^ ((((int)threadIdx.x) & 7) >> 1)) * 16))])));
      }
      if (k_0_1 == 0) {
        if ((k_0_0 + 2) < ((chunk + 63) >> 6)) {
          #pragma unroll
          for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 2; ++ax0_0_ax1_0_fused_2) {
            cp_async_16((&(A_shared_ptr[(((((((k_0_0 + 2) % 3) * 4096) + (ax0_0_ax1_0_fused_2 * 2048)) + (((int)threadIdx.y) * 512)) + ((((int)threadIdx.x) >> 2) * 64)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 16))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, ((((k_0_0 * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) + 128))), ((((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && (((((k_0_0 * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) + 128) < K)));
          }
          #pragma unroll
          for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 2; ++ax0_0_ax1_0_fused_3) {
            cp_async_16((&(B_shared_ptr[(((((((k_0_0 + 2) % 3) * 4096) + (ax0_0_ax1_0_fused_3 * 2048)) + (((int)threadIdx.y) * 512)) + ((((int)threadIdx.x) >> 2) * 64)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 16))])), ((void*)at(B, ((((column_block * 64) + (ax0_0_ax1_0_fused_3 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), ldb, ((((k_0_0 * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) + 128))), ((((((column_block * 64) + (ax0_0_ax1_0_fused_3 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < N) && (((((k_0_0 * 64) + ((((int)threadIdx.x) & 3) * 16)) + (((int)blockIdx.z) * chunk)) + 128) < K)));
          }
        }
        cp_async_commit();
      }
      #pragma unroll
      for (int i_0_2 = 0; i_0_2 < 2; ++i_0_2) {
        #pragma unroll
        for (int j_0_2 = 0; j_0_2 < 2; ++j_0_2) {
          mma_m16n16_s8((&(product_fragment_ptr[((i_0_2 * 16) + (j_0_2 * 8))])), (&(A_fragment_ptr[((k_0_1 * 32) + (i_0_2 * 16))])), (&(B_fragment_ptr[((k_0_1 * 32) + (j_0_2 * 16))])));
        }
      }
    }
  }
  #pragma unroll
  for (int ax0_0_4 = 0; ax0_0_4 < 2; ++ax0_0_4) {
    #pragma unroll
    for (int ax1_0 = 0; ax1_0 < 2; ++ax1_0) {
      #pragma unroll
      for (int ax0_1 = 0; ax0_1 < 2; ++ax0_1) {
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 2; ++ax1_1) {
          if (((((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_4 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)) < M) && ((((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)) < N)) {
            store_s32_2(C, (chunk < K), ((int)blockIdx.z), M, (((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_4 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)), ldc, (((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)), (&(product_fragment_ptr[((((ax0_0_4 * 16) + (ax1_0 * 8)) + (ax1_1 * 4)) + (ax0_1 * 2))])));
          }
        }
      }
    }
  }
}
