// What the lanes of a warp do together: barriers, shuffles, ldmatrix, mma.sync; and cp.async, which each does alone.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {

unsigned whole_warp() { return 0xffffffffu; }

void together(const char* operation, unsigned mask, void* record, Act act) {
  Lane& self = *machine.current;
  Warp& warp = machine.warp_of(self);
  const unsigned own = self.number % kWarp;
  if (!(mask >> own & 1)) fail("%s with a mask that leaves out the lane itself", operation);
  Gathering* gathering = nullptr;
  for (Gathering& other : warp.gatherings) {
    if (!(other.mask & mask)) continue;
    if (other.operation != operation || other.mask != mask)
      fail("the warp diverges: lane %u is at %s, others at %s", own, operation, other.operation);
    gathering = &other;
  }
  if (!gathering) warp.gatherings.push_back({operation, mask, 0, {}}), gathering = &warp.gatherings.back();
  gathering->arrived |= 1u << own;
  gathering->records[own] = record;
  if (gathering->arrived != mask) return suspend(State::in_warp);
  void* records[kWarp];
  std::memcpy(records, gathering->records, sizeof records);
  warp.gatherings.erase(warp.gatherings.begin() + (gathering - warp.gatherings.data()));
  if (mask == whole_warp()) trace_together(self.number / kWarp, act == nullptr);
  if (act) act(warp, mask, records);
  for (unsigned i = 0; i < kWarp; i++)
    if (mask >> i & 1) machine.lanes[warp.first + i].state = State::runnable;
}

void warp_barrier(unsigned mask) {
  together("__syncwarp", mask, nullptr, nullptr);
}

bool elected(unsigned mask) {
  together("elect.sync", mask, nullptr, nullptr);
  return machine.current == &machine.lanes[machine.warp_of(*machine.current).first + __builtin_ctz(mask)];
}

unsigned active_mask() {
  const Warp& warp = machine.warp_of(*machine.current);
  unsigned mask = 0;
  for (unsigned i = 0; i < kWarp; i++) mask |= (machine.lanes[warp.first + i].state != State::done) << i;
  return mask;
}

namespace {
struct Shuffle {
  uint32_t value, result;
  char kind;
  int operand, width;
};
}  // namespace

uint32_t shuffle(unsigned mask, uint32_t value, char kind, int operand, int width) {
  Shuffle own{value, 0, kind, operand, width};
  together("shfl.sync", mask, &own, [](Warp&, unsigned members, void** records) {
    machine.statistics.shuffles++;
    for (int lane = 0; lane < static_cast<int>(kWarp); lane++) {
      auto* self = static_cast<Shuffle*>(records[lane]);
      if (!self) continue;
      const int first = lane & -self->width, last = first + self->width - 1;
      int from = lane;
      if (self->kind == 'i') from = first + (self->operand & (self->width - 1));
      if (self->kind == 'x') from = lane ^ self->operand;
      if (self->kind == 'd') from = lane + self->operand;
      if (self->kind == 'u') from = lane - self->operand;
      if (from < first || from > last) from = lane;
      self->result = members >> from & 1 ? static_cast<Shuffle*>(records[from])->value : 0xffffffffu;
    }
  });
  return own.result;
}

namespace {
struct Matrices {
  unsigned address;
  bool transposed;
  int count;
  unsigned* to;
};

void load_matrices_of_warp(Warp&, unsigned, void** records) {
  machine.statistics.ldmatrix++;
  const auto& first = *static_cast<Matrices*>(records[0]);
  uint16_t rows[32][8];
  for (int m = 0; m < first.count; m++) {
    unsigned rows_in_bank[8] = {};  // eight lanes read 16 bytes each: conflict-free where each has its own four banks
    unsigned addresses[8];
    for (int r = 0; r < 8; r++) {
      const unsigned address = static_cast<Matrices*>(records[m * 8 + r])->address;
      std::memcpy(rows[m * 8 + r], shared_pointer(address, 16, 16, "ldmatrix"), 16);
      if (std::find(addresses, addresses + r, address) == addresses + r) rows_in_bank[address / 16 % 8]++;
      addresses[r] = address;
    }
    machine.statistics.ldmatrix_conflicts += *std::max_element(rows_in_bank, rows_in_bank + 8) - 1;
  }
  for (int lane = 0; lane < 32; lane++)
    for (int m = 0; m < first.count; m++) {
      const auto& self = *static_cast<Matrices*>(records[lane]);
      const int row = lane / 4, column = lane % 4 * 2;
      const uint16_t low = self.transposed ? rows[m * 8 + column][row] : rows[m * 8 + row][column];
      const uint16_t high = self.transposed ? rows[m * 8 + column + 1][row] : rows[m * 8 + row][column + 1];
      self.to[m] = low | static_cast<unsigned>(high) << 16;
    }
}
}  // namespace

void load_matrices(unsigned address, bool transposed, int count, unsigned* to) {
  Matrices own{address, transposed, count, to};
  if (machine.current->number % kWarp < 8 * static_cast<unsigned>(count))
    trace_access(shared_pointer(address, 16, 16, "ldmatrix"), 16, false, nullptr);
  static const char* const names[] = {"ldmatrix", "ldmatrix.trans"};
  together(names[transposed], whole_warp(), &own, load_matrices_of_warp);
}

