// A chunk of one head as units: where it lies in the pool, if that is what the pool has.
#pragma once

#include "attention/layout.hpp"
#include "attention/units.hpp"

namespace quire::QUIRE_ISA {

// Lines of a chunk's panels to come, fetched evenly in so many turns of what is computed meanwhile.
struct Lines {
  const char* const* panels;
  int64_t lines, turns;
  int64_t due = 0, done = 0;

  __attribute__((always_inline)) void fetch() {
    due += lines;
    if (due < turns) return;
    due -= turns;
#pragma GCC unroll 4
    for (int p = 0; p < chunk / panel; p++) __builtin_prefetch(panels[p] + done * 64, 0, 2);
    done++;
  }
};

// Keys and values as units, whatever the pool has.
template <class Units>
struct Reader {
  typedef Units Kind;
  typedef typename Units::Unit Unit;
  static constexpr int per_unit = Units::per_unit;
  static constexpr int panels = chunk / panel;
  static constexpr bool may_stay_whole = false;

  const Attend& a;
  const int64_t kv_bits;   // of one of the numbers of the pool
  const bool as_stored;    // whether a word of the pool is a unit
  const bool in_panels;
  const int64_t words;     // of a key
  int64_t value_width;     // of a value here, whole vectors
  Unit* key_room;          // [panels][words][units of a word][panel]
  Unit* value_room;        // [panels][panel / per_unit][value_width]
  Unit* last_value;        // [value_width]
  const Unit* last_pair;   // its first dimension, as of ``values``
  char* raw;               // a panel from a pool of rows
  int64_t fine_words;      // of a key: those whose codes have a fifth bit
  uint32_t* fifth;         // [chunk]: these bits
  // What was read: [units][panel] of each panel ...
  const Unit* keys[panels];
  // ... and [panel / per_unit][value_stride].
  const Unit* values[panels];
  int64_t value_stride;

  Reader(const Attend& a, int64_t kv_bits, Dealer& dealer)
      : a(a), kv_bits(kv_bits), as_stored(kv_bits * per_unit == 32),
        in_panels(quire::QUIRE_ISA::in_panels(a)), words((bytes_of(a.key_dim) + 3) / 4),
        value_width(round_up(a.value_dim, 16)) {
    key_room = dealer.take<Unit>(chunk * words * (32 / (kv_bits * per_unit)));
    value_room = dealer.take<Unit>(chunk / per_unit * value_width);
    last_value = dealer.take<Unit>(value_width);
    raw = dealer.take<char>(panel * 4 * (words > value_width ? words : value_width));
    fine_words = fine_numbers(a) / 8;
    fifth = dealer.take<uint32_t>(fine_words ? chunk : 0);
  }

  // ``shift``: rows from the work's first head to the one to be read. ``whole``: words stay as
  // they lie in the pool.
  virtual void read_keys(const Chunk& columns, int64_t shift, bool whole) = 0;
  virtual void read_values(const Chunk& columns, int64_t shift) = 0;

  int64_t bytes_of(int64_t n) const { return n * kv_bits / 8; }

  int64_t key_units() const { return (a.key_dim + per_unit - 1) / per_unit; }

  static bool seen(const Chunk& columns, int p) {
    return p * panel < columns.end && (p + 1) * panel > columns.first;
  }
  // The row of lane 0 of a panel of which some lanes are seen, in a pool of panels.
  static int64_t row_of(const Chunk& columns, int p) {
    int lane = p * panel < columns.first ? columns.first : p * panel;
    return columns.rows[lane] - lane % panel;
  }

  // Whether few rows meet words as they lie in the pool, and split them then: what is split need not
  // be stored and loaded again. Nobody asks for units of floats.
  bool stays_whole(int rows) const {
    return kv_bits == 4 && in_panels && a.values && rows <= 4 && a.value_dim % (4 * W) == 0;
  }

  // Where values are the last numbers of keys: those of n dimensions from ``first`` on.
  void turn_keys(const Chunk& columns, int64_t first, int64_t n) {
    value_stride = round_up(n, 16);
    const int64_t unit = (a.key_dim - a.value_dim + first) / per_unit;
    for (int p = 0; p < panels; p++) {
      if (!seen(columns, p)) continue;
      Unit* room = value_room + p * (panel / per_unit) * value_stride;
      turn_panel(keys[p] + unit * panel, n / per_unit, room);
      values[p] = room - first;
    }
    end_pair(columns, first);
  }

