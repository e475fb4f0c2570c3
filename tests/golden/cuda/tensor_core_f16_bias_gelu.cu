
/* In the place of C: where sums go, and what the epilogue reads; strides in elements, 0 along what is shared. */
struct finished {
  float* c;
  const void* operand[4];
  long long row[4], column[4], apart[4][2]; /* the last in bytes, along axes of a batch; of groups, rows and groups */
  long long at[2]; /* of this product along those axes */
};
template <class T> VORTEX_DEVICE float operand_at(const finished& f, int which, int i, int j) {
  return (float)((const T*)(f.operand[which]))[i * f.row[which] + j * f.column[which]];
}

template <int Width> VORTEX_DEVICE void put_f32(void* c, long long x, const float* y) {
  float* to = (float*)c + x;
  if constexpr (Width == 4) *(float4*)to = make_float4(y[0], y[1], y[2], y[3]);
  else if constexpr (Width == 2) *(float2*)to = make_float2(y[0], y[1]);
  else to[0] = y[0];
}

template <int Width> VORTEX_DEVICE void put(void* c, long long x, const float* y) { put_f32<Width>(c, x, y); }

VORTEX_DEVICE float finish_sum(const finished& f, float x, int i, int j) {
  x += operand_at<float>(f, 0, i, j);
  x = 0.5f * x * erfcf(-0.7071067812f * x);
  return x;
}

/* Partial sums, and where AS_THEY_ARE integers that no step changes, leave as the words they are. */
template <int Width, class T>
VORTEX_DEVICE void finish(const finished& f, bool partial, int z, int m, int i, int ld, int j, const T* v) {
  long long x = result_at(z, m, i, ld, j);
  if (partial || false) return put_f32<Width>(f.c, x, (const float*)v);
  float y[Width];
#pragma unroll
  for (int e = 0; e < Width; ++e) y[e] = finish_sum(f, (float)v[e], i, j + e);
  put<Width>(f.c, x, y);
}
#define VORTEX_FINISH(width) \
  template <class T> \
  VORTEX_DEVICE void finish_##width(const finished& f, bool part, int z, int m, int i, int ld, int j, const T* v) { \
    finish<width>(f, part, z, m, i, ld, j, v); \
  }
