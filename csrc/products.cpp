// Matrix products for one instruction set: prepare the rows, divide the panels, finish the tiles.
//
#include "neon_tiles.hpp"
#include "tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

// How rows are multiplied.
enum class Arithmetic { floats, pairs, bytes };

template <int n>
struct Constant {
  static constexpr int value = n;
};
typedef uint8_t U8 __attribute__((vector_size(W)));

Arithmetic arithmetic(const Product& p) {
  if (p.weight.rounds_rows) return Arithmetic::bytes;
  bool pairs = has_bf16_products && p.dtype == DType::bfloat16 &&
               p.weight.format != Format::float32 && p.weight.format != Format::float16;
  return pairs ? Arithmetic::pairs : Arithmetic::floats;
}

QUIRE_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rows as the tiles read them.
struct Rows {
  char* data;
  int64_t row_bytes;
  float* scales;      // [rows], of bytes
  int32_t* sums;      // [rows], of bytes
  float* group_sums;  // [rows, groups], where groups have zeros
  bool copied;        // otherwise ``data`` is x itself
  int64_t scratch_bytes;
};

Rows place_rows(const Product& p, Arithmetic how) {
  const Packed& w = p.weight;
  int64_t per_line = inputs_per_line(w.format), size = how == Arithmetic::floats  ? 4
                                                        : how == Arithmetic::pairs ? 2
                                                                                   : 1;
  bool fits = w.inputs % per_line == 0;
  bool direct = fits && ((how == Arithmetic::floats && p.dtype == DType::float32) ||
                         how == Arithmetic::pairs);
  Rows rows{};
  rows.copied = !direct;
  char* next = p.scratch;
  if (direct) {
    rows.data = (char*)p.x;
    rows.row_bytes = p.x_stride * size;
  } else {
    rows.data = next;
    rows.row_bytes = round_up(w.lines * per_line * size + W * 4, 64);  // vectors may write beyond
    next += p.rows * rows.row_bytes;
  }
  if (how == Arithmetic::bytes) {
    rows.scales = (float*)next;
    rows.sums = (int32_t*)(next + p.rows * 4);
    next += p.rows * 8;
  }
  if (w.group_zeros) {
    rows.group_sums = (float*)next;
    next += p.rows * (w.lines / w.group_lines) * 4;
  }
  rows.scratch_bytes = next - p.scratch;
  return rows;
}

template <class T>
QUIRE_INLINE F load_up_to(const T* x, int64_t n) {
  return n >= W ? load(x) : load_some(x, n);
}

// x = scale times whole numbers from -127 to 127, in the order of the bytes of a line.
template <class T>
void round_row(const T* x, int64_t n, char* out, int64_t padded, float* scale, int32_t* sum) {
  F most{}, nothing{};
  for (int64_t i = 0; i < n; i += W) {
    F v = load_up_to(x + i, n - i);
    most = maximum(most, maximum(v, -v));
    nothing += v * 0.0f;  // NaN after any NaN or infinity
  }
  float largest = lanes_max(most);
  *scale = largest / 127.0f + lanes_sum(nothing);
  float factor = largest > 1e-30f ? 127.0f / largest : 0.0f;  // which must be finite
  I total{};
  for (int64_t i = 0; i < padded; i += W) {
    F v = i < n ? load_up_to(x + i, n - i) : F{};
    F scaled = v * factor;
    scaled = scaled == scaled ? scaled : F{};  // the scale is NaN
    I whole = (I)(scaled + 12582912.0f) - 0x4b400000;  // the last bits of 1.5 * 2^23 + scaled
    total += whole;
    write(out + i, __builtin_convertvector(whole, I8));
  }
  int32_t lanes = 0;
  for (int i = 0; i < W; i++) lanes += total[i];
  *sum = lanes;
  for (int64_t i = 0; i < padded; i += 4) {
    uint32_t v = read<uint32_t>(out + i);
    write(out + i, (v & 0xff0000ffu) | (v & 0xff00u) << 8 | (v & 0xff0000u) >> 8);
  }
}