namespace {
struct Mma {
  int depth;
  Format format;
  float* d;
  const unsigned *a, *b;
  const float* c;
};

void widen(float* to, const uint16_t* from, int count, Format format) {
  if (format == Format::f16)
    for (int i = 0; i < count; i++) to[i] = static_cast<float>(bits<_Float16>(from[i]));
  else
    for (int i = 0; i < count; i++) to[i] = bits<float>(static_cast<uint32_t>(from[i]) << 16);
}

// Fragment layouts of the PTX manual: lane = 4 * group + member; A row = group (+8), k = 2 * member (+8) in pairs, of B
// column = group and the same k; for TF32 k = member (+4), alone.
void mma_of_warp(Warp&, unsigned, void** records) {
  machine.statistics.mma++;
  const auto& first = *static_cast<Mma*>(records[0]);
  const int depth = first.depth;
  const bool pairs = first.format != Format::tf32;
  const int half = pairs ? 8 : 4, a_words = depth / half * 2, b_words = depth / half;
  alignas(64) float a[16][16] = {}, b[8][16] = {}, turned[16][8], d[16][8];
  alignas(64) uint16_t raw_a[16][16] = {}, raw_b[8][16] = {};
  for (int lane = 0; lane < 32; lane++) {
    const auto& self = *static_cast<Mma*>(records[lane]);
    const int group = lane / 4, member = lane % 4;
    if (pairs) {
      for (int r = 0; r < a_words; r++) std::memcpy(&raw_a[group + 8 * (r % 2)][2 * member + 8 * (r / 2)], &self.a[r], 4);
      for (int r = 0; r < b_words; r++) std::memcpy(&raw_b[group][2 * member + 8 * r], &self.b[r], 4);
    } else {
      for (int r = 0; r < a_words; r++) a[group + 8 * (r % 2)][member + 4 * (r / 2)] = bits<float>(self.a[r] & 0xffffe000u);
      for (int r = 0; r < b_words; r++) b[group][member + 4 * r] = bits<float>(self.b[r] & 0xffffe000u);
    }
    for (int i = 0; i < 4; i++) d[group + 8 * (i / 2)][2 * member + i % 2] = self.c[i];
  }
  if (pairs) {
    widen(a[0], raw_a[0], 256, first.format);
    widen(b[0], raw_b[0], 128, first.format);
  }
  for (int k = 0; k < 16; k++)
    for (int column = 0; column < 8; column++) turned[k][column] = b[column][k];
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < depth; k++)
      for (int column = 0; column < 8; column++) d[row][column] += a[row][k] * turned[k][column];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++)
      static_cast<Mma*>(records[lane])->d[i] = d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
}
}  // namespace

void mma(int depth, Format format, float* d, const unsigned* a, const unsigned* b, const float* c) {
  Mma own{depth, format, d, a, b, c};
  together("mma.sync", whole_warp(), &own, mma_of_warp);
}

namespace {
struct MmaOfBytes {
  int* d;
  const unsigned *a, *b;
  const int* c;
};

// m16n8k32: as with 16-bit elements, four bytes of k in the place of two: k = 4 * member (+16).
void mma_of_bytes(Warp&, unsigned, void** records) {
  machine.statistics.mma++;
  int8_t a[16][32], b[8][32];
  int d[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const auto& self = *static_cast<MmaOfBytes*>(records[lane]);
    const int group = lane / 4, member = lane % 4;
    for (int r = 0; r < 4; r++) std::memcpy(&a[group + 8 * (r % 2)][4 * member + 16 * (r / 2)], &self.a[r], 4);
    for (int r = 0; r < 2; r++) std::memcpy(&b[group][4 * member + 16 * r], &self.b[r], 4);
    for (int i = 0; i < 4; i++) d[group + 8 * (i / 2)][2 * member + i % 2] = self.c[i];
  }
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++)
      for (int k = 0; k < 32; k++) d[row][column] += a[row][k] * b[column][k];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++)
      static_cast<MmaOfBytes*>(records[lane])->d[i] = d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
}
}  // namespace

void mma_s8(int* d, const unsigned* a, const unsigned* b, const int* c) {
  MmaOfBytes own{d, a, b, c};
  together("mma.sync", whole_warp(), &own, mma_of_bytes);
}

namespace {
void make(Copy& copy) {
  if (copy.made) return;
  copy.made = true;
  std::memcpy(copy.to, copy.from, copy.from_bytes);
  std::memset(copy.to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}
}  // namespace

void copy_async(unsigned to, const void* from, unsigned bytes, unsigned from_bytes) {
  machine.statistics.copies++;
  char* target = shared_pointer(to, bytes, bytes, "cp.async");
  if (from_bytes > bytes) fail("cp.async of %u bytes out of %u", from_bytes, bytes);
  if (from_bytes && reinterpret_cast<uintptr_t>(from) % bytes) fail("cp.async of %u bytes from a misaligned address", bytes);
  Lane& self = *machine.current;
  trace_copy(target, bytes, false, __builtin_return_address(0));
  self.open.push_back({target, static_cast<const char*>(from), bytes, from_bytes, false});
  if (machine.now()) make(self.open.back());
}

void copy_commit() {
  Lane& self = *machine.current;
  if (machine.timing == Timing::random)
    for (auto& group : self.groups)
      for (Copy& copy : group)
        if (machine.random(4) == 0) make(copy);
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}

void copy_wait(unsigned pending) {
  Lane& self = *machine.current;
  while (self.groups.size() > pending) {
    for (Copy& copy : self.groups.front()) {
      make(copy);
      trace_copy(copy.to, copy.bytes, true, nullptr);
    }
    self.groups.pop_front();
  }
}
}  // namespace emulator