  // Of a pair of columns, where they stay whole.
  const char* value_words(const Chunk& columns, int64_t shift, int pair) const {
    return value_panel(columns, shift, pair * 2 / panel) + pair % (panel / 2) * a.value_dim;
  }

  const Unit* value_units(int unit) const {
    constexpr int of_panel = panel / per_unit;
    return values[unit / of_panel] + unit % of_panel * value_stride;
  }

  // The units of a pair of columns, or null if neither is seen.
  const Unit* pair_or_null(const Chunk& columns, int pair) const {
    if (pair * 2 + 1 < columns.first || pair * 2 >= columns.end) return nullptr;
    return pair * 2 + 1 == columns.end ? last_pair : value_units(pair);
  }

  // body(unit, values, n) for runs of n units of the columns' values, in their order. ``one``: they
  // lie side by side.
  template <class Body>
  __attribute__((always_inline)) void for_runs(const Chunk& columns, bool one,
                                              const Body& body) const {
    constexpr int of_panel = panel / per_unit;
    int unit = columns.first / per_unit, end = columns.end / per_unit;
    while (unit < end) {
      int run = of_panel - unit % of_panel;
      if (one || run > end - unit) run = end - unit;
      body(unit, value_units(unit), run);
      unit += run;
    }
    if (per_unit == 2 && columns.end % 2) body(end, last_pair, 1);
  }

  // Memory to come, line by line while something is computed: what it has of 16 columns. What is
  // there already stands for nothing, so that nobody needs to ask.
  struct Ahead {
    const char* keys[panels];
    const char* values[panels];
  };

  Ahead ahead(const Chunk& columns, int64_t shift) const {
    Ahead ahead;
    for (int p = 0; p < panels; p++) {
      ahead.keys[p] = ahead.values[p] = raw;
      if (!in_panels || !columns.n || !seen(columns, p)) continue;
      ahead.keys[p] = key_panel(columns, shift, p);
      if (a.values) ahead.values[p] = value_panel(columns, shift, p);
    }
    return ahead;
  }

  // Into the second cache: the first has too few misses under way at a time for a core's share of
  // the memory's bandwidth.
  QUIRE_INLINE void fetch(const char* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  }

 protected:
  // Of the last pair one may be of a column that nobody has written yet.
  void end_pair(const Chunk& columns, int64_t first) {
    if (per_unit == 1 || columns.end % 2 == 0) return;
    const Unit* from = value_units(columns.end / 2) + first;
    for (int64_t i = 0; i < value_stride; i += W)
      write(last_value + i, (U)(read<U>(from + i) & 0xffffu));
    last_pair = last_value - first;
  }

  const char* key_panel(const Chunk& columns, int64_t shift, int p) const {
    return (const char*)a.keys + bytes_of((row_of(columns, p) + shift) * a.key_dim);
  }
  const char* value_panel(const Chunk& columns, int64_t shift, int p) const {
    return (const char*)a.values + bytes_of((row_of(columns, p) + shift) * a.value_dim);
  }

  // A panel of keys from a pool of rows.
  void gather_keys(const Chunk& columns, int64_t shift, int p, char* out) const {
    const int64_t size = bytes_of(a.key_dim);
    const char* rows[panel];
    for (int k = 0; k < panel; k++)
      rows[k] = (const char*)a.keys + bytes_of((columns.rows[p * panel + k] + shift) * a.key_dim);
    int64_t c = 0;
    for (; (c + W) * 4 <= size; c += W) {
      for (int first = 0; first < panel; first += W) {
        F turned[W];
        for (int i = 0; i < W; i++) turned[i] = read<F>(rows[first + i] + c * 4);
        transpose(turned);
        for (int i = 0; i < W; i++) write(out + ((c + i) * panel + first) * 4, turned[i]);
      }
    }
    for (int k = 0; k < panel; k++) {
      int64_t left = size - c * 4;
      for (int64_t word_at = c; word_at < words; word_at++, left -= 4) {
        uint32_t word = 0;
        __builtin_memcpy(&word, rows[k] + word_at * 4, left < 4 ? left : 4);
        write(out + (word_at * panel + k) * 4, word);
      }
    }
  }

