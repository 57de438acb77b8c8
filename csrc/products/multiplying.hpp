// How a product is carried out: the rows are prepared, the panels divided, and tiles multiplied. Each
// kind of arithmetic is compiled in a file of its own, side by side with the others.
#pragma once

#include "products/decoded.hpp"
#include "products/neon_tiles.hpp"
#include "products/pieces.hpp"
#include "products/products_on_tiles.hpp"
#include "products/tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

template <int n>
struct Constant {
  static constexpr int value = n;
};

template <Arithmetic how, Format format, int R, int P>
QUIRE_INLINE void sum(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
#if QUIRE_HAS_TILES
  if constexpr (how == Arithmetic::floats) return sum_as_tiles<format>(acc, t, first, last);
#endif
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if constexpr (how == Arithmetic::pairs) return sum_pairs<format>(acc, t, first, last);
#endif
  sum_floats<format>(acc, t, first, last);
}

// The lines of panels side by side, as they are kept or decoded.
struct Lines {
  const char* first;
  int64_t panel_bytes;
};

// Copies sums to memory. Sums that a function took by reference would stay there as they grow.
template <int R, int P>
QUIRE_INLINE void keep(const F (&sums)[R][P], F (&to)[R][P]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < P; v++) to[r][v] = sums[r][v];
  }
}

// R rows from ``row`` on, times P vectors' width of outputs from ``panel`` on. ``format``: of the
// lines; ``grouped``: as the weight has scales.
template <Arithmetic how, Format format, bool grouped, int R, int P>
__attribute__((noinline)) void tile(const Product& p, const Rows& rows, int64_t row, int64_t panel,
                                    Lines lines, const char* ahead, int64_t ahead_bytes) {
  const Packed& w = p.weight;
  Tile t{lines.first, lines.panel_bytes, rows.data + row * rows.row_bytes, rows.row_bytes, ahead,
         ahead_bytes};
  F all[R][P] = {};
  if constexpr (how == Arithmetic::bytes) {
    const int64_t sections = num_sections(w), units = w.units / sections;
    for (int64_t s = 0; s < sections; s++) {
      const int64_t first = rows.at(row, s);
      const float* scales = rows.scales + first;
      const int32_t* starts = rows.starts + first;
      I acc[R][P];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
        for (int v = 0; v < P; v++) acc[r][v] = splat(starts[r]);
      }
      sum_bytes<format>(acc, t, s * units, (s + 1) * units);
      auto part = [&](int r, int v) __attribute__((always_inline)) {
        return __builtin_convertvector(acc[r][v], F) * scales[r];
      };
      if constexpr (grouped) {
        TileGroup<P> group;
        group.read(w, sections, panel, s);
        group.add(w, all, rows.group_sums + first, part);
      } else {
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
          for (int v = 0; v < P; v++) all[r][v] = part(r, v);
        }
      }
    }
  } else if constexpr (grouped) {
    int64_t groups = w.num_groups();
    int64_t units = w.groups.units * inputs_per_unit(w.format) / inputs_per_unit(format);
    for (int64_t g = 0; g < groups; g++) {
      TileGroup<P> group;
      group.read(w, groups, panel, g);
      F acc[R][P] = {};
      sum<how, format>(acc, t, g * units, (g + 1) * units);
#if defined(__x86_64__)
      // In registers it would have driven acc out of them.
      if constexpr (how == Arithmetic::floats) asm("" : "+m"(all));
#endif
      group.add(w, all, rows.group_sums + rows.at(row, g),
                [&](int r, int v) __attribute__((always_inline)) { return acc[r][v]; });
    }
  } else {
    int64_t units = w.units * inputs_per_unit(w.format) / inputs_per_unit(format);
    sum<how, format>(all, t, 0, units);
  }
  F out[R][P];
  keep(all, out);
  give(p, row, R, panel, P, &out[0][0]);
}

// Rows from ``first`` to ``last`` by tiles of nearly equal height, at most R. The first tiles would
// wait for weights, unless those before them have fetched them, from ``next`` on: a single tile all
// of the next panels, several a panel each.
template <Arithmetic how, Format format, bool grouped, int R, int P>
void tiles(const Product& p, const Rows& rows, int64_t first, int64_t last, int64_t panel,
           Lines lines, const char* next) {
  int64_t n = last - first, count = (n + R - 1) / R;
  for (int64_t i = 0; i < count; i++) {
    int64_t row = first + n * i / count, height = first + n * (i + 1) / count - row;
    bool fetch = i < P / V && next;
    const char* ahead = fetch ? next + i * lines.panel_bytes : lines.first;
    int64_t ahead_bytes = fetch && count == 1 ? lines.panel_bytes : 0;
    auto of_height = [&](auto constant) {
      constexpr int height = decltype(constant)::value;
      if constexpr (height <= R)
        tile<how, format, grouped, height, P>(p, rows, row, panel, lines, ahead, ahead_bytes);
    };
    switch (height) {
      case 1: of_height(Constant<1>{}); break;
      case 2: of_height(Constant<2>{}); break;
      case 3: of_height(Constant<3>{}); break;
      case 4: of_height(Constant<4>{}); break;
      case 5: of_height(Constant<5>{}); break;
      case 6: of_height(Constant<6>{}); break;
      case 7: of_height(Constant<7>{}); break;
      case 8: of_height(Constant<8>{}); break;
      case 9: of_height(Constant<9>{}); break;
      case 10: of_height(Constant<10>{}); break;
      case 11: of_height(Constant<11>{}); break;
      case 12: of_height(Constant<12>{}); break;
    }
  }
}

