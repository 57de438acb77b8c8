// What is done to rows before they are multiplied, and to their sums.
#include "products/product_rows.hpp"

namespace quire::QUIRE_ISA {
namespace {

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

// The same of W of them: vectors of fewer lanes are no whole line.
constexpr bool in_lanes = W >= 8;
QUIRE_INLINE I in_order(U bytes, U order) {
  return in_lanes ? (I)permuted((F)bytes, order) : (I)bytes;
}
QUIRE_INLINE U order_of(Format format) {
  U lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
  if (inputs_per_line(format) == 4) return (lane & ~3u) | (lane & 1u) << 1 | (lane >> 1 & 1u);
  return (lane & ~7u) | (lane & 1u) << 2 | (lane >> 1 & 3u);
}

// W inputs of a section from ``i`` on, each times its own of ``smoothing``, if that is not null.
template <class T>
QUIRE_INLINE F load_smoothed(const T* x, const float* smoothing, int64_t i, int64_t n) {
  F v = load_up_to(x + i, n - i);
  return smoothing ? v * load_up_to(smoothing + i, n - i) : v;
}

// What sections become beside their bytes.
struct Rounded {
  F4 scales;
  U4 sums;  // of the bytes
};

// Whole numbers from -127 to 127 that the numbers of up to four sections become, by the largest of
// each.
template <int sections>
class Steps {
 public:
  // Without their signs, floats are in the order of their bits; infinity and NaN come last.
  __attribute__((always_inline)) void see(int s, F v) {
    most_[s] = maximum(most_[s], (U)v & 0x7fffffffu);
  }

  // Once all are seen.
  __attribute__((always_inline)) void choose() {
    F4 largest = (F4)lanes_max(most_);
    // Both must be finite, but for a scale after any NaN or infinity, which is NaN.
    factors_ = largest > 1e-30f ? 127.0f / largest : F4{};
    scales_ = largest / 127.0f + largest * 0.0f;
  }

  // W bytes. In the last bits of 1.5 * 2^23 + v there is v rounded.
  __attribute__((always_inline)) U whole(int s, F v) {
    U whole = (U)(v * factors_[s] + 12582912.0f);
    sums_[s] += whole;
    return whole;
  }

  // After so many vectors of each. Numbers may have been longer by ``length`` than what they stand
  // for.
  __attribute__((always_inline)) Rounded rounded(uint32_t vectors, float length = 1.0f) const {
    return {scales_ / length, lanes_sum(sums_) - vectors * (W * 0x4b400000u)};
  }

