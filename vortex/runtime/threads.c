/* L2: a pool that hands out tasks and never leaves its caller waiting for a thread that has not woken up.
 *
 * The caller works too. Tasks are claimed one at a time, so a late or descheduled worker costs the tasks it holds, not the call; a worker
 * that wakes after the last task was claimed is turned away at the gate. Threads are not pinned, but a worker is called to another core
 * than the caller's, where it could not run: the scheduler itself takes tens of milliseconds to part them. A second caller arriving
 * while the pool is busy runs its tasks by itself. After fork the child starts with an empty pool and makes its own threads when it first
 * needs them.
 *
 * A program whose other work runs on OpenMP threads lends them instead (vx_borrow_threads): two pools would each poll on the cores that
 * the other one needs. */
#define _GNU_SOURCE
#include "vortex_runtime.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORKERS 511
/* A waiting worker polls this long after its last job has ended before it sleeps: longer than the gap between the calls of a running
 * network. Where a core is a virtual one, sleeping hands it back to the host, which may take milliseconds to return it. */
#define POLL_NANOSECONDS 60000
#define CLOSED (1 << 30)
#define ASLEEP -1
#define NOT_YET -2 /* has not run so far */

static struct {
  pthread_mutex_t owner;
  int workers;                  /* created so far in this process */
  atomic_int threads;           /* caller included */
  atomic_uint generation;       /* bumped for each job; the futex that sleepers wait on */
  atomic_int sleepers;
  void (*task)(void *, int64_t);
  void *context;
  int64_t tasks;
  _Alignas(64) atomic_llong next;
  _Alignas(64) atomic_int gate; /* workers inside; CLOSED once the caller has seen the last task claimed */
  _Alignas(64) atomic_int left; /* workers that went out again */
  int seats;
  _Atomic(vx_fork_join) host;   /* the program's own pool, if it lends one */
  /* By worker: the core it was last seen on, by itself, or ASLEEP; written on a change alone, so that reading them costs little. */
  _Alignas(64) atomic_short cores[MAX_WORKERS];
  pid_t ids[MAX_WORKERS]; /* written before the first core */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .threads = 1};

static void forget_threads(void) {
  pthread_mutex_init(&pool.owner, NULL);
  pool.workers = 0;
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.gate, CLOSED);
  atomic_store(&pool.host, NULL); /* no OpenMP run time survives a fork */
}