 private:
  // Units of a panel's keys, as those of its columns.
  void turn_panel(const Unit* from, int64_t units, Unit* out) const {
    constexpr int lanes = per_unit, columns = W / per_unit;
    int64_t u = 0;
    for (; u + columns <= units; u += columns) {
      for (int first = 0; first < panel; first += W) {
        F turned[columns];
        for (int i = 0; i < columns; i++) turned[i] = turn_pairs(from + (u + i) * panel + first);
        transpose<lanes>(turned);
        for (int i = 0; i < columns; i++)
          write(out + (first / lanes + i) * value_stride + u * lanes, turned[i]);
      }
    }
    for (; u < units; u++) {
      for (int first = 0; first < panel; first += W) {
        F turned = turn_pairs(from + u * panel + first);
        for (int i = 0; i < W; i++)
          __builtin_memcpy(out + (first + i) / lanes * value_stride + u * lanes + i % lanes,
                           (const char*)&turned + i * 4, 4);
      }
    }
    for (int i = 0; i < panel / lanes; i++) {
      for (int64_t d = units * lanes; d < value_stride; d++) out[i * value_stride + d] = Unit{};
    }
  }
  // Units of neighbouring keys: pairs of dimensions become pairs of keys.
  static F turn_pairs(const Unit* from) {
    if constexpr (per_unit == 1) return read<F>(from);
#if defined(__AVX512F__)
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    return (F)_mm512_shuffle_epi8(read<__m512i>(from), _mm512_broadcast_i32x4(order));
#else
    U64 x = read<U64>(from);
    return (F)((x & 0xffff00000000ffffu) | (x >> 16 & 0xffff0000u) | (x & 0xffff0000u) << 16);
#endif
  }
};

// From a pool of one kind of numbers.
template <class KV, class Units>
struct PoolReader final : Reader<Units> {
  typedef Reader<Units> Base;
  typedef typename Units::Unit Unit;
  using Base::a, Base::fifth, Base::fine_words, Base::in_panels, Base::keys, Base::panels,
      Base::per_unit, Base::raw, Base::value_room, Base::value_stride, Base::value_width,
      Base::values, Base::words;
  static constexpr int units_per_word = 32 / (bits<KV> * per_unit);
  static constexpr bool as_stored = units_per_word == 1;
  static constexpr bool four_bits = bits<KV> == 4;
  static constexpr bool may_stay_whole = four_bits && per_unit == 2;

  PoolReader(const Attend& a, Dealer& dealer) : Base(a, bits<KV>, dealer) {}

  static int64_t bytes_of(int64_t n) { return quire::QUIRE_ISA::bytes_of<KV>(n); }

  void read_keys(const Chunk& columns, int64_t shift, bool whole) override {
    const Unit* any = nullptr;
    if (fine_words) read_fifth(columns, shift);
    for (int p = 0; p < panels; p++) {
      keys[p] = nullptr;
      if (!this->seen(columns, p)) continue;
      Unit* room = this->key_room + p * panel * words * units_per_word;
      const char* from = as_stored ? (char*)room : raw;
      if (in_panels) from = this->key_panel(columns, shift, p);
      if (!in_panels) this->gather_keys(columns, shift, p, (char*)from);
      if (!as_stored && !whole) split_words(from, fifth + p * panel, room);
      keys[p] = any = as_stored || whole ? (const Unit*)from : room;
    }
    for (const Unit*& of_panel : keys) of_panel = of_panel ? of_panel : any;  // of use to nobody
  }

  void read_values(const Chunk& columns, int64_t shift) override {
    const int64_t dim = a.value_dim;
    bool direct = as_stored && in_panels && dim % 16 == 0;
    value_stride = direct ? dim : value_width;
    for (int p = 0; p < panels; p++) {
      if (!this->seen(columns, p)) continue;
      Unit* room = value_room + p * (panel / per_unit) * value_width;
      values[p] = room;
      const char* from = in_panels ? this->value_panel(columns, shift, p) : raw;
      if (!in_panels) gather_values(columns, shift, p);
      if constexpr (four_bits) {
        split_values(from, room);
      } else if (!direct) {
        widen_values((const KV*)from, room);
      }
      if (direct) values[p] = (const Unit*)from;
    }
    this->end_pair(columns, 0);
  }