 private:
  U most_[sections] = {}, sums_[sections] = {};
  F4 factors_, scales_;
};

// n inputs; ``padded``: how many bytes are written, the rest zeros.
template <class T>
QUIRE_INLINE Rounded round_section(const T* x, const float* smoothing, int64_t n, char* out,
                                   int64_t padded) {
  Steps<1> steps;
  for (int64_t i = 0; i < n; i += W) steps.see(0, load_smoothed(x, smoothing, i, n));
  steps.choose();
  uint32_t vectors = 0;
  for (int64_t i = 0; i < padded; i += W, vectors++) {
    U whole = steps.whole(0, i < n ? load_smoothed(x, smoothing, i, n) : F{});
    if (i + W <= padded) {
      narrow_8(out + i, (I)whole);
    } else {  // what follows may be another thread's
      char some[W];
      narrow_8(some, (I)whole);
      __builtin_memcpy(out + i, some, padded - i);
    }
  }
  return steps.rounded(vectors);
}

// So many sections of n inputs that are spread, whole runs, and as many bytes: one alone would wait
// for its largest number, then for its sum.
template <int n, int sections, class T>
QUIRE_INLINE Rounded round_spread(const T* x, const float* smoothing, U order, char* out) {
  constexpr int N = n / W, run = spread_run / W;
  F v[sections][N];
  Steps<sections> steps;
#pragma GCC unroll 4
  for (int s = 0; s < sections; s++) {
#pragma GCC unroll 16
    for (int k = 0; k < N; k++) {
      const int64_t at = s * n + k * W;
      v[s][k] = load(x + at);
      if (smoothing) v[s][k] *= load(smoothing + at);
      v[s][k] = spread_lanes<spread_run>(v[s][k]);
    }
#pragma GCC unroll 4
    for (int apart = 1; apart < run; apart *= 2) {
#pragma GCC unroll 16
      for (int k = 0; k < N; k++) {
        if (k & apart) continue;
        F a = v[s][k], b = v[s][k + apart];
        v[s][k] = a + b, v[s][k + apart] = a - b;
      }
    }
#pragma GCC unroll 16
    for (int k = 0; k < N; k++) steps.see(s, v[s][k]);
  }
  steps.choose();
#pragma GCC unroll 4
  for (int s = 0; s < sections; s++) {
#pragma GCC unroll 16
    for (int k = 0; k < N; k++)
      narrow_8(out + s * n + k * W, in_order(steps.whole(s, v[s][k]), order));
  }
  return steps.rounded(N, 4.0f);  // the root of a run
}
template <int sections, class T>
QUIRE_INLINE Rounded round_spread(const T* x, const float* smoothing, U order, int64_t n,
                                  char* out) {
  switch (n) {
    case 16: return round_spread<16, sections>(x, smoothing, order, out);
    case 32: return round_spread<32, sections>(x, smoothing, order, out);
    default: return round_spread<64, sections>(x, smoothing, order, out);
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
    int64_t s = 0;
    auto take = [&](const Rounded& of, int count) __attribute__((always_inline)) {
      for (int i = 0; i < count; i++, s++) {
        int64_t at = rows.at(row, s);
        rows.scales[at] = of.scales[i];
        rows.starts[at] = -added_to_codes(w.format) * int32_t(of.sums[i]);
        if (rows.group_sums) rows.group_sums[at] = of.scales[i] * float(int32_t(of.sums[i]));
      }
    };
    auto smoothing = [&] { return w.smoothing ? w.smoothing + s * length : nullptr; };
    if (w.spreads_rows) {
      constexpr int most = W == 16 ? 4 : 1;  // that registers hold
      const U order = order_of(w.format);
      while (s + most <= sections)
        take(round_spread<most>(x + s * length, smoothing(), order, length, out + s * length),
             most);
      while (most > 1 && s < sections)
        take(round_spread<1>(x + s * length, smoothing(), order, length, out + s * length), 1);
      for (int64_t i = s * length; i < rows.row_bytes; i++) out[i] = 0;
    }
    while (s < sections) {
      bool last = s + 1 == sections;  // the end of memory for the row is its as well
      int64_t first = s * length, own = last ? n - first : length;
      take(round_section(x + first, smoothing(), own, out + first,
                         last ? rows.row_bytes - first : length), 1);
    }
    if (!in_lanes || !w.spreads_rows) order_bytes(w.format, out, rows.row_bytes);
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
      rows.group_sums[rows.at(row, g)] = lanes_sum(sum);
    }
  }
}

template <class T>
QUIRE_INLINE void store_up_to(T* out, F v, int64_t n) {
  if (n >= W) return store(out, v);
  if (n > 0) store_some(out, v, n);
}

// Row by row, as lines of memory are.
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

template <int P>
void give(const Product& p, int64_t row, int64_t rows, int64_t panel, const F* sums) {
  const auto* of_rows = (const F(*)[P])sums;
  switch (p.out_dtype) {
    case DType::float32: return give_as<P, float>(p, row, rows, panel, of_rows);
    case DType::bfloat16: return give_as<P, bf16>(p, row, rows, panel, of_rows);
    default: return give_as<P, f16>(p, row, rows, panel, of_rows);
  }
}

}  // namespace

void prepare(const Product& p, Arithmetic how, const Rows& rows, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    switch (p.dtype) {
      case DType::float32: prepare_row<float>(p, how, rows, row); break;
      case DType::bfloat16: prepare_row<bf16>(p, how, rows, row); break;
      default: prepare_row<f16>(p, how, rows, row);
    }
  }
}

void give(const Product& p, int64_t row, int64_t rows, int64_t panel, int vectors, const F* sums) {
  if (vectors == of_few.panels * V) return give<of_few.panels * V>(p, row, rows, panel, sums);
  if (vectors == of_many.panels * V) return give<of_many.panels * V>(p, row, rows, panel, sums);
  give<V>(p, row, rows, panel, sums);
}

}  // namespace quire::QUIRE_ISA
