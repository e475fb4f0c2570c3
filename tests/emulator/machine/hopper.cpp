// sm_90: mbarriers that count bytes, two-dimensional tensor copies with swizzle, and wgmma from shared memory.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {
namespace {
constexpr uint64_t kTag = 0x6d62617272696572;  // lies where an mbarrier lives; who overwrites it is found out

Transaction& transaction_in(unsigned rank, unsigned address) {
  uint64_t tag;
  std::memcpy(&tag, shared_pointer_in(rank, address, 8, 8, "mbarrier"), 8);
  for (Transaction& known : machine.transactions)
    if (known.rank == rank && known.address == address) {
      if (tag != kTag) fail("the mbarrier at shared address %u was overwritten", address);
      return known;
    }
  fail("the mbarrier at shared address %u was not initialized", address);
}

Transaction& transaction(unsigned address) {
  return transaction_in(rank_of(address), place_in_block(address));
}

void complete_if_done(Transaction& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
  wake_polling();
}

unsigned swizzled(unsigned address, int bytes) {  // 16-byte chunks of a row exchanged by the row's number
  if (bytes == 128) return address ^ (address >> 3 & 0x70);
  if (bytes == 64) return address ^ (address >> 3 & 0x30);
  if (bytes == 32) return address ^ (address >> 3 & 0x10);
  return address;
}

void carry_out(const TensorCopy& copy) {
  const TensorMap& map = copy.map;
  if (machine.launch.cluster > 1) must_run(copy.rank, "a tensor copy into");
  const int row_bytes = map.box[0] * map.element_bytes;
  for (int j = 0; j < map.box[1]; j++)
    for (int i = 0; i < map.box[0]; i++) {
      const int64_t x = int64_t{copy.c0} + i, y = int64_t{copy.c1} + j;
      const unsigned to = swizzled(copy.to + static_cast<unsigned>(j * row_bytes + i * map.element_bytes), map.swizzle_bytes);
      const unsigned size = static_cast<unsigned>(map.element_bytes);
      char* target = shared_pointer_in(copy.rank, to, size, size, "a tensor copy");
      if (x >= 0 && x < map.extent[0] && y >= 0 && y < map.extent[1])
        std::memcpy(target, map.base + y * map.row_bytes + x * map.element_bytes, size);
      else
        std::memset(target, 0, size);
    }
  Transaction& barrier = transaction_in(copy.rank, copy.barrier);
  barrier.bytes -= int64_t{map.box[0]} * map.box[1] * map.element_bytes;
  complete_if_done(barrier);
}
}  // namespace

void mbarrier_init(unsigned address, unsigned count) {
  const unsigned rank = machine.current->rank;
  std::memcpy(shared_pointer(address, 8, 8, "mbarrier"), &kTag, 8);
  for (Transaction& known : machine.transactions)
    if (known.rank == rank && known.address == address) fail("the mbarrier at shared address %u is initialized twice", address);
  machine.transactions.push_back({rank, address, count, count, 0, 0});
}

void mbarrier_arrive(unsigned address, unsigned count) {
  must_run(rank_of(address), "an arrival at an mbarrier in");
  Transaction& barrier = transaction(address);
  if (count > barrier.pending) fail("more arrivals at an mbarrier than it counts (%u)", barrier.count);
  barrier.pending -= count;
  complete_if_done(barrier);
  pause_sometimes();
}

void mbarrier_expect(unsigned address, unsigned bytes, bool arrive) {
  transaction(address).bytes += bytes;
  if (arrive) mbarrier_arrive(address, 1);
}

bool mbarrier_try_wait(unsigned address, unsigned parity) {
  if (transaction(address).phase != (parity & 1)) return true;
  suspend(State::polling);
  return transaction(address).phase != (parity & 1);
}

