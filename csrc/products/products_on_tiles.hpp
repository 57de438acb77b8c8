// Products by tile registers: up to 32 rows times two panels at a time, over all of their inputs.
//
// A panel's lines are what the processor wants of a second factor, so that tiles of bf16 and of
// bytes that are multiplied by bytes are loaded from where they lie; others are decoded before, but
// for few rows (see run_piece). The order of a sum is that of its inputs, however many rows there
// are and wherever a row stands.
#pragma once

#include "products/pieces.hpp"
#include "products/tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t rows_at_once = 2 * tile_rows;
static_assert(!has_tiles || (of_few.rows == rows_at_once && of_many.rows == rows_at_once));
constexpr int64_t pair_bytes = 2 * tile_bytes;
constexpr int64_t blocks_at_once = 4;  // that are decoded, and then multiplied

constexpr bool is_decoded(Arithmetic how, Format format) {
  return how == Arithmetic::pairs && format != Format::bfloat16;
}

// The units of a panel that make a tile.
constexpr int64_t units_in_tile(Arithmetic how, Format format) {
  if (!is_decoded(how, format)) return tile_rows;
  return tile_row_bytes / input_bytes(how) / inputs_per_unit(format);
}

// Inputs whose sums are scaled on their own: a group's, or all.
struct Sections {
  int64_t count, units, blocks;  // each of so many units, or blocks of inputs that make a tile

  Sections(const Packed& w, Arithmetic how) {
    units = in_groups(w.format) ? w.groups.units : w.units;
    count = w.units / units;
    int64_t in_tile = units_in_tile(how, w.format);
    blocks = (units + in_tile - 1) / in_tile;
  }
};

#if QUIRE_HAS_TILES

// Of a row as floats.
int64_t float_row_bytes(const Packed& w) {
  return round_up(w.units * inputs_per_unit(w.format) * 4, 64);
}

// Of scratch, by each thread.
int64_t decoded_bytes(const Product& p, Arithmetic how) {
  if (!is_decoded(how, p.weight.format)) return pair_bytes;
  Sections sections(p.weight, how);
  bool kept = p.rows > rows_at_once;
  int64_t bytes = (kept ? sections.count * sections.blocks : blocks_at_once) * pair_bytes;
  int64_t of_floats = few_decoded * float_row_bytes(p.weight);
  return bytes > of_floats ? bytes : of_floats;
}

// Units become a tile; what they leave of it becomes zeros.
template <Arithmetic how, Format format>
QUIRE_INLINE void make_tile(const char* lines, int64_t count, char* tile) {
  constexpr int64_t low = low_lines(format);
  constexpr int64_t from_line = tile_rows / (units_in_tile(how, format) * low);
  const Tile from{lines};
  for (int64_t u = 0; u < count; u++) {
    High<format, 1> high(from, u);
    for (int64_t i = 0; i < low; i++, high.shift()) {
      U lanes = from.lanes(u * lines_per_unit(format) + i, 0);
      char* to = tile + (u * low + i) * from_line * line_bytes;
      if constexpr (is_decoded(how, format)) {
#pragma GCC unroll 4
        for (int j = 0; j < from_line; j++)
          write(to + j * line_bytes, decode_pairs<format>(lanes, high.lanes[0], j));
      } else {
        write(to, lanes);
      }
    }
  }
  int64_t filled = count * low * from_line * line_bytes;
  if (filled < tile_bytes) __builtin_memset(tile + filled, 0, tile_bytes - filled);
}

// Rows in runs of up to 32, all as long, so that one configuration serves; the last two may
// overlap. The first half of a run is in one tile, the second in another.
struct Runs {
  int64_t first, last, length, count, lower, upper;

  Runs(int64_t first, int64_t last) : first(first), last(last) {
    int64_t n = last - first;
    count = (n + rows_at_once - 1) / rows_at_once;
    length = (n + count - 1) / count;
    lower = length > tile_rows ? length / 2 : 0;
    upper = length - lower;
  }
  int64_t row(int64_t i) const {
    return first + i * length < last - length ? first + i * length : last - length;
  }
};

// Fetches the weights that come next, a little with each tile.
struct Ahead {
  const char *next, *end;
  int64_t at_once;

  Ahead(const char* next, int64_t bytes, int64_t times)
      : next(next), end(next + bytes), at_once((bytes / 64 + times - 1) / times) {}

  __attribute__((always_inline)) void fetch() {
    const char* stop = end - next < at_once * 64 ? end : next + at_once * 64;
    for (; next < stop; next += 64) __builtin_prefetch(next, 0, 2);
  }
};

