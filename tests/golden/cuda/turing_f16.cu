extern "C" __global__ void __launch_bounds__(128) tc_f16_64x64x32_l0_32x32x16_t16x8x8_s2_nn_v16(half* __restrict__ A, half* __restrict__ B, float* __restrict__ C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  alignas(64) float product_fragment_ptr[32];
  alignas(64) half A_fragment_ptr[32];
  alignas(64) half B_fragment_ptr[32];
  alignas(64) half A_held_ptr[16];
  alignas(64) half B_held_ptr[16];
  half* const A_shared_ptr = (half*)(shared_memory + 0);
  half* const B_shared_ptr = (half*)(shared_memory + 8192);
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
  for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 2; ++ax0_0_ax1_0_fused) {
    copy_16((&(A_held_ptr[(ax0_0_ax1_0_fused * 8)])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, (((((int)threadIdx.x) & 3) * 8) + (((int)blockIdx.z) * chunk)))), ((((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && ((((((int)threadIdx.x) & 3) * 8) + (((int)blockIdx.z) * chunk)) < K)));
  }
  #pragma unroll
  for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 2; ++ax0_0_ax1_0_fused_1) {
    copy_16((&(B_held_ptr[(ax0_0_ax1_0_fused_1 * 8)])), ((void*)at(B, ((((ax0_0_ax1_0_fused_1 * 16) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)))), ((((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)) < N) && (((((ax0_0_ax1_0_fused_1 * 16) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) < K)));
  }
  #pragma unroll
  for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 2; ++ax0_0_ax1_0_fused_2) {
    move_16((&(A_shared_ptr[((((ax0_0_ax1_0_fused_2 * 1024) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 8))])), (&(A_held_ptr[(ax0_0_ax1_0_fused_2 * 8)])));
  }
  #pragma unroll
  for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 2; ++ax0_0_ax1_0_fused_3) {
    move_16((&(B_shared_ptr[((((ax0_0_ax1_0_fused_3 * 1024) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 3) * 64)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 8))])), (&(B_held_ptr[(ax0_0_ax1_0_fused_3 * 8)])));
  }
  __syncthreads();
  #pragma unroll
  for (int ax0_0 = 0; ax0_0 < 2; ++ax0_0) {
    ldmatrix_f16((&(A_fragment_ptr[(ax0_0 * 8)])), (&(A_shared_ptr[(((((((int)threadIdx.y) >> 1) * 1024) + (ax0_0 * 512)) + ((((int)threadIdx.x) & 15) * 32)) + (((((int)threadIdx.x) >> 4) ^ ((((int)threadIdx.x) & 7) >> 1)) * 8))])));
  }
  #pragma unroll
  for (int ax1_0 = 0; ax1_0 < 2; ++ax1_0) {
    ldmatrix_f16_trans((&(B_fragment_ptr[(ax1_0 * 8)])), (&(B_shared_ptr[(((((int)threadIdx.x) & 15) * 64) + ((((((((int)threadIdx.y) & 1) * 4) + (ax1_0 * 2)) + (((int)threadIdx.x) >> 4)) ^ (((int)threadIdx.x) & 7)) * 8))])));
  }
  for (int k_0_0 = 0; k_0_0 < ((chunk + 31) >> 5); ++k_0_0) {
    #pragma unroll
    for (int k_0_1 = 0; k_0_1 < 2; ++k_0_1) {
      if (k_0_1 == 1) {
        if ((k_0_0 + 1) < ((chunk + 31) >> 5)) {
          #pragma unroll
          for (int ax0_0_ax1_0_fused_4 = 0; ax0_0_ax1_0_fused_4 < 2; ++ax0_0_ax1_0_fused_4) {
            move_16((&(A_shared_ptr[(((((((k_0_0 + 1) & 1) * 2048) + (ax0_0_ax1_0_fused_4 * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 8))])), (&(A_held_ptr[(ax0_0_ax1_0_fused_4 * 8)])));
          }
          #pragma unroll
          for (int ax0_0_ax1_0_fused_5 = 0; ax0_0_ax1_0_fused_5 < 2; ++ax0_0_ax1_0_fused_5) {
            move_16((&(B_shared_ptr[(((((((k_0_0 + 1) & 1) * 2048) + (ax0_0_ax1_0_fused_5 * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 3) * 64)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 8))])), (&(B_held_ptr[(ax0_0_ax1_0_fused_5 * 8)])));
          }
        }
        __syncthreads();
      }
      #pragma unroll
      for (int ax0_0_1 = 0; ax0_0_1 < 2; ++ax0_0_1) {
        ldmatrix_f16((&(A_fragment_ptr[((((k_0_1 + 1) & 1) * 16) + (ax0_0_1 * 8))])), (&(A_shared_ptr[(((((((((k_0_1 + 1) >> 1) + k_0_0) & 1) * 2048) + ((((int)threadIdx.y) >> 1) * 1024)) + (ax0_0_1 * 512)) + ((((int)threadIdx.x) & 15) * 32)) + ((((((k_0_1 + 1) & 1) * 2) + (((int)threadIdx.x) >> 4)) ^ ((((int)threadIdx.x) & 7) >> 1)) * 8))])));
      }
      #pragma unroll
      for (int ax1_0_1 = 0; ax1_0_1 < 2; ++ax1_0_1) {
        ldmatrix_f16_trans((&(B_fragment_ptr[((((k_0_1 + 1) & 1) * 16) + (ax1_0_1 * 8))])), (&(B_shared_ptr[((((((((k_0_1 + 1) >> 1) + k_0_0) & 1) * 2048) + (((k_0_1 + 1) & 1) * 1024)) + ((((int)threadIdx.x) & 15) * 64)) + ((((((((int)threadIdx.y) & 1) * 4) + (ax1_0_1 * 2)) + (((int)threadIdx.x) >> 4)) ^ (((int)threadIdx.x) & 7)) * 8))])));
      }
      if (k_0_1 == 0) {
        if ((k_0_0 + 1) < ((chunk + 31) >> 5)) {
          #pragma unroll
          for (int ax0_0_ax1_0_fused_6 = 0; ax0_0_ax1_0_fused_6 < 2; ++ax0_0_ax1_0_fused_6) {
            copy_16((&(A_held_ptr[(ax0_0_ax1_0_fused_6 * 8)])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused_6 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, ((((k_0_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 32))), ((((((row_block * 64) + (ax0_0_ax1_0_fused_6 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && (((((k_0_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 32) < K)));
          }
          #pragma unroll
          for (int ax0_0_ax1_0_fused_7 = 0; ax0_0_ax1_0_fused_7 < 2; ++ax0_0_ax1_0_fused_7) {
            copy_16((&(B_held_ptr[(ax0_0_ax1_0_fused_7 * 8)])), ((void*)at(B, ((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_7 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) + 32), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)))), ((((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)) < N) && (((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_7 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) + 32) < K)));
          }
        }
      }
      #pragma unroll
      for (int i_0_2 = 0; i_0_2 < 2; ++i_0_2) {
        #pragma unroll
        for (int j_0_2 = 0; j_0_2 < 2; ++j_0_2) {
          mma_m16n16_f16_k8((&(product_fragment_ptr[((i_0_2 * 16) + (j_0_2 * 8))])), (&(A_fragment_ptr[((k_0_1 * 16) + (i_0_2 * 8))])), (&(B_fragment_ptr[((k_0_1 * 16) + (j_0_2 * 8))])));
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
            store_f16_2(C, (chunk < K), ((int)blockIdx.z), M, (((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_2 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)), ldc, (((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0_2 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)), (&(product_fragment_ptr[((((ax0_0_2 * 16) + (ax1_0_2 * 8)) + (ax1_1 * 4)) + (ax0_1 * 2))])));
          }
        }
      }
    }
  }
}
