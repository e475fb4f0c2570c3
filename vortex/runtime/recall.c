/* What this thread has chosen before: networks ask for the same few shapes again and again, and to look takes a tenth of choosing. */
#include "vortex_runtime.h"

#include <stdatomic.h>

#define ENTRIES 64 /* a power of two */
enum { REGIONS = 0 }; /* in place of a number of products: one, and it may be cut into regions */

/* All that a choice depends on; one that was never asked has `era` 0. */
typedef struct {
  int64_t m, n, k, lda, ldb, layout, threads, batch, items_a, items_b, era;
} question;

typedef struct {
  question asked;
  vx_choice choice;
} entry;

static __thread entry entries[ENTRIES];
static atomic_llong era = 1;

void vx_forget(void) { atomic_fetch_add(&era, 1); }

/* Word by word: what was just written so is read wider with a wait. */
static int same(const question *x, const question *y) {
  return !((x->m ^ y->m) | (x->n ^ y->n) | (x->k ^ y->k) | (x->lda ^ y->lda) | (x->ldb ^ y->ldb) | (x->layout ^ y->layout) |
           (x->threads ^ y->threads) | (x->batch ^ y->batch) | (x->items_a ^ y->items_a) | (x->items_b ^ y->items_b) | (x->era ^ y->era));
}

static uint64_t mixed(uint64_t hash, int64_t value) { return (hash ^ (uint64_t)value) * UINT64_C(0x9E3779B97F4A7C15); }

/* The entry of a question, whether it answers it or another. */
static entry *entry_of(const question *q) {
  uint64_t hash = mixed(mixed(mixed(mixed((uint64_t)q->layout, q->m), q->n), q->k), q->batch);
  return &entries[hash >> 32 & (ENTRIES - 1)];
}

static const vx_choice *recall(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads) {
  question q = {call->m, call->n, call->k, call->lda, call->ldb, call->transpose_a | call->transpose_b << 1 | call->packed << 2,
                threads, batch, items_a, items_b, atomic_load_explicit(&era, memory_order_relaxed)};
  entry *at = entry_of(&q);
  if (!same(&at->asked, &q)) {
    if (batch == REGIONS)
      at->choice.plan = vx_choose(call, threads, &at->choice.polymer);
    else
      at->choice.plan = vx_select_batch(call, batch, items_a, items_b, threads);
    at->asked = q;
  }
  return &at->choice;
}

const vx_choice *vx_recall(const vx_call *call, int64_t threads) { return recall(call, REGIONS, 1, 1, threads); }

vx_plan vx_recall_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads) {
  return recall(call, batch, items_a, items_b, threads)->plan;
}