// A thread's tools for its share of a product.
template <Arithmetic how, Format format>
class PanelPair {
 public:
  // ``decoded``: memory of decoded_bytes() for no fewer rows than there are.
  PanelPair(const Product& p, const Rows& rows, char* decoded)
      : p_(p), rows_(rows), sections_(p.weight, how), decoded_(decoded) {}

  // ``after``: weights that are multiplied then, to be fetched; null: unknown.
  void multiply(const Piece& piece, const char* after) {
    Runs runs(piece.first, piece.last);
    configure(runs);
    int64_t bytes = 2 * panel_bytes_;
    for (int64_t panel = piece.panel; panel < piece.end; panel += 2) {
      lines_ = p_.weight.weights + panel * panel_bytes_;
      const char* next = panel + 2 < piece.end ? lines_ + bytes : after;
      Ahead ahead(next, next ? bytes : 0, runs.count * sections_.count * sections_.blocks);
      for (int64_t i = 0; i < runs.count; i++) {
        if (runs.lower) {
          multiply_run<true>(runs, i, panel, ahead);
        } else {
          multiply_run<false>(runs, i, panel, ahead);
        }
      }
    }
  }

 private:
  static constexpr int64_t unit_bytes = lines_per_unit(format) * line_bytes;
  typedef float Results[rows_at_once][2 * panel_width];

  void configure(const Runs& runs) {
    if (runs.length == configured_) return;
    configured_ = runs.length;
    TileShapes shapes;
    shapes.set(0, runs.upper), shapes.set(1, runs.upper), shapes.set(4, runs.upper);
    shapes.set(2, runs.lower), shapes.set(3, runs.lower), shapes.set(5, runs.lower);
    shapes.set(6, tile_rows), shapes.set(7, tile_rows);
    tiles_.configure(shapes);
  }

  template <bool two>
  __attribute__((noinline)) void multiply_run(const Runs& runs, int64_t i, int64_t panel,
                                              Ahead& ahead) {
    alignas(64) Results results, total;
    if constexpr (in_groups(format)) __builtin_memset(total, 0, sizeof total);
    const int64_t row = runs.row(i);
    for (int64_t s = 0; s < sections_.count; s++) {
      clear<two>();
      int64_t inputs = s * sections_.units * inputs_per_unit(format);
      const char* x = rows_.data + row * rows_.row_bytes + inputs * input_bytes(how);
      add_section<two>(x, x + runs.upper * rows_.row_bytes, s, i == 0, runs.count > 1, ahead);
      store<two>(results, runs.upper);
      if constexpr (in_groups(format)) add_group(total, results, row, runs.length, panel, s);
    }
    if constexpr (how == Arithmetic::bytes && !in_groups(format))
      as_floats(results, row, runs.length);
    give(p_, row, runs.length, panel, 2 * V, (const F*)(in_groups(format) ? total : results));
  }

  template <bool two>
  __attribute__((always_inline)) void clear() {
    tiles_.zero<0>();
    tiles_.zero<1>();
    if constexpr (two) {
      tiles_.zero<2>();
      tiles_.zero<3>();
    }
  }

  // ``first``: the panels have not been decoded yet. ``kept``: they will be used again.
  template <bool two>
  __attribute__((always_inline)) void add_section(const char* upper, const char* lower,
                                                  int64_t section, bool first, bool kept,
                                                  Ahead& ahead) {
    constexpr int64_t in_tile = units_in_tile(how, format), step = blocks_at_once;
    const int64_t blocks = sections_.blocks;
    const char* lines = lines_ + section * sections_.units * unit_bytes;
    if constexpr (is_decoded(how, format)) {
      for (int64_t b = 0; b < blocks; b += step) {
        int64_t n = blocks - b < step ? blocks - b : step;
        char* pairs = decoded_ + (kept ? section * blocks + b : 0) * pair_bytes;
        for (int64_t j = 0; (first || !kept) && j < n; j++)
          make_pair(lines, (b + j) * in_tile, pairs + j * pair_bytes);
        add<two>(upper + b * 64, lower + b * 64, pairs, pairs + tile_bytes, pair_bytes, n, ahead);
      }
    } else {
      int64_t whole = sections_.units / in_tile;
      add<two>(upper, lower, lines, lines + panel_bytes_, tile_bytes, whole, ahead);
      if (whole == blocks) return;
      if (first || sections_.count > 1) make_pair(lines, whole * in_tile, decoded_);
      add<two>(upper + whole * 64, lower + whole * 64, decoded_, decoded_ + tile_bytes, 0, 1,
               ahead);
    }
  }

