// The rows of a product: how they are multiplied, what they become before that, and where the sums
// go.
#pragma once

#include "products/bytes.hpp"
#include "products/groups.hpp"
#include "registers/heads.hpp"
#include "registers/tile_registers.hpp"

namespace quire::QUIRE_ISA {
namespace {

// How rows are multiplied.
enum class Arithmetic { floats, pairs, bytes };

Arithmetic arithmetic(const Product& p) {
  if (p.weight.rounds_rows) return Arithmetic::bytes;
  bool pairs = p.dtype == DType::bfloat16 && has_pairs(p.weight.format);
  return pairs ? Arithmetic::pairs : Arithmetic::floats;
}

// Those of bf16 and of bytes are multiplied by tile registers, where there are any.
constexpr bool on_tiles(Arithmetic how) { return has_tiles && how != Arithmetic::floats; }

constexpr int64_t input_bytes(Arithmetic how) {
  return how == Arithmetic::floats ? 4 : how == Arithmetic::pairs ? 2 : 1;
}

// Rows as the tiles read them.
struct Rows {
  char* data;
  int64_t row_bytes;
  float* scales;      // [rows, sections], of bytes
  int32_t* starts;    // [rows, sections], of bytes: from where on their products are added
  float* group_sums;  // [rows, groups], where they are needed
  bool copied;        // otherwise ``data`` is x itself
  int64_t scratch_bytes;
};

// Whose sums are scaled each on their own: the groups, or all inputs.
QUIRE_INLINE int64_t num_sections(const Packed& w) {
  return in_groups(w.format) ? w.num_groups() : 1;
}

// Whether rows are multiplied as they are. Tiles read 64 bytes of a row at a time.
bool read_in_place(const Product& p, Arithmetic how) {
  const Packed& w = p.weight;
  if (how == Arithmetic::floats)
    return p.dtype == DType::float32 && w.inputs % inputs_per_unit(w.format) == 0;
  if (how == Arithmetic::bytes) return false;
  int64_t per_unit = inputs_per_unit(w.format),
          at_once = on_tiles(how) ? tile_row_bytes / 2 : per_unit;
  bool whole_groups = !in_groups(w.format) || w.groups.units * per_unit % at_once == 0;
  return w.inputs % at_once == 0 && whole_groups;
}

Rows place_rows(const Product& p, Arithmetic how, bool copied) {
  const Packed& w = p.weight;
  int64_t size = input_bytes(how);
  Rows rows{};
  rows.copied = copied;
  char* next = p.scratch;
  if (!rows.copied) {
    rows.data = (char*)p.x;
    rows.row_bytes = p.x_stride * size;
  } else {
    rows.data = next;
    // The last group's tile may begin anywhere, and reads zeros beyond it.
    rows.row_bytes = round_up(w.units * inputs_per_unit(w.format) * size, 64) +
                     (on_tiles(how) ? tile_row_bytes : 0);
    next += p.rows * rows.row_bytes;
  }
  if (how == Arithmetic::bytes) {
    rows.scales = (float*)next;
    next += p.rows * num_sections(w) * 4;
    rows.starts = (int32_t*)next;
    next += p.rows * num_sections(w) * 4;
  }
  if (w.needs_sums()) {
    rows.group_sums = (float*)next;
    next += p.rows * w.num_groups() * 4;
  }
  rows.scratch_bytes = round_up(next - p.scratch, 64);
  return rows;
}

Rows place_rows(const Product& p, Arithmetic how) {
  return place_rows(p, how, !read_in_place(p, how));
}

// The rows from ``first`` on.
Rows rows_from(Rows rows, int64_t first, const Packed& w) {
  rows.data += first * rows.row_bytes;
  if (rows.scales) rows.scales += first * num_sections(w), rows.starts += first * num_sections(w);
  if (rows.group_sums) rows.group_sums += first * w.num_groups();
  return rows;
}

// A prepared row once more, in memory for copies.
void copy_row(const Rows& from, int64_t source, const Rows& to, int64_t row, const Packed& w) {
  int64_t bytes = from.row_bytes < to.row_bytes ? from.row_bytes : to.row_bytes;
  __builtin_memcpy(to.data + row * to.row_bytes, from.data + source * from.row_bytes, bytes);
  if (to.scales) {
    int64_t n = num_sections(w);
    __builtin_memcpy(to.scales + row * n, from.scales + source * n, n * 4);
    __builtin_memcpy(to.starts + row * n, from.starts + source * n, n * 4);
  }
  if (!to.group_sums) return;
  int64_t groups = w.num_groups();
  __builtin_memcpy(to.group_sums + row * groups, from.group_sums + source * groups, groups * 4);
}

template <class T>
QUIRE_INLINE F load_up_to(const T* x, int64_t n) {
  return n >= W ? load(x) : load_some(x, n);
}

// The bytes of a row from their own order into that of ``codes_as_bytes``.
void order_bytes(Format format, char* bytes, int64_t n) {
  if (inputs_per_line(format) == 4) {
    for (int64_t i = 0; i < n; i += 4) {
      uint32_t v = read<uint32_t>(bytes + i);
      write(bytes + i, (v & 0xff0000ffu) | (v & 0xff00u) << 8 | (v & 0xff0000u) >> 8);
    }
    return;
  }
  auto apart = [](uint64_t four) {
    four = (four | four << 16) & 0x0000ffff0000ffffu;
    return (four | four << 8) & 0x00ff00ff00ff00ffu;
  };
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t v = read<uint64_t>(bytes + i);
    write(bytes + i, apart(v & 0xffffffffu) | apart(v >> 32) << 8);
  }
}

QUIRE_INLINE int32_t sum_of_bytes(const char* bytes, int64_t n) {
  I lanes{};
  int64_t i = 0;
  for (; i + W <= n; i += W) lanes += widen_8(bytes + i);
  int32_t sum = 0;
  for (; i < n; i++) sum += (int8_t)bytes[i];
  for (int lane = 0; lane < W; lane++) sum += lanes[lane];
  return sum;
}

// W inputs of a section from ``i`` on, each times its own of ``smoothing``, if that is not null.
template <class T>
QUIRE_INLINE F load_smoothed(const T* x, const float* smoothing, int64_t i, int64_t n) {
  F v = load_up_to(x + i, n - i);
  return smoothing ? v * load_up_to(smoothing + i, n - i) : v;
}

// Whole numbers from -127 to 127 that numbers become, by the largest of all.
struct Step {
  F most{}, nothing{};
  float scale, factor;

