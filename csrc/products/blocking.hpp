// How products are cut up, by instruction set and by number of rows. Few rows wait for memory, and
// many for arithmetic. Measured (benchmarks/products.py, benchmarks/decoding.py), but for tile
// registers and ARM.
#pragma once

#include "products/products.hpp"
#include "registers/tile_registers.hpp"
#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

// A tile is what registers hold the sums of: so many rows, or fewer, times so many panels. Pieces
// are what a thread takes at a time: of a product with many panels so many a thread.
struct Blocking {
  int rows, panels, pieces;
};

#if QUIRE_HAS_TILES  // two tile registers of rows and of panels
constexpr Blocking of_few{32, 2, 4}, of_many{32, 2, 16};
#elif defined(__aarch64__)  // 32 vectors, four to a panel
constexpr Blocking of_few{2, 2, 4}, of_many{6, 1, 16};
#elif defined(__AVX512F__)  // 32, one to a panel
constexpr Blocking of_few{4, 4, 4}, of_many{12, 2, 16};
#elif defined(__AVX2__)  // 16, two to a panel
constexpr Blocking of_few{1, 2, 4}, of_many{5, 1, 16};
#else  // four to a panel
constexpr Blocking of_few{1, 2, 4}, of_many{2, 1, 16};
#endif

// With so few rows tiles lose: of weights that are decoded for them, and of bytes in groups.
constexpr int few_decoded = 4, few_in_groups = 8;
constexpr int64_t cached_bytes = 1 << 19;  // of a piece's rows, in a core's own cache
constexpr int64_t decoded_from = W == 16 ? 64 : 16;  // rows, of weights that are decoded before

// Rows of a tile of many: where weights are in groups, fewer if registers then hold the sums of a
// group beside those of all. With bytes they hold all of them, for what is stored after each group
// would wait behind outputs, which wait for memory; and what codes of fewer bits are made of.
constexpr int tile_height(Format format, bool bytes) {
  if (!in_groups(format) || W < 16) return of_many.rows;
  return !bytes ? 8 : bits_of(format) == 8 ? 7 : 6;
}

QUIRE_INLINE constexpr const Blocking& blocking(int64_t rows) {
  return rows <= of_few.rows ? of_few : of_many;
}

}  // namespace quire::QUIRE_ISA