void tensor_load(unsigned to, const void* map, int c0, int c1, unsigned barrier, unsigned blocks) {
  machine.statistics.tensor_loads++;
  const auto* tensor = static_cast<const TensorMap*>(map);
  if (reinterpret_cast<uintptr_t>(map) % 64) fail("a tensor map must lie at a multiple of 64 bytes");
  if (reinterpret_cast<uintptr_t>(tensor->base) % 16 || tensor->row_bytes % 16) fail("a tensor map needs 16-byte rows");
  if (tensor->box[0] > 256 || tensor->box[1] > 256) fail("a box of more than 256 elements");
  if (tensor->swizzle_bytes && tensor->box[0] * tensor->element_bytes > tensor->swizzle_bytes) fail("a box wider than the swizzle");
  shared_pointer(to, 128, tensor->swizzle_bytes == 128 ? 1024 : 128, "a tensor copy");
  if (blocks >> machine.launch.cluster) fail("a tensor copy to blocks 0x%x of a cluster of %u", blocks, machine.launch.cluster);
  if (!blocks) blocks = 1u << machine.current->rank;
  for (unsigned rank = 0; rank < machine.launch.cluster; rank++) {  // it comes to each when it comes there
    if (!(blocks >> rank & 1)) continue;
    must_run(rank, "a tensor copy into");
    transaction_in(rank, barrier);
    const TensorCopy copy{rank, to, barrier, *tensor, c0, c1};
    if (machine.now())
      carry_out(copy);
    else
      machine.tensor_copies.push_back(copy);
  }
}

bool deliver_tensor_copy() {
  auto& waiting = machine.tensor_copies;
  if (waiting.empty()) return false;
  const auto chosen = waiting.begin() + (machine.timing == Timing::random ? machine.random(static_cast<unsigned>(waiting.size())) : 0);
  const TensorCopy copy = *chosen;
  waiting.erase(chosen);
  carry_out(copy);
  return true;
}

namespace {
struct Descriptor {
  unsigned start, leading, stride;
};

Descriptor decode(uint64_t word) {
  if (word >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
  const Descriptor descriptor{static_cast<unsigned>(word & 0x3fff) << 4, static_cast<unsigned>(word >> 16 & 0x3fff) << 4,
                              static_cast<unsigned>(word >> 32 & 0x3fff) << 4};
  // Without a base offset the pattern of eight rows must start at a multiple of 1024 bytes.
  if (descriptor.start & 0x380 || word >> 49 & 7) fail("wgmma: a matrix that starts inside a swizzle pattern");
  return descriptor;
}

float wide(uint16_t raw, Format format) {
  return format == Format::f16 ? static_cast<float>(bits<_Float16>(raw)) : bits<float>(static_cast<uint32_t>(raw) << 16);
}

// to[k][i] for rows first .. first + count of the matrix and the steps of k in 32 bytes. K runs inside the 128-byte rows,
// or, where `transposed`, the other extent does: 64 elements a row, the next 64 `leading` further, eight k a pattern, the
// next eight `stride` further.
void fetch(float* to, int pitch, const Descriptor& from, bool transposed, int first, int count, Format format) {
  uint16_t chunk[8];
  if (!transposed) {
    for (int i = 0; i < count; i++)
      for (int half = 0; half < 2; half++) {
        const int row = first + i;
        const unsigned address = from.start + static_cast<unsigned>(row / 8) * from.stride + static_cast<unsigned>(row % 8 * 128 + half * 16);
        std::memcpy(chunk, shared_pointer(swizzled(address, 128), 16, 16, "wgmma"), 16);
        if (format == Format::tf32) {
          uint32_t words[4];
          std::memcpy(words, chunk, 16);
          for (int e = 0; e < 4; e++) to[(4 * half + e) * pitch + i] = bits<float>(words[e] & 0xffffe000u);
        } else {
          for (int e = 0; e < 8; e++) to[(8 * half + e) * pitch + i] = wide(chunk[e], format);
        }
      }
    return;
  }
  for (int k = 0; k < 16; k++)
    for (int i = 0; i < count; i += 8) {
      const int row = first + i;
      const unsigned address = from.start + static_cast<unsigned>(row / 64) * from.leading + static_cast<unsigned>(row % 64 * 2) +
                               static_cast<unsigned>(k / 8) * from.stride + static_cast<unsigned>(k % 8 * 128);
      std::memcpy(chunk, shared_pointer(swizzled(address, 128), 16, 16, "wgmma"), 16);
      for (int e = 0; e < 8; e++) to[k * pitch + i + e] = wide(chunk[e], format);
    }
}

void multiply(const Warp& warp, const Product& product) {
  const int quarter = static_cast<int>(warp.first / kWarp % 4), columns = product.columns;
  const int depth = product.format == Format::tf32 ? 8 : 16;
  float a[16][16];
  static float b[16][256], d[16][256];
  fetch(a[0], 16, decode(product.a), product.a_transposed, 16 * quarter, 16, product.format);
  fetch(b[0], 256, decode(product.b), product.b_transposed, 0, columns, product.format);
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < columns / 2; i++) {
      float& value = d[lane / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + lane % 4 * 2 + i % 2];
      value = product.accumulate ? *product.accumulators[lane][static_cast<size_t>(i)] : 0.f;
    }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < depth; k++)
      for (int column = 0; column < columns; column++) d[row][column] += a[k][row] * b[k][column];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < columns / 2; i++)
      *product.accumulators[lane][static_cast<size_t>(i)] = d[lane / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

struct Issue {
  int columns;
  Format format;
  float** d;
  uint64_t a, b;
  bool accumulate, a_transposed, b_transposed;
};
}  // namespace