template <class T>
void prepare_row(const Product& p, Arithmetic how, const Rows& rows, int64_t row) {
  const Packed& w = p.weight;
  const T* x = (const T*)p.x + row * p.x_stride;
  char* out = rows.data + row * rows.row_bytes;
  int64_t n = w.inputs, padded = w.lines * inputs_per_line(w.format);
  if (how == Arithmetic::bytes) {
    round_row(x, n, out, padded, rows.scales + row, rows.sums + row);
  } else if (rows.copied) {
    for (int64_t i = 0; i < padded; i += W) {
      F v = i < n ? load_up_to(x + i, n - i) : F{};
      if (how == Arithmetic::pairs) {
        store((bf16*)out + i, v);
      } else {
        store((float*)out + i, v);
      }
    }
  }
  if (rows.group_sums) {
    int64_t group = w.group_lines * inputs_per_line(w.format), groups = w.lines / w.group_lines;
    for (int64_t g = 0; g < groups; g++) {
      F sum{};
      for (int64_t i = g * group; i < (g + 1) * group; i += W)
        sum += load_up_to(x + i, (g + 1) * group - i);
      rows.group_sums[row * groups + g] = lanes_sum(sum);
    }
  }
}

void prepare(const Product& p, Arithmetic how, const Rows& rows, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    switch (p.dtype) {
      case DType::float32: prepare_row<float>(p, how, rows, row); break;
      case DType::bfloat16: prepare_row<bf16>(p, how, rows, row); break;
      default: prepare_row<f16>(p, how, rows, row);
    }
  }
}

template <class T>
QUIRE_INLINE void store_up_to(T* out, F v, int64_t n) {
  if (n >= W) return store(out, v);
  if (n > 0) store_some(out, v, n);
}

// Write a tile whose first output is ``column``.
template <int R, int P>
QUIRE_INLINE void finish(const Product& p, const F (&acc)[R][P], int64_t row, int64_t column) {
  const Packed& w = p.weight;
  for (int v = 0; v < P; v++) {
    int64_t first = column + v * W, count = w.outputs - first;
    F bias = w.bias && count > 0 ? load_up_to(w.bias + first, count) : F{};
    F scale = w.scales ? load(w.scales + first) : splat(1.0f);
    for (int r = 0; r < R; r++) {
      F y = fma(acc[r][v], scale, bias);
      int64_t at = (row + r) * w.outputs + first;
      switch (p.out_dtype) {
        case DType::float32: store_up_to((float*)p.out + at, y, count); break;
        case DType::bfloat16: store_up_to((bf16*)p.out + at, y, count); break;
        default: store_up_to((f16*)p.out + at, y, count);
      }
    }
  }
}

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
  int64_t panel_bytes = w.lines * line_bytes;
  Tile t{w.weights + panel * panel_bytes, panel_bytes, rows.data + row * rows.row_bytes,
         rows.row_bytes, ahead, ahead_bytes};
  F out[R][P] = {};
  if constexpr (how == Arithmetic::bytes) {
    I acc[R][P] = {};
    sum_bytes(acc, t, w.lines);
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < P; v++) {
        I whole = acc[r][v] - added_to_bytes * rows.sums[row + r];
        out[r][v] = __builtin_convertvector(whole, F) * rows.scales[row + r];
      }
    }
  } else if constexpr (format == Format::int4) {
    int64_t groups = w.lines / w.group_lines;
    for (int64_t g = 0; g < groups; g++) {
      F acc[R][P] = {};
      sum<how, format>(acc, t, g * w.group_lines, (g + 1) * w.group_lines);
#pragma GCC unroll 16
      for (int v = 0; v < P; v++) {
        int64_t at = ((panel + v / V) * groups + g) * panel_width + v % V * W;
        F scale = load(w.group_scales + at), offset{};
        if (w.group_zeros) {
          auto zeros = read<U8>(w.group_zeros + at);
          offset = 8.0f - __builtin_convertvector(__builtin_convertvector(zeros, I), F);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          F part = acc[r][v];
          if (w.group_zeros) part = fma(offset, rows.group_sums[(row + r) * groups + g], part);
          out[r][v] = fma(part, scale, out[r][v]);
        }
      }
    }
  } else {
    sum<how, format>(out, t, 0, w.lines);
  }
  finish(p, out, row, panel * panel_width);
}

