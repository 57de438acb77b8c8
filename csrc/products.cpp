// Matrix products for one instruction set: prepare the rows, divide the panels, finish the tiles.
#include "neon_tiles.hpp"
#include "product_rows.hpp"
#include "products_on_tiles.hpp"
#include "tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

template <int n>
struct Constant {
  static constexpr int value = n;
};

template <Arithmetic how, Format format, int R, int P>
QUIRE_INLINE void sum(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if constexpr (how == Arithmetic::pairs) return sum_pairs<format>(acc, t, first, last);
#endif
  sum_floats<format>(acc, t, first, last);
}

// R rows from ``row`` on, times P vectors' width of outputs from ``panel`` on.
template <Arithmetic how, Format format, int R, int P>
__attribute__((noinline)) void tile(const Product& p, const Rows& rows, int64_t row, int64_t panel,
                                    const char* ahead, int64_t ahead_bytes) {
  const Packed& w = p.weight;
  int64_t panel_bytes = w.panel_bytes();
  Tile t{w.weights + panel * panel_bytes, panel_bytes, rows.data + row * rows.row_bytes,
         rows.row_bytes, ahead, ahead_bytes};
  F out[R][P] = {};
  if constexpr (how == Arithmetic::bytes) {
    I acc[R][P] = {};
    sum_bytes(acc, t, w.units);
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < P; v++) out[r][v] = scaled(acc[r][v], rows, row + r);
    }
  } else if constexpr (in_groups(format)) {
    int64_t groups = w.num_groups(), units = w.groups.units;
    for (int64_t g = 0; g < groups; g++) {
      F acc[R][P] = {};
      sum<how, format>(acc, t, g * units, (g + 1) * units);
#pragma GCC unroll 16
      for (int v = 0; v < P; v++) {
        Group group(w, panel + v / V, g, v % V * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
          out[r][v] = group.add(out[r][v], acc[r][v], rows.group_sums + (row + r) * groups + g);
      }
    }
  } else {
    sum<how, format>(out, t, 0, w.units);
  }
  for (int v = 0; v < P; v++) {
    Outputs outputs(p, panel * panel_width + v * W);
    for (int r = 0; r < R; r++) outputs.give(row + r, out[r][v]);
  }
}

