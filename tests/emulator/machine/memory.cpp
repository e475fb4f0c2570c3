// Memory: operands between pages that nobody may touch, the window of shared memory, and what a bad access leads to.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>

#include "machine.h"

namespace emulator {
namespace {
Window windows[kMostBlocks]{};
constexpr const char* kShared = "shared memory";
constexpr size_t kPage = 4096;
constexpr size_t kGuard = 16 << 20;  // wide: an access that is some rows off still ends here
constexpr size_t kHuge = 1 << 30;
constexpr int kPoison = 0xff;        // NaN in every format, and an index that leads nowhere

struct Region {
  char* reserved;
  size_t reserved_bytes;
  char *begin, *end;    // what the kernel may touch
  char *mapped, *last;  // whole pages
  char name[32];
};
std::vector<Region> regions;

Region reserve(size_t bytes, bool at_front, size_t offset, const char* name) {
  const size_t pages = (bytes + offset + kPage - 1) / kPage * kPage + (bytes + offset == 0) * kPage;
  Region region{};
  region.reserved_bytes = pages + 2 * kGuard;
  void* memory = mmap(nullptr, region.reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for operand %s", name);
  region.reserved = static_cast<char*>(memory);
  region.mapped = region.reserved + kGuard;
  region.last = region.mapped + pages;
  mprotect(region.mapped, pages, PROT_READ | PROT_WRITE);
  region.begin = at_front ? region.mapped + offset : region.last - bytes;
  region.end = region.begin + bytes;
  // A matrix of many gigabytes is mostly what lies between its rows: that stays as the host gives it, zero and unused.
  const bool is_huge = pages > kHuge;
  std::memset(region.mapped, kPoison, is_huge ? static_cast<size_t>(region.begin - region.mapped) : pages);
  std::memset(region.end, kPoison, static_cast<size_t>(region.last - region.end));
  std::snprintf(region.name, sizeof region.name, "%s", name);
  return region;
}

bool poisoned(const char* from, const char* to) {
  for (; from < to; from++)
    if (static_cast<unsigned char>(*from) != kPoison) return false;
  return true;
}

struct Crash {
  int signal;
  char* address;
} crash;

void crashed() {
  const char* address = crash.address;
  if (crash.signal == SIGILL) fail("misaligned access (an address that is no multiple of the size of its type)");
  if (crash.signal == SIGFPE) fail("division by zero");
  for (const Region& region : regions)
    if (region.reserved <= address && address < region.reserved + region.reserved_bytes) {
      if (address < region.begin) fail("access %ld bytes before %s", static_cast<long>(region.begin - address), region.name);
      fail("access %ld bytes after the end of %s", static_cast<long>(address - region.end), region.name);
    }
  fail("access to address %p, which is in no operand", static_cast<const void*>(address));
}

// Sends the faulting lane to `crashed` on a fresh piece of its own stack, once the signal is over.
void on_signal(int number, siginfo_t* information, void* context) {
  if (!machine.current) {
    signal(number, SIG_DFL);
    return;
  }
  crash = {number, static_cast<char*>(information->si_addr)};
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&crashed);
  registers[REG_RSP] = reinterpret_cast<greg_t>(machine.current->stack_top - 8);
}

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
struct sigaction before[4];
stack_t stack_before;
bool catching;
}  // namespace

void catch_faults(bool on) {
  if (on == catching) return;
  catching = on;
  if (!on) {
    for (int i = 0; i < 4; i++) sigaction(kSignals[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
    return;
  }
  static char own[64 << 10];
  stack_t stack{};
  stack.ss_sp = own;
  stack.ss_size = sizeof own;
  sigaltstack(&stack, &stack_before);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; i++) sigaction(kSignals[i], &action, &before[i]);
}

// The window ends where its last byte does; the address of dynamic memory is a multiple of what the source declares and
// of nothing more, so that a kernel that needs more is found out.
void open_windows(const Launch& launch) {
  const unsigned fixed = (launch.static_bytes + 15) / 16 * 16, bytes = fixed + (launch.dynamic_bytes + 15) / 16 * 16;
  for (size_t i = regions.size(); i--;)
    if (!std::strcmp(regions[i].name, kShared)) {
      munmap(regions[i].reserved, regions[i].reserved_bytes);
      regions.erase(regions.begin() + static_cast<long>(i));
    }
  const unsigned alignment = launch.dynamic_alignment;
  unsigned dynamic = (1024 + fixed + alignment - 1) / alignment * alignment;
  if (alignment < 1024 && dynamic % (2 * alignment) == 0) dynamic += alignment;
  for (unsigned rank = 0; rank < launch.cluster; rank++) {
    regions.push_back(reserve(bytes, false, 0, kShared));
    windows[rank] = {regions.back().begin, regions.back().end, dynamic - fixed, fixed};
  }
}

Window& own_window() { return windows[machine.current ? machine.current->rank : 0]; }

void poison_windows() {
  for (unsigned rank = 0; rank < machine.launch.cluster; rank++)
    std::memset(windows[rank].begin, kPoison, static_cast<size_t>(windows[rank].end - windows[rank].begin));
}

void check_windows() {
  for (const Region& region : regions)
    if (!std::strcmp(region.name, kShared) && !poisoned(region.mapped, region.begin)) fail("a write before shared memory");
}

unsigned in_block(unsigned address, unsigned rank) {
  if (rank >= machine.launch.cluster) fail("block %u of a cluster of %u", rank, machine.launch.cluster);
  return place_in_block(address) | (rank + 1) << kRankShift;
}

unsigned place_in_block(unsigned address) { return address & ((1u << kRankShift) - 1); }

unsigned rank_of(unsigned address) {
  if (address >> kRankShift) return (address >> kRankShift) - 1;
  return machine.current ? machine.current->rank : 0;
}

char* shared_pointer(unsigned address, unsigned bytes, unsigned alignment, const char* what) {
  return shared_pointer_in(rank_of(address), place_in_block(address), bytes, alignment, what);
}

char* shared_pointer_in(unsigned rank, unsigned address, unsigned bytes, unsigned alignment, const char* what) {
  const Window& window = windows[rank];
  const unsigned size = static_cast<unsigned>(window.end - window.begin);
  const unsigned offset = address - window.base;
  if (offset >= size || size - offset < bytes) fail("%s outside shared memory: offset %d of %u", what, static_cast<int>(offset), size);
  if (address % alignment) fail("%s at shared address %u, which is no multiple of %u", what, address, alignment);
  return window.begin + offset;
}

unsigned shared_address(const void* pointer) {
  const Window& window = own_window();
  const char* p = static_cast<const char*>(pointer);
  if (p < window.begin - kGuard || p > window.end + kGuard) fail("the address of shared memory is taken of something else");
  return static_cast<unsigned>(p - window.begin) + window.base;
}
char* static_shared(unsigned offset, unsigned bytes) { return shared_pointer(own_window().base + offset, bytes, 1, "a variable"); }
char* dynamic_shared() { return own_window().begin + own_window().dynamic_offset; }

void shared_store(unsigned address, const void* from, unsigned bytes) {
  char* to = shared_pointer(address, bytes, bytes, "a store");
  trace_access(to, bytes, true, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}
void shared_load(void* to, unsigned address, unsigned bytes) {
  const char* from = shared_pointer(address, bytes, bytes, "a load");
  trace_access(from, bytes, false, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}
void global_store(void* to, const void* from, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes) fail("misaligned store of %u bytes", bytes);
  std::memcpy(to, from, bytes);
}
void global_load(void* to, const void* from, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(from) % bytes) fail("misaligned load of %u bytes", bytes);
  std::memcpy(to, from, bytes);
}
}  // namespace emulator

// For the driver: `at_front` puts the first byte `offset` bytes behind a guard page, else the last byte before one.
extern "C" void* emulator_map(size_t bytes, int at_front, size_t offset, const char* name) {
  using namespace emulator;
  regions.push_back(reserve(bytes, at_front, offset, name));
  return regions.back().begin;
}
// The name of an operand beside which something was written, or null.
extern "C" const char* emulator_overrun() {
  using namespace emulator;
  for (const Region& region : regions)
    if (!poisoned(region.mapped, region.begin) || !poisoned(region.end, region.last)) return region.name;
  return nullptr;
}
extern "C" void emulator_unmap() {
  using namespace emulator;
  for (const Region& region : regions) munmap(region.reserved, region.reserved_bytes);
  regions.clear();
}