void wgmma(int columns, Format format, float** d, uint64_t a, uint64_t b, bool accumulate, bool a_transposed, bool b_transposed) {
  Issue own{columns, format, d, a, b, accumulate, a_transposed, b_transposed};
  together("wgmma.mma_async", whole_warp(), &own, [](Warp& warp, unsigned, void** records) {
    machine.statistics.wgmma++;
    if (!warp.fenced) fail("wgmma without wgmma.fence after the accumulators were last at rest");
    const auto& first = *static_cast<Issue*>(records[0]);
    Product product{first.columns, first.format, first.a, first.b, first.accumulate, first.a_transposed, first.b_transposed, {}};
    for (unsigned lane = 0; lane < kWarp; lane++) {
      const auto& self = *static_cast<Issue*>(records[lane]);
      if (self.a != first.a || self.b != first.b) fail("wgmma: descriptors differ inside a warp");
      product.accumulators[lane].assign(self.d, self.d + first.columns / 2);
    }
    warp.open.push_back(std::move(product));
    if (machine.timing == Timing::eager) {  // in order, because accumulators are shared between products
      multiply(warp, warp.open.back());
      warp.open.pop_back();
    }
  });
}

void wgmma_fence() {
  together("wgmma.fence", whole_warp(), nullptr, [](Warp& warp, unsigned, void**) { warp.fenced = true; });
}

void wgmma_commit() {
  together("wgmma.commit_group", whole_warp(), nullptr, [](Warp& warp, unsigned, void**) {
    warp.groups.push_back(std::move(warp.open));
    warp.open.clear();
  });
}

void wgmma_wait(unsigned pending) {
  unsigned own = pending;
  together("wgmma.wait_group", whole_warp(), &own, [](Warp& warp, unsigned, void** records) {
    unsigned left = *static_cast<unsigned*>(records[0]);
    if (machine.timing == Timing::random && left) left = machine.random(left + 1);
    while (warp.groups.size() > left) {
      for (const Product& product : warp.groups.front()) multiply(warp, product);
      warp.groups.pop_front();
    }
    warp.fenced = false;
  });
  pause_sometimes();
}

void warpgroup_registers(int count, bool) {
  if (count < 24 || count > 256 || count % 8) fail("setmaxnreg %d", count);
  together("setmaxnreg", whole_warp(), nullptr, [](Warp&, unsigned, void**) {});
}
}  // namespace emulator