  __attribute__((always_inline)) void see(F v) {
    most = maximum(most, maximum(v, -v));
    nothing += v * 0.0f;  // NaN after any NaN or infinity
  }
  __attribute__((always_inline)) void choose() {
    float largest = lanes_max(most);
    scale = largest / 127.0f + lanes_sum(nothing);
    factor = largest > 1e-30f ? 127.0f / largest : 0.0f;  // which must be finite
  }
  __attribute__((always_inline)) I whole(F v) const {
    F scaled = v * factor;
    scaled = scaled == scaled ? scaled : F{};  // the scale is NaN
    return (I)(scaled + 12582912.0f) - 0x4b400000;  // the last bits of 1.5 * 2^23 + scaled
  }
};

// n inputs; ``padded``: how many bytes are written, the rest zeros. The scale is returned.
template <class T>
QUIRE_INLINE float round_section(const T* x, const float* smoothing, int64_t n, char* out,
                                 int64_t padded) {
  Step step;
  for (int64_t i = 0; i < n; i += W) step.see(load_smoothed(x, smoothing, i, n));
  step.choose();
  for (int64_t i = 0; i < padded; i += W) {
    I whole = step.whole(i < n ? load_smoothed(x, smoothing, i, n) : F{});
    if (i + W <= padded) {
      narrow_8(out + i, whole);
    } else {  // what follows may be another thread's
      char some[W];
      narrow_8(some, whole);
      __builtin_memcpy(out + i, some, padded - i);
    }
  }
  return step.scale;
}

// The same of n inputs that are spread, whole runs, and as many bytes.
template <int n, class T>
QUIRE_INLINE float round_spread(const T* x, const float* smoothing, char* out) {
  constexpr int N = n / W, run = spread_run / W;
  F v[N];
  Step step;
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) {
    v[k] = load(x + k * W);
    if (smoothing) v[k] *= load(smoothing + k * W);
    v[k] = spread_lanes<spread_run>(v[k]);
  }
#pragma GCC unroll 4
  for (int apart = 1; apart < run; apart *= 2) {
#pragma GCC unroll 16
    for (int k = 0; k < N; k++) {
      if (k & apart) continue;
      F a = v[k], b = v[k + apart];
      v[k] = a + b, v[k + apart] = a - b;
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) step.see(v[k]);
  step.choose();
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) narrow_8(out + k * W, step.whole(v[k]));
  return step.scale * 0.25f;  // v is longer by the root of a run
}
template <class T>
float round_spread(const T* x, const float* smoothing, int64_t n, char* out) {
  switch (n) {
    case 16: return round_spread<16>(x, smoothing, out);
    case 32: return round_spread<32>(x, smoothing, out);
    default: return round_spread<64>(x, smoothing, out);
  }
}

