// Tile registers by AMX's instructions; included by tile_registers.hpp.
//
// The compiler's intrinsics want the number of a register spelled as a digit, and do not tell it
// that a load reads memory; so they are spelled out here.
#pragma once

namespace quire::QUIRE_ISA {

// A thread's registers. They are saved and restored with the thread until they are released.
class TileRegisters {
 public:
  TileRegisters() = default;
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() {
    if (configured_) asm volatile("tilerelease");
  }

  // All registers are zero afterwards.
  __attribute__((always_inline)) void configure(const TileShapes& shapes) {
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    configured_ = true;
  }

  template <int t>
  __attribute__((always_inline)) void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
  }

  // Rows are ``stride`` bytes apart in memory.
  template <int t>
  __attribute__((always_inline)) void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
  }
  template <int t>
  __attribute__((always_inline)) void store(void* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
  }

  // c += a b. Of bf16, b's rows are pairs of a's columns; of bytes they are fours, a's with signs,
  // b's without.
  template <int c, int a, int b>
  __attribute__((always_inline)) void add_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
  template <int c, int a, int b>
  __attribute__((always_inline)) void add_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }

 private:
  bool configured_ = false;
};

}  // namespace quire::QUIRE_ISA
