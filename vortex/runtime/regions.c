/* Regions of one output side by side: tasks of all of them in one pool, the longest first, no barrier between. */
#include "tasks.h"

/* A region made ready: the plan of its family, and where its tasks begin among those of all. */
typedef struct {
  vx_call call;
  int64_t end, dot;
  vx_outer outer;
  vx_dotted dotted;
} ready;

typedef struct {
  int64_t count;
  ready regions[VX_REGIONS];
} job;

/* Along the vectors of a fixed extent only the micro-kernels of its own last vectors are there. */
int vx_may_cut(void) { return !vx_fixed[0] && !vx_fixed[1]; }

vx_call vx_region_call(const vx_call *call, const vx_region *region) {
  vx_call part = *call;
  vx_store moved = vx_store_of(call);
  vx_move_store(&moved, region->row, region->column);
  part.m = region->rows;
  part.n = region->columns;
  part.a += call->transpose_a ? region->row : region->row * call->lda;
  if (call->packed)
    part.b += region->column / call->panel * call->panel_stride;
  else
    part.b += call->transpose_b ? region->column * call->ldb : region->column;
  part.c = moved.out;
  for (int x = 0; x < VX_EXTRAS; x++) part.extras[x] = moved.extras[x];
  return part;
}

static void run_task(void *context, int64_t index) {
  job *work = context;
  int64_t begin = 0;
  for (int64_t r = 0; r < work->count; r++) {
    ready *region = &work->regions[r];
    if (index < region->end) {
      if (region->dot)
        vx_run_dots(&region->dotted, index - begin);
      else
        vx_run_outer(&region->outer, index - begin);
      return;
    }
    begin = region->end;
  }
}

int vx_execute_regions(const vx_call *call, const vx_region *regions, int64_t count) {
  job work;
  work.count = count;
  int placed[VX_REGIONS] = {0};
  int64_t tasks = 0;
  for (int64_t place = 0; place < count; place++) {
    int64_t next = -1;
    for (int64_t r = 0; r < count; r++)
      if (!placed[r] && (next < 0 || regions[r].task > regions[next].task)) next = r;
    placed[next] = 1;
    const vx_region *region = &regions[next];
    ready *made = &work.regions[place];
    vx_plan plan = {region->strategy, region->grid_m, region->grid_n, 1, 0};
    made->call = vx_region_call(call, region);
    made->dot = vx_strategies[region->strategy].dot;
    if (!made->dot)
      vx_make_outer(&made->outer, &made->call, &plan);
    else
      vx_dots_of(&made->call, &plan, &made->dotted);
    tasks += region->grid_m * region->grid_n;
    made->end = tasks;
  }
  vx_parallel(run_task, &work, tasks);
  for (int64_t r = 0; r < count; r++) {
    ready *made = &work.regions[r];
    if (made->dot ? made->dotted.out_of_memory : made->outer.out_of_memory) return 1;
  }
  return 0;
}
