// Every access to shared memory, seen through the calls that the host's compiler puts before loads and stores for its
// own thread sanitizer: conflicts of banks, and races between threads that no barrier orders, whatever ran first here.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "machine.h"

namespace emulator {
namespace {
constexpr unsigned kBanks = 32, kNobody = 0xffff;

struct Access {  // of one instruction by the lanes of a warp
  unsigned bytes, lanes;
  unsigned address[kWarp];
};
using Site = std::pair<const void*, unsigned>;  // where, and for the how many-th time since the warp was last together

struct Seen {  // who touched a byte last
  uint16_t writer = kNobody, reader = kNobody, in_flight = kNobody;
  bool lanes_read = false, warps_read = false;
  uint32_t write_block = 0, write_warp = 0, read_block = 0, read_warp = 0;
};

struct Trace {
  std::vector<Seen> seen;
  std::vector<std::map<Site, Access>> sites;                       // by warp
  std::vector<std::map<const void*, unsigned>> times;              // by lane
  std::vector<uint32_t> warp_epochs;
  uint32_t block_epoch = 1;
} trace;

const char* inside(const void* address) {
  const char* p = static_cast<const char*>(address);
  const Window& window = own_window();
  return machine.traced && machine.current && window.begin <= p && p < window.end ? p : nullptr;
}

// Wavefronts beyond one for every 128 bytes: lanes go in groups of as many as make that together.
int64_t conflicts(const Access& access) {
  const unsigned group = std::min(kWarp, 128 / std::max(access.bytes, 4u));
  int64_t extra = 0;
  for (unsigned first = 0; first < kWarp; first += group) {
    std::vector<unsigned> words[kBanks];
    for (unsigned lane = first; lane < first + group; lane++)
      if (access.lanes >> lane & 1)
        for (unsigned word = access.address[lane] / 4; word <= (access.address[lane] + access.bytes - 1) / 4; word++) {
          auto& bank = words[word % kBanks];
          if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
        }
    size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    if (most) machine.statistics.shared_accesses++, extra += static_cast<int64_t>(most) - 1;
  }
  return extra;
}

unsigned warp_of(unsigned lane) { return lane / kWarp; }

[[noreturn]] void race(const char* what, unsigned other, const char* p) {
  fail("a race in shared memory at offset %ld: %s, thread %u and thread %u", static_cast<long>(p - own_window().begin), what,
       machine.current->number, other);
}

void check_write(Seen& seen, unsigned self, const char* p) {
  const uint32_t epoch = trace.warp_epochs[warp_of(self)];
  if (seen.in_flight != kNobody) race("a write where a copy is on its way", seen.in_flight, p);
  if (seen.writer != kNobody && seen.writer != self && seen.write_block == trace.block_epoch &&
      (warp_of(seen.writer) != warp_of(self) || seen.write_warp == epoch))
    race("two writes", seen.writer, p);
  if (seen.reader != kNobody && seen.read_block == trace.block_epoch &&
      (seen.warps_read || warp_of(seen.reader) != warp_of(self) ||
       ((seen.reader != self || seen.lanes_read) && seen.read_warp == epoch)))
    race("a write after a read", seen.reader, p);
}

void mark_write(Seen& seen, unsigned self) {
  seen.writer = static_cast<uint16_t>(self);
  seen.write_block = trace.block_epoch;
  seen.write_warp = trace.warp_epochs[warp_of(self)];
}

void check_read(Seen& seen, unsigned self, const char* p) {
  const uint32_t epoch = trace.warp_epochs[warp_of(self)];
  if (seen.in_flight != kNobody) race("a read where a copy is on its way", seen.in_flight, p);
  if (seen.writer != kNobody && seen.writer != self && seen.write_block == trace.block_epoch &&
      (warp_of(seen.writer) != warp_of(self) || seen.write_warp == epoch))
    race("a read after a write", seen.writer, p);
  const bool current = seen.reader != kNobody && seen.read_block == trace.block_epoch;
  seen.lanes_read = current && (seen.lanes_read || seen.reader != self);
  seen.warps_read = current && (seen.warps_read || warp_of(seen.reader) != warp_of(self));
  seen.reader = static_cast<uint16_t>(self);
  seen.read_block = trace.block_epoch;
  seen.read_warp = epoch;
}

template <class Do> void each(const char* p, unsigned bytes, Do act) {
  const auto first = static_cast<size_t>(p - own_window().begin);
  const auto last = std::min(first + bytes, trace.seen.size());
  for (size_t i = first; i < last; i++) act(trace.seen[i]);
}

void record(const char* p, unsigned bytes, const void* where) {
  const Lane& lane = *machine.current;
  const unsigned time = trace.times[lane.number][where]++;
  auto& access = trace.sites[warp_of(lane.number)].try_emplace({where, time}, Access{bytes, 0, {}}).first->second;
  access.lanes |= 1u << lane.number % kWarp;
  access.address[lane.number % kWarp] = shared_address(p);
}
}  // namespace

void trace_block() {
  if (!machine.traced) return;
  trace.seen.assign(static_cast<size_t>(own_window().end - own_window().begin), Seen{});
  trace.sites.assign(machine.warps.size(), {});
  trace.times.assign(machine.lanes.size(), {});
  trace.warp_epochs.assign(machine.warps.size(), 1);
  trace.block_epoch = 1;
}

void trace_barrier() {
  if (!machine.traced) return;
  trace.block_epoch++;
  for (unsigned warp = 0; warp < machine.warps.size(); warp++) trace_together(warp, false);
}

void trace_together(unsigned warp, bool orders_memory) {
  if (!machine.traced) return;
  if (orders_memory) trace.warp_epochs[warp]++;
  for (const auto& [site, access] : trace.sites[warp]) machine.statistics.shared_conflicts += conflicts(access);
  trace.sites[warp].clear();
  for (unsigned lane = warp * kWarp; lane < (warp + 1) * kWarp; lane++) trace.times[lane].clear();
}

void trace_access(const void* address, unsigned bytes, bool writes, const void* where) {
  const char* p = inside(address);
  if (!p) return;
  const unsigned self = machine.current->number;
  if (where) record(p, bytes, where);
  each(p, bytes, [&](Seen& seen) {
    if (!writes) return check_read(seen, self, p);
    check_write(seen, self, p);
    mark_write(seen, self);
  });
}

void trace_copy(const void* address, unsigned bytes, bool ends, const void* where) {
  const char* p = inside(address);
  if (!p) return;
  const unsigned self = machine.current->number;
  if (where) record(p, bytes, where);
  each(p, bytes, [&](Seen& seen) {
    if (!ends) {
      check_write(seen, self, p);
      seen.in_flight = static_cast<uint16_t>(self);
    } else if (seen.in_flight == self) {
      seen.in_flight = kNobody;
      mark_write(seen, self);
    }
  });
}
}  // namespace emulator

#define TSAN(bytes)                                                                                                       \
  extern "C" void __tsan_read##bytes(void* p) { emulator::trace_access(p, bytes, false, __builtin_return_address(0)); }   \
  extern "C" void __tsan_write##bytes(void* p) { emulator::trace_access(p, bytes, true, __builtin_return_address(0)); }   \
  extern "C" void __tsan_unaligned_read##bytes(void* p) {                                                                 \
    emulator::trace_access(p, bytes, false, __builtin_return_address(0));                                                 \
  }                                                                                                                       \
  extern "C" void __tsan_unaligned_write##bytes(void* p) {                                                                \
    emulator::trace_access(p, bytes, true, __builtin_return_address(0));                                                  \
  }
TSAN(1)
TSAN(2)
TSAN(4)
TSAN(8)
TSAN(16)
extern "C" void __tsan_read_range(void* p, size_t bytes) {
  emulator::trace_access(p, static_cast<unsigned>(bytes), false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* p, size_t bytes) {
  emulator::trace_access(p, static_cast<unsigned>(bytes), true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