  // Tiles of both panels from a unit of a section on.
  __attribute__((always_inline)) void make_pair(const char* lines, int64_t unit, char* pair) {
    int64_t left = sections_.units - unit, most = units_in_tile(how, format);
    int64_t count = left < most ? left : most;
    for (int i = 0; i < 2; i++) {
      make_tile<how, format>(lines + i * panel_bytes_ + unit * unit_bytes, count,
                             pair + i * tile_bytes);
    }
  }

  // Registers 0 to 3 are sums, of the upper rows and both panels, then of the lower; 4 and 5 rows;
  // 6 and 7 panels.
  template <bool two>
  __attribute__((always_inline)) void add(const char* upper, const char* lower, const char* left,
                                          const char* right, int64_t apart, int64_t n,
                                          Ahead& ahead) {
    for (int64_t b = 0; b < n; b++) {
      tiles_.load<4>(upper + b * 64, rows_.row_bytes);
      tiles_.load<6>(left + b * apart, 64);
      add<0, 4, 6>();
      tiles_.load<7>(right + b * apart, 64);
      add<1, 4, 7>();
      if constexpr (two) {
        tiles_.load<5>(lower + b * 64, rows_.row_bytes);
        add<2, 5, 6>();
        add<3, 5, 7>();
      }
      ahead.fetch();
    }
  }
  template <int c, int a, int b>
  __attribute__((always_inline)) void add() {
    if constexpr (how == Arithmetic::bytes) {
      tiles_.add_bytes<c, a, b>();
    } else {
      tiles_.add_bf16<c, a, b>();
    }
  }

  template <bool two>
  __attribute__((always_inline)) void store(Results& results, int64_t upper) {
    tiles_.store<0>(results[0], sizeof results[0]);
    tiles_.store<1>(results[0] + panel_width, sizeof results[0]);
    if constexpr (two) {
      tiles_.store<2>(results[upper], sizeof results[0]);
      tiles_.store<3>(results[upper] + panel_width, sizeof results[0]);
    }
  }

  __attribute__((always_inline)) void add_group(Results& total, const Results& part, int64_t row,
                                                int64_t length, int64_t panel, int64_t g) {
    TileGroup<2 * V> group;
    group.read(p_.weight, sections_.count, panel, g);
    if (!p_.weight.needs_sums()) {
      add_group<false, false>(total, part, row, length, g, group);
    } else if (!p_.weight.groups.offsets) {
      add_group<true, false>(total, part, row, length, g, group);
    } else {
      add_group<true, true>(total, part, row, length, g, group);
    }
  }
  template <bool shifted, bool moved>
  __attribute__((always_inline)) void add_group(Results& total, const Results& part, int64_t row,
                                                int64_t length, int64_t g,
                                                const TileGroup<2 * V>& group) {
    for (int64_t r = 0; r < length; r++) {
      const int64_t section = rows_.at(row + r, g);
      F all[1][2 * V];
#pragma GCC unroll 16
      for (int v = 0; v < 2 * V; v++) all[0][v] = load(total[r] + v * W);
      group.template add<shifted, moved>(
          all, rows_.group_sums + section, [&](int, int v) __attribute__((always_inline)) {
            F sum = load(part[r] + v * W);
            return how == Arithmetic::bytes ? as_float((I)sum, section) : sum;
          });
#pragma GCC unroll 16
      for (int v = 0; v < 2 * V; v++) quire::QUIRE_ISA::store(total[r] + v * W, all[0][v]);
    }
  }

  // Of bytes' products, without groups.
  __attribute__((always_inline)) void as_floats(Results& results, int64_t row,
                                                int64_t length) const {
    for (int64_t r = 0; r < length; r++) {
      for (int v = 0; v < 2 * V; v++) {
        float* at = results[r] + v * W;
        quire::QUIRE_ISA::store(at, as_float((I)load(at), row + r));
      }
    }
  }

  // A sum of bytes' products, of a row's section.
  __attribute__((always_inline)) F as_float(I sum, int64_t section) const {
    return __builtin_convertvector(sum + rows_.starts[section], F) * rows_.scales[section];
  }

  const Product& p_;
  const Rows& rows_;
  Sections sections_;
  TileRegisters tiles_;
  int64_t panel_bytes_ = p_.weight.panel_bytes(), configured_ = 0;
  char* decoded_;
  const char* lines_ = nullptr;  // of the panels at hand
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
