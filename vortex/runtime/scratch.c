/* Scratch of the calling thread: grown when a plan needs more, given back when the thread ends. Register tiles multiply the columns past
 * the last of a panel too, as they were left: zeros at first, since an Intel core takes 10 times as long for denormal numbers, as whole
 * numbers that were there before would read. */
#include "vortex_runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From LARGE on in huge pages: which sets of the second cache small ones fall into is chance, and some crowd. */
enum {
  PAGE = 4096,
  HUGE_PAGE = 2 << 20,
  LARGE = 128 << 10,
};

typedef struct {
  void *memory;
  size_t bytes;
} block;

static __thread block own, shared;
static pthread_key_t own_at_exit, shared_at_exit;

__attribute__((constructor)) static void make_keys(void) {
  pthread_key_create(&own_at_exit, free);
  pthread_key_create(&shared_at_exit, free);
}

static void *grown(block *kept, pthread_key_t at_exit, size_t bytes) {
  if (bytes > kept->bytes) {
    void *larger = NULL;
    size_t page = bytes < LARGE ? PAGE : HUGE_PAGE, rounded = (bytes + page - 1) & ~(page - 1);
    if (posix_memalign(&larger, page, rounded) != 0) return NULL;
    if (page == HUGE_PAGE) madvise(larger, rounded, MADV_HUGEPAGE);
    memset(larger, 0, rounded);
    free(kept->memory);
    kept->memory = larger;
    kept->bytes = rounded;
    pthread_setspecific(at_exit, larger);
  }
  return kept->memory;
}

void *vx_scratch(size_t bytes) { return grown(&own, own_at_exit, bytes); }

void *vx_shared_scratch(size_t bytes) { return grown(&shared, shared_at_exit, bytes); }