template <class T>
void prepare_row(const Product& p, Arithmetic how, const Rows& rows, int64_t row) {
  const Packed& w = p.weight;
  const T* x = (const T*)p.x + row * p.x_stride;
  char* out = rows.data + row * rows.row_bytes;
  int64_t n = w.inputs;
  if (how == Arithmetic::bytes) {
    int64_t sections = num_sections(w), length = w.units * inputs_per_unit(w.format) / sections;
    for (int64_t s = 0; s < sections; s++) {
      bool last = s + 1 == sections;  // the end of memory for the row is its as well
      int64_t first = s * length, at = row * sections + s;
      const float* smoothing = w.smoothing ? w.smoothing + first : nullptr;
      int64_t own = last ? n - first : length, padded = last ? rows.row_bytes - first : length;
      if (w.spreads_rows) {
        rows.scales[at] = round_spread(x + first, smoothing, length, out + first);
        for (int64_t i = length; i < padded; i++) out[first + i] = 0;
      } else {
        rows.scales[at] = round_section(x + first, smoothing, own, out + first, padded);
      }
      int32_t sum = sum_of_bytes(out + first, length);
      rows.starts[at] = -added_to_codes(w.format) * sum;
      if (rows.group_sums) rows.group_sums[at] = rows.scales[at] * float(sum);
    }
    order_bytes(w.format, out, rows.row_bytes);
  } else if (rows.copied) {
    int64_t padded = rows.row_bytes / (how == Arithmetic::pairs ? 2 : 4);
    for (int64_t i = 0; i < padded; i += W) {
      F v = i < n ? load_up_to(x + i, n - i) : F{};
      if (how == Arithmetic::pairs) {
        store((bf16*)out + i, v);
      } else {
        store((float*)out + i, v);
      }
    }
  }
  if (rows.group_sums && how != Arithmetic::bytes) {
    int64_t group = w.groups.units * inputs_per_unit(w.format), groups = w.num_groups();
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

// The sums of some rows, P vectors of outputs from ``panel`` on, times their scale plus their bias,
// to where they go: row by row, as lines of memory are.
template <int P, class T>
QUIRE_INLINE void give_as(const Product& p, int64_t row, int64_t rows, int64_t panel,
                          const F (*sums)[P]) {
  const Packed& w = p.weight;
  const int64_t first = panel * panel_width, count = w.outputs - first;
  F scale[P], bias[P];
#pragma GCC unroll 16
  for (int v = 0; v < P; v++) {
    const int64_t at = v * W;
    scale[v] = w.scales ? load(w.scales + first + at) : splat(1.0f);
    bias[v] = w.bias && count > at ? load_up_to(w.bias + first + at, count - at) : F{};
  }
  T* out = (T*)p.out + row * p.out_stride + first;
  for (int64_t r = 0; r < rows; r++, out += p.out_stride) {
#pragma GCC unroll 16
    for (int v = 0; v < P; v++)
      store_up_to(out + v * W, fma(sums[r][v], scale[v], bias[v]), count - v * W);
  }
}

// One function for all heights and forms.
template <int P>
__attribute__((noinline)) void give(const Product& p, int64_t row, int64_t rows, int64_t panel,
                                    const F (*sums)[P]) {
  switch (p.out_dtype) {
    case DType::float32: return give_as<P, float>(p, row, rows, panel, sums);
    case DType::bfloat16: return give_as<P, bf16>(p, row, rows, panel, sums);
    default: return give_as<P, f16>(p, row, rows, panel, sums);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
