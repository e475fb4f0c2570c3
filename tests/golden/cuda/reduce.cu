// args *W, *C, M, N, ldc, splits; block (256, 1, 1); 0 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256) reduce_float16(float* __restrict__ W, float* __restrict__ C, int M, int N, int ldc, int splits) {
  alignas(64) float total_ptr[1];
  if (((((int)blockIdx.x) * 256) + ((int)threadIdx.x)) < (M * N)) {
    total_ptr[0] = 0x0p+0f/*0.000000e+00*/;
    #pragma unroll 8
for (int s = 0; s < splits; ++s) {
      total_ptr[0] = (total_ptr[0] + value_at(W, s, (M * N), ((((int)blockIdx.x) * 256) + ((int)threadIdx.x))));
    }
    store_f16_1(C, (bool)0, 0, M, (((((int)blockIdx.x) * 256) + ((int)threadIdx.x)) / N), ldc, (((((int)blockIdx.x) * 256) + ((int)threadIdx.x)) % N), (&(total_ptr[0])));
  }
}
