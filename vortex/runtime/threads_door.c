/* The doors to the pool of threads, the same in every library on CPUs. */
#include "values.h"
#include "vortex_runtime.h"

/* set_threads(count) -> the number that calls use now */
EXPORT int __tvm_ffi_set_threads(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_set_threads(args[0].v_int64);
  return answer(result, vx_get_threads());
}

/* borrow_threads(the address of a vx_fork_join, or 0) */
EXPORT int __tvm_ffi_borrow_threads(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_borrow_threads((vx_fork_join)(uintptr_t)args[0].v_int64);
  return answer(result, 0);
}
