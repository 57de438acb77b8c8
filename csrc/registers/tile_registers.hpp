// Tile registers: eight matrices of up to 16 rows of up to 64 bytes, and what is done with them.
//
// There are two forms with one interface, ``TileRegisters``: AMX's instructions, and plain C++ that
// does the same sums in the same order, bit by bit, for machines without them.
#pragma once

#include <cstdint>

#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

constexpr int tile_rows = 16;       // at most
constexpr int tile_row_bytes = 64;  // at most
constexpr int tile_bytes = tile_rows * tile_row_bytes;

// The shapes of all registers, as the processor reads them. Those without rows cannot be used.
struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t height) {
    rows[tile] = uint8_t(height);
    row_bytes[tile] = height ? tile_row_bytes : 0;
  }
};
static_assert(sizeof(TileShapes) == 64);

#if defined(__AMX_TILE__) || defined(QUIRE_PORTABLE_TILES)
// While there is one, numbers without a leading bit are taken and given as zeros, as tile registers
// do. Nothing may be computed beyond it, hence the barriers; what is computed must not be inlined.
class Flushed {
 public:
  Flushed() : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(0x9fc0);  // round to nearest even, flush, no exceptions
    asm volatile("" ::: "memory");
  }
  Flushed(const Flushed&) = delete;
  Flushed& operator=(const Flushed&) = delete;
  ~Flushed() {
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(before_);
  }

 private:
  const unsigned before_;
};
#endif

}  // namespace quire::QUIRE_ISA

#if defined(__AMX_TILE__)
#define QUIRE_HAS_TILES 1
#include "registers/tile_registers_amx.hpp"
#elif defined(QUIRE_PORTABLE_TILES)
#define QUIRE_HAS_TILES 1
#include "registers/tile_registers_portable.hpp"
#else
#define QUIRE_HAS_TILES 0
#endif

// Whose code computes what tile registers do not: compiled alike, it is in the module once.
#if QUIRE_HAS_TILES
#define QUIRE_WITHOUT_TILES avx512_bf16
#else
#define QUIRE_WITHOUT_TILES QUIRE_ISA
#endif

namespace quire::QUIRE_ISA {
constexpr bool has_tiles = QUIRE_HAS_TILES;
}
