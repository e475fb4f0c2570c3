/* The thread pool on a machine whose scheduler is made up: where the caller runs, where its one worker was seen, and what the pool asks. */
#define _GNU_SOURCE
#include <sched.h>

static int here, asked;
static unsigned long allowed, *masks;

static int stub_getcpu(void) { return here; }

static int stub_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  CPU_ZERO_S(bytes, set);
  for (int core = 0; core < 64; core++)
    if (allowed >> core & 1) CPU_SET(core, set);
  return thread == 42 ? 0 : -1;
}

static int stub_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *set) {
  unsigned long mask = 0;
  for (int core = 0; core < 64; core++)
    if (CPU_ISSET_S(core, bytes, set)) mask |= 1UL << core;
  if (masks) masks[asked++] = mask;
  return thread == 42 ? 0 : -1;
}

#define sched_getcpu stub_getcpu
#define sched_getaffinity stub_getaffinity
#define sched_setaffinity stub_setaffinity
#include "threads.c"

/* Calls a worker that was last seen on a core, or fell asleep (-1). Returns how many masks were asked for, in `given`. */
int stub_call(int caller, int seen, unsigned long mask, unsigned long *given) {
  here = caller;
  allowed = mask;
  asked = 0;
  masks = given;
  pool.workers = 1;
  pool.ids[0] = 42;
  atomic_store(&pool.cores[0], (short)seen);
  atomic_store(&pool.sleepers, 0); /* nobody is on the futex */
  call_workers(1);
  pool.workers = 0;
  return asked;
}

static _Thread_local int calls;
static atomic_int joined;

/* The caller goes on for 5 ms after its worker has come and gone. */
static void uneven(void *context, int64_t index) {
  (void)context, (void)index;
  if (!calls) {
    atomic_store(&joined, 1);
    return;
  }
  int64_t until = nanoseconds() + 1000000000LL;
  while (!atomic_load(&joined) && nanoseconds() < until) {
  }
  for (until = nanoseconds() + 5000000; nanoseconds() < until;) {
  }
}

/* Where the worker of a job is that its caller has only just ended; -3: it never came. */
int stub_uneven(void) {
  masks = 0;
  calls = 1;
  atomic_store(&joined, 0);
  vx_set_threads(2);
  vx_parallel(uneven, 0, 2);
  return atomic_load(&joined) ? atomic_load(&pool.cores[0]) : -3;
}
