/* Values as tvm-ffi passes them, of which nothing is linked: what every door on CPUs reads and answers with. */
#ifndef VORTEX_VALUES_H
#define VORTEX_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
/* A refusal is a number that Python turns into words. */
#define REFUSE(reason, operand) ((reason) | (operand) << 8)

static inline const DLTensor *tensor_of(const TVMFFIAny *value) {
  if (value->type_index == kTVMFFIDLTensorPtr) return (const DLTensor *)value->v_ptr;
  if (value->type_index == kTVMFFITensor) return (const DLTensor *)((const char *)value->v_obj + sizeof(TVMFFIObject));
  return NULL;
}

static inline int answer(TVMFFIAny *result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
  return 0;
}

#endif
