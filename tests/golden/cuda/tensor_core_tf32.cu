// args *A, *B, *C, M, N, K, lda, ldb, ldc, chunk, raster; block (32, 4, 1); 49152 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) tc_tf32_64x64x32_l0_32x32x8_t16x8x8_s3_nn_v16(float* __restrict__ A, float* __restrict__ B, float* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  alignas(64) float product_fragment_ptr[32];
  alignas(64) float A_fragment_ptr[16];
  alignas(64) float B_fragment_ptr[16];
  float* const A_shared_ptr = (float*)(shared_memory + 0);
  float* const B_shared_ptr = (float*)(shared_memory + 24576);
  #pragma unroll
  for (int i_0_2_init = 0; i_0_2_init < 2; ++i_0_2_init) {
    #pragma unroll
    for (int j_0_2_init = 0; j_0_2_init < 2; ++j_0_2_init) {
      #pragma unroll
      for (int e = 0; e < 8; ++e) {
        product_fragment_ptr[(((i_0_2_init * 16) + (j_0_2_init * 8)) + e)] = 0x0p+0f/*0.000000e+00*/;
      }
    }
  }
  #pragma unroll
  for (int early = 0; early < 2; ++early) {
    if (early < ((chunk + 31) >> 5)) {
      #pragma unroll
      for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 4; ++ax0_0_ax1_0_fused) {
        cp_async_16((&(A_shared_ptr[(((((early * 2048) + (ax0_0_ax1_0_fused * 512)) + (((int)threadIdx.y) * 128)) + ((((int)threadIdx.x) >> 3) * 32)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 4))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)), lda, (((early * 32) + ((((int)threadIdx.x) & 7) * 4)) + (((int)blockIdx.z) * chunk)))), ((((((row_block * 64) + (ax0_0_ax1_0_fused * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) < M) && ((((early * 32) + ((((int)threadIdx.x) & 7) * 4)) + (((int)blockIdx.z) * chunk)) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 4; ++ax0_0_ax1_0_fused_1) {
        cp_async_16((&(B_shared_ptr[((((((early * 2048) + (ax0_0_ax1_0_fused_1 * 512)) + (((int)threadIdx.y) * 128)) + ((((int)threadIdx.x) >> 4) * 64)) + ((((((int)threadIdx.x) & 15) >> 1) ^ (((((int)threadIdx.y) & 1) * 2) + (((int)threadIdx.x) >> 4))) * 8)) + ((((int)threadIdx.x) & 1) * 4))])), ((void*)at(B, (((((early * 32) + (ax0_0_ax1_0_fused_1 * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 4)) + (((int)blockIdx.z) * chunk)), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 15) * 4)))), ((((column_block * 64) + ((((int)threadIdx.x) & 15) * 4)) < N) && ((((((early * 32) + (ax0_0_ax1_0_fused_1 * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 4)) + (((int)blockIdx.z) * chunk)) < K)));
      }
    }
    cp_async_commit();
  }
  cp_async_wait<1>();
  __syncthreads();
  #pragma unroll
  for (int ax0_0 = 0; ax0_0 < 2; ++ax0_0) {
    ldmatrix_tf32((&(A_fragment_ptr[(ax0_0 * 4)])), (&(A_shared_ptr[(((((((int)threadIdx.y) >> 1) * 1024) + (ax0_0 * 512)) + ((((int)threadIdx.x) & 15) * 32)) + (((((int)threadIdx.x) >> 4) ^ (((int)threadIdx.x) & 7)) * 4))])));
  }
  #pragma unroll
  for (int ax1_0 = 0; ax1_0 < 2; ++ax1_0) {
    #pragma unroll
    for (int e_1 = 0; e_1 < 4; ++e_1) {
      B_fragment_ptr[((ax1_0 * 4) + e_1)] = round_tf32(B_shared_ptr[(((((e_1 & 1) * 256) + ((((int)threadIdx.x) & 3) * 64)) + ((((((((int)threadIdx.y) & 1) * 4) + (ax1_0 * 2)) + (e_1 >> 1)) ^ (((int)threadIdx.x) & 3)) * 8)) + (((int)threadIdx.x) >> 2))]);
    }
  }
  for (int k_0_0 = 0; k_0_0 < ((chunk + 31) >> 5); ++k_0_0) {
    #pragma unroll
    for (int k_0_1 = 0; k_0_1 < 4; ++k_0_1) {
      if (k_0_1 == 3) {
        cp_async_wait<1>();
        __syncthreads();
      }
      #pragma unroll
      for (int ax0_0_1 = 0; ax0_0_1 < 2; ++ax0_0_1) {
        ldmatrix_tf32((&(A_fragment_ptr[((((k_0_1 + 1) & 1) * 8) + (ax0_0_1 * 4))])), (&(A_shared_ptr[(((((((((k_0_1 + 1) >> 2) + k_0_0) % 3) * 2048) + ((((int)threadIdx.y) >> 1) * 1024)) + (ax0_0_1 * 512)) + ((((int)threadIdx.x) & 15) * 32)) + ((((((k_0_1 + 1) & 3) * 2) + (((int)threadIdx.x) >> 4)) ^ (((int)threadIdx.x) & 7)) * 4))])));
      }
      #pragma unroll
      for (int ax1_0_1 = 0; ax1_0_1 < 2; ++ax1_0_1) {
        #pragma unroll
        for (int e_2 = 0; e_2 < 4; ++e_2) {
          B_fragment_ptr[(((((k_0_1 + 1) & 1) * 8) + (ax1_0_1 * 4)) + e_2)] = round_tf32(B_shared_ptr[((((((((((k_0_1 + 1) >> 2) + k_0_0) % 3) * 2048) + (((k_0_1 + 1) & 3) * 512)) + ((e_2 & 1) * 256)) + ((((int)threadIdx.x) & 3) * 64)) + ((((((((int)threadIdx.y) & 1) * 4) + (ax1_0_1 * 2)) + (e_2 >> 1)) ^ (((int)threadIdx.x) & 3)) * 8)) + (((int)threadIdx.x) >> 2))]);
        }
      }
      if (k_0_1 == 0) {
        if ((k_0_0 + 2) < ((chunk + 31) >> 5)) {
          #pragma unroll
          for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 4; ++ax0_0_ax1_0_fused_2) {
            cp_async_16((&(A_shared_ptr[(((((((k_0_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_2 * 512)) + (((int)threadIdx.y) * 128)) + ((((int)threadIdx.x) >> 3) * 32)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 4))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)), lda, ((((k_0_0 * 32) + ((((int)threadIdx.x) & 7) * 4)) + (((int)blockIdx.z) * chunk)) + 64))), ((((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) < M) && (((((k_0_0 * 32) + ((((int)threadIdx.x) & 7) * 4)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
          }
          #pragma unroll
          for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 4; ++ax0_0_ax1_0_fused_3) {
            cp_async_16((&(B_shared_ptr[((((((((k_0_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_3 * 512)) + (((int)threadIdx.y) * 128)) + ((((int)threadIdx.x) >> 4) * 64)) + ((((((int)threadIdx.x) & 15) >> 1) ^ (((((int)threadIdx.y) & 1) * 2) + (((int)threadIdx.x) >> 4))) * 8)) + ((((int)threadIdx.x) & 1) * 4))])), ((void*)at(B, ((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_3 * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 4)) + (((int)blockIdx.z) * chunk)) + 64), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 15) * 4)))), ((((column_block * 64) + ((((int)threadIdx.x) & 15) * 4)) < N) && (((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_3 * 8)) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 4)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
          }
        }
        cp_async_commit();
      }
      #pragma unroll
      for (int i_0_2 = 0; i_0_2 < 2; ++i_0_2) {
        #pragma unroll
        for (int j_0_2 = 0; j_0_2 < 2; ++j_0_2) {
          mma_m16n16_tf32((&(product_fragment_ptr[((i_0_2 * 16) + (j_0_2 * 8))])), (&(A_fragment_ptr[(((k_0_1 & 1) * 8) + (i_0_2 * 4))])), (&(B_fragment_ptr[(((k_0_1 & 1) * 8) + (j_0_2 * 4))])));
        }
      }
    }
  }
  #pragma unroll
  for (int ax0_0_2 = 0; ax0_0_2 < 2; ++ax0_0_2) {
    #pragma unroll
    for (int ax1_0_2 = 0; ax1_0_2 < 2; ++ax1_0_2) {
      #pragma unroll
      for (int ax0_1 = 0; ax0_1 < 2; ++ax0_1) {
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 2; ++ax1_1) {
          if (((((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_2 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)) < M) && ((((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0_2 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)) < N)) {
            store_f32_2(C, (chunk < K), ((int)blockIdx.z), M, (((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_2 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)), ldc, (((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0_2 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)), (&(product_fragment_ptr[((((ax0_0_2 * 16) + (ax1_0_2 * 8)) + (ax1_1 * 4)) + (ax0_1 * 2))])));
          }
        }
      }
    }
  }
}