 private:
  void read_fifth(const Chunk& columns, int64_t shift) {
    for (int j = 0; j < chunk; j += panel) {
      const bool neighbours = in_panels && j >= columns.first && j + panel <= columns.end;
      for (int k = j; k < j + panel; k += neighbours ? W : 1) {
        const float* of_key = a.key_scales + columns.rows[k] + shift;
        const float* of_value = a.value_scales + columns.rows[k] + shift;
        if (neighbours) {
          write(fifth + k, (read<U>(of_key) & 0xffffu) | read<U>(of_value) << 16);
        } else {
          uint32_t one = read<uint32_t>(of_key), other = read<uint32_t>(of_value);
          fifth[k] = (one & 0xffffu) | other << 16;
        }
      }
    }
  }
  void gather_values(const Chunk& columns, int64_t shift, int p) const {
    typedef Cell<KV> Own;
    const int64_t cells = bytes_of(a.value_dim) / sizeof(Own);
    for (int k = 0; k < panel; k++) {
      const Own* row = (const Own*)a.values + (columns.rows[p * panel + k] + shift) * cells;
      Own* to = (Own*)raw + k / side * side * cells + k % side;
      for (int64_t i = 0; i < cells; i++) to[i * side] = row[i];
    }
  }

  void split_words(const char* from, const uint32_t* fifth, Unit* out) const {
    for (int64_t c = 0; c < words; c++) {
#pragma GCC unroll 4
      for (int lane = 0; lane < panel; lane += W) {
        F units[units_per_word];
        U found = read<U>(from + (c * panel + lane) * 4);
        if constexpr (four_bits) {
          if (c < fine_words) Units::split_fine(found, read<U>(fifth + lane) >> int(c), units);
          else Units::split(found, (const KV*)nullptr, units);
        } else {
          Units::split(found, (const KV*)nullptr, units);
        }
#pragma GCC unroll 4
        for (int u = 0; u < units_per_word; u++)
          write(out + (c * units_per_word + u) * panel + lane, units[u]);
      }
    }
  }

  // Neighbours whose cells lie side by side.
  static constexpr int side = sizeof(Cell<KV>) == 4 ? 1 : 2;

  void widen_values(const KV* from, Unit* out) const {
    for (int k = 0; k < panel; k += side) {
      const KV* columns = from + k * a.value_dim;
      Unit* to = out + k / per_unit * value_width;
      int64_t i = 0;
      for (; i + W <= a.value_dim; i += W) widen_columns(columns + i * side, to + i);
      if (i == a.value_dim) continue;
      KV left[side * W];
      __builtin_memset(left, 0, sizeof left);
      __builtin_memcpy(left, columns + i * side, (a.value_dim - i) * side * sizeof(KV));
      widen_columns(left, to + i);
    }
  }
  // Each word has four dimensions of two columns.
  void split_values(const char* from, Unit* out) const {
    const int64_t words = a.value_dim / 4;
    for (int k = 0; k < panel; k += 2, from += words * 4) {
      Unit* to = out + k / per_unit * value_width;
      int64_t l = 0;
      for (; l + W <= words; l += W) split_vector(read<U>(from + l * 4), to + l, words, W);
      if (l == words) continue;
      U left{};
      __builtin_memcpy(&left, from + l * 4, (words - l) * 4);
      split_vector(left, to + l, words, words - l);
    }
  }
  // The first n of its lanes.
  __attribute__((always_inline)) void split_vector(U found, Unit* to, int64_t words, int n) const {
    constexpr int columns = 2 / per_unit;
    F units[units_per_word];
    Units::split(found, (const KV*)nullptr, units);
#pragma GCC unroll 8
    for (int u = 0; u < units_per_word; u++) {
      Unit* place = to + u % columns * value_width + u / columns * words;
      if (n == W) write(place, units[u]);
      else __builtin_memcpy(place, units + u, n * 4);
    }
  }
  void widen_columns(const KV* from, Unit* to) const {
    if constexpr (sizeof(KV) == 4) {
      write(to, read<F>(from));
    } else {
      F units[2 / per_unit];
      Units::columns(from, units);
      for (int u = 0; u < 2 / per_unit; u++) write(to + u * value_width, units[u]);
    }
  }
};

// Whom few rows ask: products of floats are compiled once for all pools, others for each, since
// calls in place of what is known there took decoding at 1,500 tokens 1.5 % more time.
template <class KV, class Units>
using SourceOf = std::conditional_t<Units::per_unit == 1, Reader<Units>, PoolReader<KV, Units>>;

}  // namespace quire::QUIRE_ISA