// ``rows`` rows by tiles of nearly equal height, at most R.
template <Arithmetic how, Format format, int R, int P>
void tiles(const Product& p, const Rows& rows, int64_t first, int64_t last, int64_t panel) {
  int64_t n = last - first, count = (n + R - 1) / R;
  int64_t panel_bytes = p.weight.lines * line_bytes;
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
      if constexpr (height <= R) tile<how, format, height, P>(p, rows, row, panel, ahead, ahead_bytes);
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

  Pieces(const Product& p, const Rows& rows, int threads) {
    int64_t all = p.weight.panels;
    if (p.rows <= few_rows) {  // the weights are read once: some pieces for each thread
      this->rows = p.rows;
      panels = round_up(all, 4 * threads) / (4 * threads);
    } else {  // the rows stay in a core's own cache
      this->rows = cached_bytes / rows.row_bytes / most_rows * most_rows;
      if (this->rows < most_rows) this->rows = most_rows;
      panels = all / (8 * threads);
      if (panels > 8) panels = 8;
    }
    panels = round_up(panels < few_rows_panels ? few_rows_panels : panels, most_panels);
    across = (all + panels - 1) / panels;
    count = across * ((p.rows + this->rows - 1) / this->rows);
  }

  static constexpr int64_t cached_bytes = 1 << 19;
};

template <Arithmetic how, Format format>
void run_piece(const Product& p, const Rows& rows, const Pieces& pieces, int64_t i) {
  int64_t first = i / pieces.across * pieces.rows, last = first + pieces.rows;
  if (last > p.rows) last = p.rows;
  int64_t panel = i % pieces.across * pieces.panels, end = panel + pieces.panels;
  if (end > p.weight.panels) end = p.weight.panels;
  if (p.rows <= few_rows) {
    for (; panel + few_rows_panels <= end; panel += few_rows_panels)
      tiles<how, format, few_rows, few_rows_panels * V>(p, rows, first, last, panel);
  }
  for (; panel < end; panel += most_panels)
    tiles<how, format, most_rows, most_panels * V>(p, rows, first, last, panel);
}

template <Arithmetic how, Format format>
void run(const Product& p, Team& team) {
  Rows rows = place_rows(p, how);
  Pieces pieces(p, rows, team.size);
  if (rows.copied || rows.group_sums) {
    team.deal(p.rows, [&](int64_t first, int64_t last) { prepare(p, how, rows, first, last); });
  }
  team.take(pieces.count, [&](int64_t i) { run_piece<how, format>(p, rows, pieces, i); });
}

}  // namespace

int64_t product_scratch(const Product& p) { return place_rows(p, arithmetic(p)).scratch_bytes; }

void product(const Product& p, Team& team) {
  Arithmetic how = arithmetic(p);
  Format format = p.weight.format;
  if (how == Arithmetic::bytes) return run<Arithmetic::bytes, Format::int8>(p, team);
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (how == Arithmetic::pairs) {
    if (format == Format::bfloat16) return run<Arithmetic::pairs, Format::bfloat16>(p, team);
    if (format == Format::int8) return run<Arithmetic::pairs, Format::int8>(p, team);
    return run<Arithmetic::pairs, Format::int4>(p, team);
  }
#endif
  if (format == Format::float32) return run<Arithmetic::floats, Format::float32>(p, team);
  if (format == Format::bfloat16) return run<Arithmetic::floats, Format::bfloat16>(p, team);
  if (format == Format::float16) return run<Arithmetic::floats, Format::float16>(p, team);
  if (format == Format::int8) return run<Arithmetic::floats, Format::int8>(p, team);
  run<Arithmetic::floats, Format::int4>(p, team);
}

}  // namespace quire::QUIRE_ISA