VORTEX_FINISH(1)
VORTEX_FINISH(2)
VORTEX_FINISH(4)
VORTEX_DEVICE void finish_pair(const finished& f, bool partial, int z, int m, int i, int ld, int j, float x, float y) {
  float v[2] = {x, y};
  finish<2>(f, partial, z, m, i, ld, j, v);
}
extern "C" __global__ void __launch_bounds__(128) tc_f16_64x64x32_l0_32x32x16_t16x8x16_s3_nn_v16(half* __restrict__ A, half* __restrict__ B, const __grid_constant__ finished C, int M, int N, int K, int lda, int ldb, int ldc, int chunk, int raster) {
  int row_block = row_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  int column_block = column_of_block(((int)blockIdx.x), ((M + 63) >> 6), ((N + 63) >> 6), raster);
  alignas(64) float product_fragment_ptr[32];
  alignas(64) half A_fragment_ptr[32];
  alignas(64) half B_fragment_ptr[32];
  half* const A_shared_ptr = (half*)(shared_memory + 0);
  half* const B_shared_ptr = (half*)(shared_memory + 12288);
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
      for (int ax0_0_ax1_0_fused = 0; ax0_0_ax1_0_fused < 2; ++ax0_0_ax1_0_fused) {
        cp_async_16((&(A_shared_ptr[(((((early * 2048) + (ax0_0_ax1_0_fused * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 8))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, (((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)))), ((((((row_block * 64) + (ax0_0_ax1_0_fused * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && ((((early * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) < K)));
      }
      #pragma unroll
      for (int ax0_0_ax1_0_fused_1 = 0; ax0_0_ax1_0_fused_1 < 2; ++ax0_0_ax1_0_fused_1) {
        cp_async_16((&(B_shared_ptr[(((((early * 2048) + (ax0_0_ax1_0_fused_1 * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 3) * 64)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 8))])), ((void*)at(B, (((((early * 32) + (ax0_0_ax1_0_fused_1 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)))), ((((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)) < N) && ((((((early * 32) + (ax0_0_ax1_0_fused_1 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) < K)));
      }
    }
    cp_async_commit();
  }
  cp_async_wait<1>();
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
        cp_async_wait<1>();
        __syncthreads();
      }
      #pragma unroll
      for (int ax0_0_1 = 0; ax0_0_1 < 2; ++ax0_0_1) {
        ldmatrix_f16((&(A_fragment_ptr[((((k_0_1 + 1) & 1) * 16) + (ax0_0_1 * 8))])), (&(A_shared_ptr[(((((((((k_0_1 + 1) >> 1) + k_0_0) % 3) * 2048) + ((((int)threadIdx.y) >> 1) * 1024)) + (ax0_0_1 * 512)) + ((((int)threadIdx.x) & 15) * 32)) + ((((((k_0_1 + 1) & 1) * 2) + (((int)threadIdx.x) >> 4)) ^ ((((int)threadIdx.x) & 7) >> 1)) * 8))])));
      }
      #pragma unroll
      for (int ax1_0_1 = 0; ax1_0_1 < 2; ++ax1_0_1) {
        ldmatrix_f16_trans((&(B_fragment_ptr[((((k_0_1 + 1) & 1) * 16) + (ax1_0_1 * 8))])), (&(B_shared_ptr[((((((((k_0_1 + 1) >> 1) + k_0_0) % 3) * 2048) + (((k_0_1 + 1) & 1) * 1024)) + ((((int)threadIdx.x) & 15) * 64)) + ((((((((int)threadIdx.y) & 1) * 4) + (ax1_0_1 * 2)) + (((int)threadIdx.x) >> 4)) ^ (((int)threadIdx.x) & 7)) * 8))])));
      }
      if (k_0_1 == 0) {
        if ((k_0_0 + 2) < ((chunk + 31) >> 5)) {
          #pragma unroll
          for (int ax0_0_ax1_0_fused_2 = 0; ax0_0_ax1_0_fused_2 < 2; ++ax0_0_ax1_0_fused_2) {
            cp_async_16((&(A_shared_ptr[(((((((k_0_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_2 * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 2) * 32)) + (((((int)threadIdx.x) & 3) ^ (((int)threadIdx.x) >> 3)) * 8))])), ((void*)at(A, ((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)), lda, ((((k_0_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64))), ((((((row_block * 64) + (ax0_0_ax1_0_fused_2 * 32)) + (((int)threadIdx.y) * 8)) + (((int)threadIdx.x) >> 2)) < M) && (((((k_0_0 * 32) + ((((int)threadIdx.x) & 3) * 8)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
          }
          #pragma unroll
          for (int ax0_0_ax1_0_fused_3 = 0; ax0_0_ax1_0_fused_3 < 2; ++ax0_0_ax1_0_fused_3) {
            cp_async_16((&(B_shared_ptr[(((((((k_0_0 + 2) % 3) * 2048) + (ax0_0_ax1_0_fused_3 * 1024)) + (((int)threadIdx.y) * 256)) + ((((int)threadIdx.x) >> 3) * 64)) + (((((int)threadIdx.x) & 7) ^ (((((int)threadIdx.y) & 1) * 4) + (((int)threadIdx.x) >> 3))) * 8))])), ((void*)at(B, ((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_3 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) + 64), ldb, ((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)))), ((((column_block * 64) + ((((int)threadIdx.x) & 7) * 8)) < N) && (((((((k_0_0 * 32) + (ax0_0_ax1_0_fused_3 * 16)) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 3)) + (((int)blockIdx.z) * chunk)) + 64) < K)));
          }
        }
        cp_async_commit();
      }
      #pragma unroll
      for (int i_0_2 = 0; i_0_2 < 2; ++i_0_2) {
        #pragma unroll
        for (int j_0_2 = 0; j_0_2 < 2; ++j_0_2) {
          mma_m16n16_f16((&(product_fragment_ptr[((i_0_2 * 16) + (j_0_2 * 8))])), (&(A_fragment_ptr[((k_0_1 * 16) + (i_0_2 * 8))])), (&(B_fragment_ptr[((k_0_1 * 16) + (j_0_2 * 8))])));
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
            finish_2(C, (chunk < K), ((int)blockIdx.z), M, (((((row_block * 64) + ((((int)threadIdx.y) >> 1) * 32)) + (ax0_0_2 * 16)) + (ax0_1 * 8)) + (((int)threadIdx.x) >> 2)), ldc, (((((column_block * 64) + ((((int)threadIdx.y) & 1) * 32)) + (ax1_0_2 * 16)) + (ax1_1 * 8)) + ((((int)threadIdx.x) & 3) * 2)), (&(product_fragment_ptr[((((ax0_0_2 * 16) + (ax1_0_2 * 8)) + (ax1_1 * 4)) + (ax0_1 * 2))])));
          }
        }
      }
    }
  }
}
