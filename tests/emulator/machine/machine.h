// State of the emulated multiprocessor: one thread block at a time, or one cluster of them, every CUDA thread a fiber
// ("lane") with its own stack.
#pragma once
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <vector>

#include "device.h"

namespace emulator {

enum class Timing { eager, lazy, random };  // when asynchronous work happens: at once, as late as allowed, at any time
enum class State { runnable, paused, at_barrier, at_cluster, in_warp, polling, done };
constexpr unsigned kWarp = 32;

struct Copy {
  char* to;
  const char* from;
  unsigned bytes, from_bytes;
  bool made;
};

struct Lane {
  void* stack_pointer = nullptr;
  char* stack_top = nullptr;
  unsigned number = 0;  // in the cluster
  unsigned rank = 0;    // of its block there
  Place place{};
  State state = State::done;
  unsigned barrier = 0;  // which one it stands at
  unsigned cluster_phase = 0;  // of the barrier of the cluster, when it arrived there
  bool has_arrived = false;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

struct Product {  // one wgmma of one warp, issued and perhaps not yet carried out
  int columns;
  Format format;
  uint64_t a, b;
  bool accumulate, a_transposed, b_transposed;
  std::vector<float*> accumulators[kWarp];
};

struct Gathering {  // lanes of a warp on their way to one collective operation
  const char* operation;
  unsigned mask, arrived;
  void* records[kWarp];
};

struct Warp {
  unsigned first = 0, lanes = 0;
  bool fenced = false;
  std::vector<Gathering> gatherings;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
};

struct Barrier {  // of threads
  unsigned rank, id, expected, arrived;
};

struct TensorCopy {
  unsigned rank, to, barrier;
  TensorMap map;  // a copy: the thread that asked may return before its data comes
  int c0, c1;
};

struct Transaction {  // mbarrier
  unsigned rank, address, count, pending;
  int64_t bytes;
  unsigned phase;
};

struct Statistics {
  int64_t barriers, copies, ldmatrix, mma, shuffles, tensor_loads, wgmma, ldmatrix_conflicts, shared_accesses, shared_conflicts;
};

struct Machine {
  Launch launch{};
  Timing timing = Timing::eager;
  uint64_t random_state = 1;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<Barrier> barriers;
  std::vector<Transaction> transactions;
  std::deque<TensorCopy> tensor_copies;
  unsigned cluster_arrived = 0, cluster_phase = 0;
  Lane* current = nullptr;
  void* scheduler = nullptr;
  Statistics statistics{};
  char message[512] = {};
  bool failed = false;
  bool traced = false;

  unsigned random(unsigned below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>((random_state >> 33) % below);
  }
  // Whether a piece of asynchronous work that may happen now does.
  bool now() { return timing == Timing::eager || (timing == Timing::random && random(2)); }
  Warp& warp_of(const Lane& lane) { return warps[lane.number / kWarp]; }
  unsigned block_threads() const { return static_cast<unsigned>(lanes.size()) / launch.cluster; }
};
extern Machine machine;

// fibers.cpp
void suspend(State state);  // of the running lane, until somebody makes it runnable
void pause_sometimes();     // lets other warps go first, where timing is random
void wake_polling();
void must_run(unsigned rank, const char* what);  // fails where all threads of a block of the cluster have returned

// warps.cpp: every lane of `mask` brings a record; the last one to come acts for all.
using Act = void (*)(Warp& warp, unsigned mask, void** records);
void together(const char* operation, unsigned mask, void* record, Act act);
unsigned whole_warp();

// memory.cpp
constexpr unsigned kMostBlocks = 2, kRankShift = 24;  // of a cluster; where an address tells a block
struct Window {  // a block's shared memory
  char *begin, *end;
  unsigned base, dynamic_offset;  // address of `begin`
};
Window& own_window();
void open_windows(const Launch& launch);
void poison_windows();
void check_windows();
unsigned rank_of(unsigned address);  // the block that an address is of: the running thread's, if it tells none
unsigned place_in_block(unsigned address);
char* shared_pointer(unsigned address, unsigned bytes, unsigned alignment, const char* what);
char* shared_pointer_in(unsigned rank, unsigned address, unsigned bytes, unsigned alignment, const char* what);
void catch_faults(bool on);

// trace.cpp: nothing happens unless the kernel was compiled for it. `where` tells instructions apart.
void trace_block();
void trace_barrier();
void trace_together(unsigned warp, bool orders_memory);
void trace_access(const void* address, unsigned bytes, bool writes, const void* where);
void trace_copy(const void* address, unsigned bytes, bool ends, const void* where);

// hopper.cpp
bool deliver_tensor_copy();  // one of those in flight; false where there is none
}  // namespace emulator
