// Attention's products by tile registers: 32 query rows times 32 keys, or 32 dimensions, at a time.
//
// The pool has keys and values as the processor wants a second factor, so that whole tiles are
// loaded from where they lie. The order of a row's sums does not depend on how many rows there are.
#pragma once

#include "attention/reading.hpp"
#include "registers/tile_registers.hpp"

namespace quire::QUIRE_ISA {

#if QUIRE_HAS_TILES

class TileProducts {
 public:
  typedef PairUnit::Unit Unit;
  typedef Reader<PairUnit> Source;

  TileProducts(const Source& source, Dealer& dealer) : source_(source) {
    for (auto& room : value_room_) room = dealer.take<Unit>(tile_rows * source.value_width);
    key_room_ = dealer.take<Unit>(tile_rows * panel);
    results_ = dealer.take<float>(2 * tile_rows * 2 * panel);
  }

  // For so many rows. Beyond one tile's height all tiles are full, and rows must be there for them.
  void configure(int rows) {
    int height = rows < tile_rows ? rows : tile_rows;
    if (height == height_) return;
    height_ = height;
    TileShapes shapes;
    for (int sums_and_rows = 0; sums_and_rows < 6; sums_and_rows++)
      shapes.set(sums_and_rows, height);
    shapes.set(6, tile_rows), shapes.set(7, tile_rows);
    tiles_.configure(shapes);
  }

  // scores [rows, chunk] of queries [rows, units]; ``ahead`` is fetched meanwhile.
  void score(const Chunk& now, const Source::Ahead& ahead, const Unit* queries,
             int64_t units, int rows, float* scores) {
    for (int p = 0; p < Source::panels; p += 2) {
      if (!Source::seen(now, p) && !Source::seen(now, p + 1)) continue;
      for (int r = 0; r < rows; r += 2 * tile_rows) {
        bool two = rows - r > tile_rows;
        clear(two);
        for (int64_t c = 0; c < source_.words; c += tile_rows) {
          const Unit* q = queries + r * units + c;
          tiles_.load<4>(q, units * 4);
          tiles_.load<6>(keys(p, c), 64);
          tiles_.add_bf16<0, 4, 6>();
          tiles_.load<7>(keys(p + 1, c), 64);
          tiles_.add_bf16<1, 4, 7>();
          if (two) add_lower(q + tile_rows * units, units * 4);
          if (r) continue;
          Source::fetch(ahead.keys[p] + c * 64, tile_bytes);
          Source::fetch(ahead.keys[p + 1] + c * 64, tile_bytes);
        }
        store(two, scores + r * chunk + p * panel, chunk);
      }
    }
  }

  // sums [rows, width] = sums * fade + weights [rows, chunk / 2] times the chunk's values.
  void gather(const Chunk& now, const Source::Ahead& ahead, const Unit* weights, int rows,
              const float* fade, float* sums, int64_t width) {
    const Unit* halves[2] = {values(now, 0), values(now, 1)};
    int64_t fetched = 0;
    for (int64_t d = 0; d < source_.a.value_dim; d += 2 * panel) {
      bool wide = d + panel < source_.value_stride;
      for (int r = 0; r < rows; r += 2 * tile_rows) {
        bool two = rows - r > tile_rows;
        clear(two);
        for (int half = 0; half < 2; half++) {
          if (!halves[half]) continue;
          const Unit* w = weights + r * (chunk / 2) + half * tile_rows;
          const Unit* v = halves[half] + d;
          tiles_.load<4>(w, chunk * 2);
          tiles_.load<6>(v, source_.value_stride * 4);
          tiles_.add_bf16<0, 4, 6>();
          tiles_.load<7>(wide ? v + panel : v, source_.value_stride * 4);
          tiles_.add_bf16<1, 4, 7>();
          if (two) add_lower(w + tile_rows * (chunk / 2), chunk * 2);
        }
        if (!r) fetched = fetch_values(ahead, fetched);
        store(two, results_, 2 * panel);
        int here = rows - r < 2 * tile_rows ? rows - r : 2 * tile_rows;
        for (int i = 0; i < here; i++) {
          float* to = sums + (r + i) * width + d;
          for (int v = 0; v < (wide ? 2 * panel : panel); v += W) {
            quire::QUIRE_ISA::store(
                to + v, fma(load(to + v), fade[r + i], load(results_ + i * 2 * panel + v)));
          }
        }
      }
    }
  }

 private:
  // Registers 0 to 3 are sums, of the upper rows and both panels, then of the lower; 4 and 5 rows;
  // 6 and 7 panels.
  void clear(bool two) {
    tiles_.zero<0>();
    tiles_.zero<1>();
    if (!two) return;
    tiles_.zero<2>();
    tiles_.zero<3>();
  }
  void add_lower(const Unit* rows, int64_t stride) {
    tiles_.load<5>(rows, stride);
    tiles_.add_bf16<2, 5, 6>();
    tiles_.add_bf16<3, 5, 7>();
  }
  void store(bool two, float* to, int64_t width) {
    tiles_.store<0>(to, width * 4);
    tiles_.store<1>(to + panel, width * 4);
    if (!two) return;
    tiles_.store<2>(to + tile_rows * width, width * 4);
    tiles_.store<3>(to + tile_rows * width + panel, width * 4);
  }

  // Words from ``c`` on of a panel of keys; zeros fill the last tile.
  const Unit* keys(int p, int64_t c) {
    const Unit* from = source_.keys[p] + c * panel;
    int64_t left = source_.words - c;
    if (left >= tile_rows) return from;
    __builtin_memcpy(key_room_, from, left * 64);
    __builtin_memset(key_room_ + left * panel, 0, (tile_rows - left) * 64);
    return key_room_;
  }

  // The values of 32 columns, or null if none of them is seen. What nobody sees may not be a
  // number, which a weight of 0 would not make one.
  const Unit* values(const Chunk& now, int half) {
    int first = half * tile_rows, end = first + tile_rows;  // pairs of columns
    if (now.end <= 2 * first || now.first >= 2 * end) return nullptr;
    const Unit* upper = source_.values[2 * half];
    bool whole = now.first <= 2 * first && now.end >= 2 * end;
    if (whole && source_.values[2 * half + 1] == upper + tile_rows / 2 * source_.value_stride)
      return upper;
    Unit* room = value_room_[half];
    for (int pair = first; pair < end; pair++) {
      Unit* to = room + (pair - first) * source_.value_stride;
      const Unit* from = source_.pair_or_null(now, pair);
      if (from) __builtin_memcpy(to, from, source_.value_stride * 4);
      if (!from) __builtin_memset(to, 0, source_.value_stride * 4);
    }
    return room;
  }

  // Of each of the panels as much as 32 dimensions are.
  int64_t fetch_values(const Source::Ahead& ahead, int64_t done) const {
    for (const char* from : ahead.values) Source::fetch(from + done, 2 * tile_bytes);
    return done + 2 * tile_bytes;
  }

  const Source& source_;
  TileRegisters tiles_;
  int height_ = 0;
  Unit* value_room_[2];  // [tile_rows][value_width]
  Unit* key_room_;       // [tile_rows][panel]
  float* results_;       // [2 * tile_rows][2 * panel]
};

#endif

}  // namespace quire::QUIRE_ISA
