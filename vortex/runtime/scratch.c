/* Scratch of the calling thread: grown when a plan needs more, given back when the thread ends. */
#include "vortex_runtime.h"

#include <pthread.h>
#include <stdlib.h>

static __thread struct {
  void *memory;
  size_t bytes;
} mine;
static pthread_key_t at_exit;

__attribute__((constructor)) static void make_key(void) { pthread_key_create(&at_exit, free); }

void *vx_scratch(size_t bytes) {
  if (bytes > mine.bytes) {
    void *grown = NULL;
    size_t rounded = (bytes + 4095) & ~(size_t)4095;
    if (posix_memalign(&grown, 4096, rounded) != 0) return NULL;
    free(mine.memory);
    mine.memory = grown;
    mine.bytes = rounded;
    pthread_setspecific(at_exit, grown);
  }
  return mine.memory;
}