__attribute__((constructor)) static void arm_fork(void) {
  atomic_store(&pool.gate, CLOSED);
  pthread_atfork(NULL, NULL, forget_threads);
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void claim_tasks(void) {
  int64_t index;
  while ((index = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < pool.tasks)
    pool.task(pool.context, index);
}

static int enter(void) {
  int inside = atomic_load(&pool.gate);
  while (inside < pool.seats)
    if (atomic_compare_exchange_weak(&pool.gate, &inside, inside + 1)) return 1;
  return 0;
}

static void be_seen(int worker, int core) {
  if (atomic_load_explicit(&pool.cores[worker], memory_order_relaxed) != core)
    atomic_store_explicit(&pool.cores[worker], (short)core, memory_order_release);
}

/* `took_part`: in the job before, which may go on without it; who else wants its core meanwhile can have it. */
static unsigned wait_for_job(int worker, unsigned seen, int took_part) {
  int64_t until = 0;
  unsigned now;
  int goes_on;
  do {
    be_seen(worker, sched_getcpu());
    for (int i = 0; i < 64; i++) {
      if ((now = atomic_load_explicit(&pool.generation, memory_order_acquire)) != seen) return now;
      __builtin_ia32_pause();
    }
    goes_on = took_part && !(atomic_load_explicit(&pool.gate, memory_order_relaxed) & CLOSED);
    if (goes_on) sched_yield();
    if (goes_on || !until) until = nanoseconds() + POLL_NANOSECONDS;
  } while (goes_on || nanoseconds() < until);
  be_seen(worker, ASLEEP);
  atomic_fetch_add(&pool.sleepers, 1);
  while ((now = atomic_load(&pool.generation)) == seen)
    syscall(SYS_futex, &pool.generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&pool.sleepers, 1);
  be_seen(worker, sched_getcpu());
  return now;
}

/* What a worker starts from. */
typedef struct {
  int worker;
  unsigned generation;
  cpu_set_t allowed;
} start;

static void set_free(pid_t worker, const cpu_set_t *allowed) { sched_setaffinity(worker, sizeof *allowed, allowed); }

static void *work(void *from) {
  int worker = ((start *)from)->worker;
  unsigned seen = ((start *)from)->generation;
  set_free(0, &((start *)from)->allowed);
  free(from);
  pool.ids[worker] = (pid_t)syscall(SYS_gettid);
  for (int inside = 0;;) {
    seen = wait_for_job(worker, seen, inside);
    if ((inside = enter())) {
      claim_tasks();
      atomic_fetch_add_explicit(&pool.left, 1, memory_order_release);
    }
  }
  return NULL;
}

/* All but `core`; 0 where there is no other. */
static int without(int core, const cpu_set_t *allowed, cpu_set_t *others) {
  *others = *allowed;
  CPU_CLR(core, others);
  return CPU_COUNT(others) > 0;
}

/* They begin off the core of their caller, for the reason that `call_workers` tells, and are free as soon as they run. */
static void create_workers(int wanted) {
  pthread_attr_t attributes;
  cpu_set_t allowed, others;
  CPU_ZERO(&allowed); /* an empty set is refused: where the mask is not known, none is set */
  int known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (known && without(sched_getcpu(), &allowed, &others)) pthread_attr_setaffinity_np(&attributes, sizeof others, &others);
  while (pool.workers < wanted) {
    pthread_t thread;
    start *from = malloc(sizeof *from);
    if (!from) break;
    *from = (start){pool.workers, atomic_load(&pool.generation), allowed};
    atomic_store(&pool.cores[pool.workers], NOT_YET);
    if (pthread_create(&thread, &attributes, work, from) != 0) {
      free(from);
      break;
    }
    pool.workers++;
  }
  pthread_attr_destroy(&attributes);
}

/* Off a core, until `set_free`. */
static int keep_off(pid_t worker, int core, cpu_set_t *allowed) {
  cpu_set_t others;
  return sched_getaffinity(worker, sizeof *allowed, allowed) == 0 && without(core, allowed, &others) &&
         sched_setaffinity(worker, sizeof others, &others) == 0;
}

/* Wakes who sleeps, and keeps who sleeps or is where the caller is off the caller's core meanwhile. Left to itself the scheduler may wake
 * a worker there, where it waits until the caller has done all tasks, polls in vain and sleeps again: call after call at half the speed
 * (seen on virtual machines, whose sleeping cores count as taken). */
static void call_workers(int wanted) {
  static cpu_set_t allowed[MAX_WORKERS]; /* the owner's */
  int here = sched_getcpu(), kept_off[MAX_WORKERS], count = 0;
  for (int worker = 0; worker < wanted && worker < pool.workers; worker++) {
    int core = atomic_load_explicit(&pool.cores[worker], memory_order_acquire);
    if ((core == here || core == ASLEEP) && keep_off(pool.ids[worker], here, &allowed[worker])) kept_off[count++] = worker;
  }
  if (atomic_load(&pool.sleepers) > 0) syscall(SYS_futex, &pool.generation, FUTEX_WAKE_PRIVATE, wanted, NULL, NULL, 0);
  while (count-- > 0) set_free(pool.ids[kept_off[count]], &allowed[kept_off[count]]);
}

void vx_set_threads(int64_t count) {
  atomic_store(&pool.threads, count < 1 ? 1 : count > MAX_WORKERS + 1 ? MAX_WORKERS + 1 : (int)count);
}

int64_t vx_get_threads(void) { return atomic_load_explicit(&pool.threads, memory_order_relaxed); }

void vx_borrow_threads(vx_fork_join fork_join) { atomic_store(&pool.host, fork_join); }

void vx_parallel(void (*task)(void *, int64_t), void *context, int64_t tasks) {
  int wanted = atomic_load_explicit(&pool.threads, memory_order_relaxed) - 1;
  if (wanted > tasks - 1) wanted = (int)(tasks - 1);
  vx_fork_join host = atomic_load_explicit(&pool.host, memory_order_relaxed);
  if (host && wanted > 0) {
    vx_share_out(host, (unsigned)wanted + 1, task, context, tasks);
    return;
  }
  if (wanted < 1 || pthread_mutex_trylock(&pool.owner) != 0) {
    for (int64_t index = 0; index < tasks; index++) task(context, index);
    return;
  }
  if (pool.workers < wanted) create_workers(wanted);
  pool.task = task;
  pool.context = context;
  pool.tasks = tasks;
  pool.seats = wanted;
  atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
  atomic_store_explicit(&pool.left, 0, memory_order_relaxed);
  atomic_store(&pool.gate, 0);
  atomic_fetch_add(&pool.generation, 1);
  call_workers(wanted);
  claim_tasks();
  int inside = atomic_fetch_or(&pool.gate, CLOSED);
  while (atomic_load_explicit(&pool.left, memory_order_acquire) != inside) __builtin_ia32_pause();
  pthread_mutex_unlock(&pool.owner);
}