#if QUIRE_HAS_TILES
// Rows of bf16 as floats, in ``memory``.
Rows as_floats(Rows rows, const Product& p, char* memory) {
  const int64_t row_bytes = float_row_bytes(p.weight);
  for (int64_t r = 0; r < p.rows; r++) {
    const bf16* x = (const bf16*)(rows.data + r * rows.row_bytes);
    float* to = (float*)(memory + r * row_bytes);
    for (int64_t i = 0; i < row_bytes / 4; i += W) store(to + i, load(x + i));
  }
  rows.data = memory;
  rows.row_bytes = row_bytes;
  return rows;
}

// ``after``: weights that are multiplied after those of the piece, to be fetched; null: unknown.
// ``decoded``: memory of decoded_bytes().
template <Arithmetic how, Format format>
void run_piece(const Product& p, const Rows& rows, Piece piece, const char* after, char* decoded) {
  if constexpr (is_decoded(how, format)) {
    // To decode weights into memory, and load tiles from there, takes longer than their products.
    if (p.rows <= few_decoded) {
      const int64_t panel_bytes = p.weight.panel_bytes();
      const Rows floats = as_floats(rows, p, decoded);
      for (; piece.panel < piece.end; piece.panel++) {
        const char* lines = p.weight.weights + piece.panel * panel_bytes;
        const char* next = piece.panel + 1 < piece.end ? lines + panel_bytes : after;
        tiles<Arithmetic::floats, format, in_groups(format), few_decoded, V>(
            p, floats, piece.first, piece.last, piece.panel, {lines, panel_bytes}, next);
      }
      return;
    }
  }
  PanelPair<how, format>(p, rows, decoded).multiply(piece, after);
}
#else
template <Arithmetic how, Format format>
void run_piece(const Product& p, const Rows& rows, Piece piece, const char* after, char* decoded) {
  constexpr bool grouped = in_groups(format);
  constexpr int height = tile_height(format, how == Arithmetic::bytes);
  const int64_t panel_bytes = p.weight.panel_bytes();
  auto lines = [&](int64_t panel) { return p.weight.weights + panel * panel_bytes; };
  auto next = [&](int panels) {
    return piece.panel + panels < piece.end ? lines(piece.panel + panels) : after;
  };
  if (p.rows <= of_few.rows) {
    for (; piece.panel + of_few.panels <= piece.end; piece.panel += of_few.panels)
      tiles<how, format, grouped, of_few.rows, of_few.panels * V>(
          p, rows, piece.first, piece.last, piece.panel, {lines(piece.panel), panel_bytes},
          next(of_few.panels));
  }
  for (; piece.panel < piece.end; piece.panel += of_many.panels) {
    const char* ahead = next(of_many.panels);
    if constexpr (is_decoded_before(how, format)) {
      if (is_decoded_before(p, how)) {
        const char* packed = lines(piece.panel);
        decode_panels<how, format>(p.weight, packed, ahead ? ahead : packed, decoded);
        tiles<how, decoded_format(how), grouped, height, of_many.panels * V>(
            p, rows, piece.first, piece.last, piece.panel,
            {decoded, decoded_panel_bytes(p.weight, how)}, nullptr);
        continue;
      }
    }
    tiles<how, format, grouped, height, of_many.panels * V>(
        p, rows, piece.first, piece.last, piece.panel, {lines(piece.panel), panel_bytes}, ahead);
  }
}
#endif

// What multiplies a piece by weights of one form.
using RunPiece = void(const Product&, const Rows&, Piece, const char*, char*);

void run(const Grouped& g, Arithmetic how, RunPiece* run_piece, Team& team) {
  Placed placed(g, how);
  placed.fill(g, how, team);
  Way way(g, placed, team);
  char* decoded = g.product.scratch + placed.scratch_bytes +
                  team.index * decoded_bytes(g.product, how);
  team.take(way.count(), [&](int64_t i) {
    Piece piece = way.go_to(i);
    run_piece(way.product(), way.rows(), piece, way.after(i), decoded);
  });
}

template <Arithmetic how>
RunPiece* piece_runner(Format format) {
  switch (format) {
    case Format::bfloat16: return run_piece<how, Format::bfloat16>;
    case Format::int8: return run_piece<how, Format::int8>;
    case Format::int4: return run_piece<how, Format::int4>;
    case Format::grouped_int8: return run_piece<how, Format::grouped_int8>;
    default: break;
  }
  if constexpr (how == Arithmetic::floats || has_pairs(Format::int5)) {
    if (format == Format::int5) return run_piece<how, Format::int5>;
    if (format == Format::int6) return run_piece<how, Format::int6>;
  }
  if constexpr (how == Arithmetic::floats || has_pairs(Format::float4)) {
    if (format == Format::float4) return run_piece<how, Format::float4>;
  }
  if constexpr (how == Arithmetic::floats) {
    if (format == Format::float32) return run_piece<how, Format::float32>;
    return run_piece<how, Format::float16>;
  }
  return nullptr;
}

}  // namespace
}  // namespace quire::QUIRE_ISA
