/* Tasks handed out to threads that a program lends: the library's own pool and what lies beside PyTorch's graphs do so alike. */
#ifndef VORTEX_LENT_H
#define VORTEX_LENT_H

#include <stdatomic.h>
#include <stdint.h>

/* Runs `body(data)` on `threads` threads (0: as many as it has), the caller one of them, and returns when all have: GOMP_parallel of every
 * OpenMP run time. */
typedef void (*vx_fork_join)(void (*body)(void *data), void *data, unsigned threads, unsigned flags);

typedef struct {
  void (*task)(void *, int64_t);
  void *context;
  int64_t tasks;
  atomic_llong next;
} vx_lent;

static inline void vx_claim_lent(void *shared) {
  vx_lent *job = shared;
  int64_t index;
  while ((index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->tasks) job->task(job->context, index);
}

static inline void vx_share_out(vx_fork_join host, unsigned threads, void (*task)(void *, int64_t), void *context, int64_t tasks) {
  vx_lent job = {.task = task, .context = context, .tasks = tasks};
  host(vx_claim_lent, &job, threads, 0);
}

#endif