// ``rows`` rows by tiles of nearly equal height, at most R.
template <Arithmetic how, Format format, int R, int P>
void tiles(const Product& p, const Rows& rows, int64_t first, int64_t last, int64_t panel) {
  int64_t n = last - first, count = (n + R - 1) / R;
  int64_t panel_bytes = p.weight.panel_bytes();
  for (int64_t i = 0; i < count; i++) {
    int64_t row = first + n * i / count, height = first + n * (i + 1) / count - row;
    // The first tiles would wait for weights, unless those before them have fetched them: a single
    // tile all of the next panels, several a panel each.
    int64_t next = panel + P / V + i;
    bool fetch = i < P / V && next < p.weight.panels;
    const char* ahead = p.weight.weights + (fetch ? next : panel) * panel_bytes;
    int64_t ahead_bytes = fetch && count == 1 && next + P / V <= p.weight.panels ? panel_bytes : 0;
    auto of_height = [&](auto constant) {
      constexpr int height = decltype(constant)::value;
      if constexpr (height <= R)
        tile<how, format, height, P>(p, rows, row, panel, ahead, ahead_bytes);
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

// A product in pieces: some rows times some panels.
struct Pieces {
  int64_t rows, panels, across, count;

  Pieces(const Product& p, const Rows& rows, Arithmetic how, int threads) {
    int64_t all = p.weight.panels, few = on_tiles(how) ? rows_at_once : few_rows;
    int64_t most = on_tiles(how) ? rows_at_once : most_rows;
    if (p.rows <= few) {  // the weights are read once: some pieces for each thread
      this->rows = p.rows;
      panels = round_up(all, 4 * threads) / (4 * threads);
    } else {  // the rows stay in a core's own cache
      this->rows = cached_bytes / rows.row_bytes / most * most;
      if (this->rows < most) this->rows = most;
      panels = all / (8 * threads);
      if (panels > 8) panels = 8;
    }
    panels = round_up(panels < few_rows_panels ? few_rows_panels : panels, most_panels);
    across = (all + panels - 1) / panels;
    count = across * ((p.rows + this->rows - 1) / this->rows);
  }

  static constexpr int64_t cached_bytes = 1 << 19;
};

// Some rows times some panels.
struct Piece {
  int64_t first, last, panel, end;

  Piece(const Product& p, const Pieces& pieces, int64_t i) {
    first = i / pieces.across * pieces.rows;
    last = first + pieces.rows < p.rows ? first + pieces.rows : p.rows;
    panel = i % pieces.across * pieces.panels;
    end = panel + pieces.panels < p.weight.panels ? panel + pieces.panels : p.weight.panels;
  }
};

template <Arithmetic how, Format format>
void run_piece(const Product& p, const Rows& rows, Piece piece) {
  if (p.rows <= few_rows) {
    for (; piece.panel + few_rows_panels <= piece.end; piece.panel += few_rows_panels)
      tiles<how, format, few_rows, few_rows_panels * V>(p, rows, piece.first, piece.last,
                                                        piece.panel);
  }
  for (; piece.panel < piece.end; piece.panel += most_panels)
    tiles<how, format, most_rows, most_panels * V>(p, rows, piece.first, piece.last, piece.panel);
}

template <Arithmetic how, Format format>
void run(const Product& p, Team& team) {
  Rows rows = place_rows(p, how);
  Pieces pieces(p, rows, how, team.size);
  if (rows.copied || rows.group_sums) {
    team.deal(p.rows, [&](int64_t first, int64_t last) { prepare(p, how, rows, first, last); });
  }
#if QUIRE_HAS_TILES
  if constexpr (on_tiles(how)) {
    PanelPair<how, format> pair(p, rows, team.index);
    team.take(pieces.count, [&](int64_t i) {
      Piece piece(p, pieces, i);
      pair.multiply(piece.first, piece.last, piece.panel, piece.end);
    });
    return;
  }
#endif
  team.take(pieces.count, [&](int64_t i) { run_piece<how, format>(p, rows, {p, pieces, i}); });
}

template <Arithmetic how>
void run(const Product& p, Team& team) {
  switch (p.weight.format) {
    case Format::bfloat16: return run<how, Format::bfloat16>(p, team);
    case Format::int8: return run<how, Format::int8>(p, team);
    case Format::int4: return run<how, Format::int4>(p, team);
    case Format::grouped_int8: return run<how, Format::grouped_int8>(p, team);
    default: break;
  }
  if constexpr (how == Arithmetic::floats || has_pairs(Format::int5)) {
    if (p.weight.format == Format::int5) return run<how, Format::int5>(p, team);
    if (p.weight.format == Format::int6) return run<how, Format::int6>(p, team);
  }
  if constexpr (how == Arithmetic::floats) {
    if (p.weight.format == Format::float32) return run<how, Format::float32>(p, team);
    run<how, Format::float16>(p, team);
  }
}

// One of the weights that make up a product, and what it gives.
struct Parts {
  Product part;

  explicit Parts(const Product& p) : part(p) { hold(p.weight); }

  bool next() {
    const Packed* rest = part.weight.rest;
    if (!rest) return false;
    part.out = (char*)part.out + part.weight.outputs * (part.out_dtype == DType::float32 ? 4 : 2);
    hold(*rest);
    return true;
  }

 private:
  void hold(const Packed& weight) {
    part.weight = weight;
    if (weight.rest) part.weight.outputs -= weight.rest->outputs;
  }
};

void multiply(const Product& p, Team& team) {
  Arithmetic how = arithmetic(p);
  if (how == Arithmetic::bytes) return run<Arithmetic::bytes, Format::int8>(p, team);
  if constexpr (has_bf16_products) {
    if (how == Arithmetic::pairs) return run<Arithmetic::pairs>(p, team);
  }
  run<Arithmetic::floats>(p, team);
}

}  // namespace

int64_t product_scratch(const Product& p, int threads) {
  int64_t most = 0;
  Parts parts(p);
  do {
    Arithmetic how = arithmetic(parts.part);
    int64_t decoded = on_tiles(how) ? threads * decoded_bytes(parts.part, how) : 0;
    int64_t bytes = place_rows(parts.part, how).scratch_bytes + decoded;
    most = bytes > most ? bytes : most;
  } while (parts.next());
  return most;
}

void product(const Product& p, Team& team) {
  Parts parts(p);
  do multiply(parts.part, team);
  while (parts.next());
}

}  // namespace quire::QUIRE_ISA
