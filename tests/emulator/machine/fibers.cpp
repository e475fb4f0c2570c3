// Fibers and the scheduler: which warp runs next, barriers of threads, deadlock.
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "machine.h"

// Saves the callee-saved registers of the System V ABI on the old stack and takes those of the new one.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

namespace emulator {
Machine machine;

namespace {
constexpr size_t kStack = 128 << 10;
constexpr unsigned kMostThreads = 1024;
void (*kernel_body)(void*);
void* kernel_context;

void to_scheduler() {
  Lane* lane = machine.current;
  machine.current = nullptr;
  emulator_switch(&lane->stack_pointer, machine.scheduler);
}

void lane_main() {
  kernel_body(kernel_context);
  machine.current->state = State::done;
  to_scheduler();
  std::abort();
}

char* stack_top(unsigned number) {
  static char* stacks = static_cast<char*>(mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  // Tops that are a power of two apart would all fall into the same lines of the host's cache.
  return stacks + kStack * (number + 1) - number % 128 * 448;
}

void prepare(Lane& lane) {
  lane.stack_top = stack_top(lane.number);
  void** top = reinterpret_cast<void**>(lane.stack_top);
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&lane_main);
  lane.stack_pointer = top - 8;  // six registers below the address to return to
  lane.state = State::runnable;
  lane.has_arrived = false;
  lane.open.clear();
  lane.groups.clear();
}

bool may_run(const Warp& warp) {
  for (unsigned i = warp.first; i < warp.first + warp.lanes; i++)
    if (machine.lanes[i].state == State::runnable || machine.lanes[i].state == State::paused) return true;
  return false;
}

// Runs a warp until none of its lanes can go on.
void run_warp(Warp& warp) {
  for (unsigned i = warp.first; i < warp.first + warp.lanes; i++)
    if (machine.lanes[i].state == State::paused) machine.lanes[i].state = State::runnable;
  const unsigned turn = machine.timing == Timing::random ? machine.random(warp.lanes) : 0;
  for (bool ran = true; ran;) {
    ran = false;
    for (unsigned i = 0; i < warp.lanes; i++) {
      Lane& lane = machine.lanes[warp.first + (i + turn) % warp.lanes];
      if (lane.state != State::runnable) continue;
      machine.current = &lane;
      emulator_switch(&machine.scheduler, lane.stack_pointer);
      if (machine.failed) throw std::runtime_error("failed");
      ran = true;
    }
  }
}

Warp* choose_warp() {
  std::vector<Warp>& warps = machine.warps;
  const unsigned count = static_cast<unsigned>(warps.size());
  // Eager: in order. Lazy: backwards. Random: any, with a favourite that runs ahead of the others for a while.
  static unsigned favourite;
  unsigned start = machine.timing == Timing::lazy ? count - 1 : 0;
  if (machine.timing == Timing::random) {
    if (machine.random(16) == 0) favourite = machine.random(count);
    start = machine.random(4) ? favourite % count : machine.random(count);
  }
  for (unsigned i = 0; i < count; i++) {
    Warp& warp = warps[machine.timing == Timing::lazy ? start - i : (start + i) % count];
    if (may_run(warp)) return &warp;
  }
  return nullptr;
}

void report_deadlock() {
  unsigned at_barrier = 0, in_warp = 0, polling = 0, done = 0;
  const char* operation = "";
  for (const Lane& lane : machine.lanes) {
    at_barrier += lane.state == State::at_barrier || lane.state == State::at_cluster;
    polling += lane.state == State::polling;
    done += lane.state == State::done;
    in_warp += lane.state == State::in_warp;
  }
  for (const Warp& warp : machine.warps)
    for (const Gathering& gathering : warp.gatherings) operation = gathering.operation;
  fail("deadlock: of %zu threads %u stand at a barrier, %u in a collective operation of their warp (%s), %u wait for an "
       "mbarrier, %u have returned", machine.lanes.size(), at_barrier, in_warp, operation, polling, done);
}

void run_cluster(Index first) {
  poison_windows();
  machine.cluster_arrived = machine.cluster_phase = 0;
  machine.barriers.clear();
  machine.transactions.clear();
  machine.tensor_copies.clear();
  for (Lane& lane : machine.lanes) {
    lane.place.block = {first.x + lane.rank, first.y, first.z};
    prepare(lane);
  }
  for (Warp& warp : machine.warps) {
    warp.open.clear();
    warp.groups.clear();
    warp.fenced = false;
    warp.gatherings.clear();
  }
  trace_block();
  for (;;) {
    if (machine.timing == Timing::random && machine.random(4) == 0) deliver_tensor_copy();
    if (Warp* warp = choose_warp()) {
      run_warp(*warp);
      continue;
    }
    if (deliver_tensor_copy()) continue;
    break;
  }
  for (const Lane& lane : machine.lanes)
    if (lane.state != State::done) report_deadlock();
  trace_barrier();
  check_windows();
}
}  // namespace

const Place& place() { return machine.current->place; }

void suspend(State state) {
  machine.current->state = state;
  to_scheduler();
}

void pause_sometimes() {
  if (machine.timing == Timing::random && machine.random(2)) suspend(State::paused);
}

void wake_polling() {
  for (Lane& lane : machine.lanes)
    if (lane.state == State::polling) lane.state = State::paused;
}

void must_run(unsigned rank, const char* what) {
  for (const Lane& lane : machine.lanes)
    if (lane.rank == rank && lane.state != State::done) return;
  fail("%s block %u of the cluster, which has ended", what, rank);
}

void cluster_arrive() {
  Lane& self = *machine.current;
  if (self.has_arrived) fail("barrier.cluster.arrive twice, with no wait between");
  self.has_arrived = true;
  self.cluster_phase = machine.cluster_phase;
  if (++machine.cluster_arrived < machine.lanes.size()) return;
  machine.cluster_arrived = 0;
  machine.cluster_phase++;
  machine.statistics.barriers++;
  for (Lane& lane : machine.lanes)
    if (lane.state == State::at_cluster) lane.state = State::paused;
}

void cluster_wait() {
  Lane& self = *machine.current;
  if (!self.has_arrived) fail("barrier.cluster.wait with no arrive before");
  while (machine.cluster_phase == self.cluster_phase) suspend(State::at_cluster);
  self.has_arrived = false;
  pause_sometimes();
}

void fail(const char* format, ...) {
  if (!machine.failed) {
    char* text = machine.message;
    size_t room = sizeof machine.message;
    if (const Lane* lane = machine.current) {
      const Place& p = lane->place;
      const int used = std::snprintf(text, room, "thread (%u, %u, %u) of block (%u, %u, %u): ", p.thread.x, p.thread.y,
                                     p.thread.z, p.block.x, p.block.y, p.block.z);
      text += used, room -= used;
    }
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, room, format, values);
    va_end(values);
    machine.failed = true;
  }
  if (!machine.current) throw std::runtime_error(machine.message);
  to_scheduler();  // which never comes back to this lane
  std::abort();
}

void named_barrier(unsigned id, unsigned threads, bool wait) {
  Lane& self = *machine.current;
  if (threads % kWarp || threads > machine.block_threads()) fail("barrier %u of %u threads", id, threads);
  Barrier* barrier = nullptr;
  for (Barrier& known : machine.barriers)
    if (known.rank == self.rank && known.id == id) barrier = &known;
  if (!barrier) machine.barriers.push_back({self.rank, id, threads, 0}), barrier = &machine.barriers.back();
  if (barrier->arrived == 0) barrier->expected = threads;
  if (barrier->expected != threads) fail("barrier %u for %u threads and for %u", id, threads, barrier->expected);
  if (++barrier->arrived < threads) {
    self.barrier = id;
    if (wait) suspend(State::at_barrier);
    return;
  }
  barrier->arrived = 0;
  machine.statistics.barriers++;
  if (threads == machine.block_threads()) trace_barrier();
  for (Lane& lane : machine.lanes)
    if (lane.state == State::at_barrier && lane.rank == self.rank && lane.barrier == id) lane.state = State::paused;
  suspend(State::paused);
}

void block_barrier() { named_barrier(0, (machine.block_threads() + kWarp - 1) / kWarp * kWarp, true); }

int run_grid(const Launch& launch, void (*body)(void*), void* context) {
  const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  machine.launch = launch;
  machine.traced = launch.traced;
  machine.timing = static_cast<Timing>(launch.timing);
  machine.random_state = launch.seed * 2654435761ull + 1;
  machine.statistics = {};
  machine.message[0] = 0;
  machine.failed = false;
  machine.current = nullptr;
  kernel_body = body;
  kernel_context = context;
  try {
    if (!threads || threads > kMostThreads || threads % kWarp) fail("blocks of %u threads are not emulated", threads);
    const unsigned all = threads * launch.cluster;
    if (!launch.cluster || launch.cluster > kMostBlocks || all > kMostThreads || (launch.cluster > 1 && launch.traced))
      fail("clusters of %u blocks of %u threads are not emulated, nor traced", launch.cluster, threads);
    machine.lanes.resize(all);
    machine.warps.resize(all / kWarp);
    for (unsigned number = 0; number < all; number++) {
      Lane& lane = machine.lanes[number];
      const unsigned i = number % threads;
      lane.number = number;
      lane.rank = number / threads;
      lane.place.thread = {i % launch.block.x, i / launch.block.x % launch.block.y, i / (launch.block.x * launch.block.y)};
      lane.place.block_extent = launch.block;
      lane.place.grid_extent = launch.grid;
    }
    for (unsigned w = 0; w < machine.warps.size(); w++) machine.warps[w].first = w * kWarp, machine.warps[w].lanes = kWarp;
    open_windows(launch);
    catch_faults(true);
    for (unsigned z = 0; z < launch.grid.z; z++)
      for (unsigned y = 0; y < launch.grid.y; y++)
        for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) run_cluster({x, y, z});
  } catch (const std::exception&) {
  }
  catch_faults(false);
  machine.current = nullptr;
  return machine.failed;
}
}  // namespace emulator

extern "C" const char* emulator_message() { return emulator::machine.message; }
extern "C" const int64_t* emulator_statistics() { return reinterpret_cast<int64_t*>(&emulator::machine.statistics); }
