// Attention of many query rows, as in prefill: tiles of rows against chunks of keys.
//
// Query rows lie in the lanes of vectors, keys and dimensions do not. So one number of a key meets
// a whole vector of rows, the softmax runs without sums over lanes, and only the queries have to be
// transposed, once. The chunks follow FlashAttention-2 (Dao, 2023), the softmax is the running one
// of few_rows.hpp.
#pragma once

#include <type_traits>

#include "layout.hpp"

namespace quire::QUIRE_ISA {

constexpr int tile_vectors = W == 16 ? 4 : 2;
constexpr int tile_rows = tile_vectors * W;

// Keys, or dimensions, of one step with so many vectors of rows: their sums fit the registers, and
// are enough of them to keep products coming.
constexpr int keys_of_step(int vectors) {
  return W < 16 || vectors > 2 ? 4 : vectors == 2 ? 8 : 16;
}
constexpr int most_keys = keys_of_step(1);

// What is multiplied at a time: one float ...
struct FloatUnit {
  typedef float Unit;
  static constexpr int per_unit = 1;
  QUIRE_INLINE F add(F sum, Unit a, F b) { return sum + splat(a) * b; }
  QUIRE_INLINE F join(F a, F) { return a; }
  QUIRE_INLINE F weight(F score) { return exp2(score); }
};

#if defined(__AVX512BF16__)
// ... or a pair of bf16.
struct PairUnit {
  typedef uint32_t Unit;
  static constexpr int per_unit = 2;
  QUIRE_INLINE F add(F sum, Unit a, F b) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
  }
  // To nearest, halves upwards. A row with a weight that is not a number has a sum that is none.
  QUIRE_INLINE F join(F a, F b) {
    return (F)(((U)a + 0x8000u) >> 16 | (((U)b + 0x8000u) & 0xffff0000u));
  }
  QUIRE_INLINE F weight(F score) { return exp2<exp2_fraction_to_16_bits>(score); }
};
#endif

// out[k][row] = [fade[row] * out[k][row]] + sum over u of a[k][u] * b[u][row], for a step's k.
template <class Units, int Vectors>
static void multiply(const typename Units::Unit* a, int64_t a_row, int64_t a_unit, const F* b,
                     int64_t units, const F* fade, F* out) {
  constexpr int keys = keys_of_step(Vectors);
  F sum[keys][Vectors];
#pragma GCC unroll 16
  for (int k = 0; k < keys; k++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      sum[k][v] = fade ? out[k * tile_vectors + v] * fade[v] : F{};
    }
  }
  for (int64_t u = 0; u < units; u++) {
#pragma GCC unroll 16
    for (int k = 0; k < keys; k++) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        sum[k][v] = Units::add(sum[k][v], a[k * a_row + u * a_unit], b[u * tile_vectors + v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < keys; k++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) out[k * tile_vectors + v] = sum[k][v];
  }
}

template <class KV, class Units>
struct ManyRows {
  typedef typename Units::Unit Unit;
  static constexpr int per_unit = Units::per_unit;

  Context<KV> context;
  int64_t key_units;
  F* queries[2];   // [key_units][tile_rows], for the window and for the sinks
  Unit* keys;      // [chunk][key_units]
  Unit* values;    // [chunk / per_unit][value_width]
  F* scores;       // [chunk][tile_rows]
  F* weights;      // [chunk / per_unit][tile_rows]
  F* sums;         // [value_width][tile_rows]
  float* row_out;  // [value_width]
  F most[tile_vectors], total[tile_vectors], fade[tile_vectors];
  I token[tile_vectors];  // position of each row

  ManyRows(const Attend& a, Dealer& dealer)
      : context(a, dealer), key_units(context.key_width / per_unit) {
    for (auto& query : queries) query = dealer.take<F>(key_units * tile_vectors);
    keys = dealer.take<Unit>(chunk * key_units);
    values = dealer.take<Unit>(chunk / per_unit * context.value_width);
    scores = dealer.take<F>(chunk * tile_vectors);
    weights = dealer.take<F>(chunk / per_unit * tile_vectors);
    sums = dealer.take<F>(context.value_width * tile_vectors);
    row_out = dealer.take<float>(context.value_width);
  }

  void run(const Work& work) {
    int64_t rows = work.tokens() * context.group;
    for (int64_t first = 0; first < rows; first += tile_rows) {
      int n = rows - first < tile_rows ? rows - first : tile_rows;
      switch ((n + W - 1) / W) {
        case 1: run_tile<1>(work, first, n); break;
        case 2: run_tile<2>(work, first, n); break;
        case 3: run_tile<tile_vectors < 3 ? 1 : 3>(work, first, n); break;
        default: run_tile<tile_vectors < 4 ? 1 : 4>(work, first, n);
      }
    }
  }

  template <int Vectors>
  void run_tile(const Work& work, int64_t first, int n) {
    const Attend& a = context.a;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    prepare(work, first, n, Vectors * W, false);
    if (two) prepare(work, first, n, Vectors * W, true);
    for (int v = 0; v < Vectors; v++) {
      most[v] = splat(nothing_seen);
      total[v] = F{};
    }
    __builtin_memset(sums, 0, context.value_width * tile_rows * sizeof(float));
    Chunk<KV> now;
    for (int64_t column = work.item.first_column;; column += now.n) {
      now.find(a, work, column);
      if (!now.n) break;
      read(now);
      const F* query = queries[two && now.sinks];
      for (int j = 0; j < now.n; j += keys_of_step(Vectors)) {
        multiply<Units, Vectors>(keys + j * key_units, key_units, 1, query, key_units, nullptr,
                                 scores + j * tile_vectors);
      }
      weigh<Vectors>(now);
      int64_t units = (now.n + per_unit - 1) / per_unit;
      for (int64_t d = 0; d < a.value_dim; d += keys_of_step(Vectors)) {
        multiply<Units, Vectors>(values + d, 1, context.value_width, weights, units, fade,
                                 sums + d * tile_vectors);
      }
    }
    const int64_t dim = a.value_dim;
    for (int r = 0; r < n; r++) {
      const float* column = (const float*)sums + r;
      for (int64_t d = 0; d < dim; d++) row_out[d] = column[d * tile_rows];
      finish_row(a, work, work.item.first_head, first + r, most[r / W][r % W],
                 total[r / W][r % W], row_out);
    }
  }

  // Transpose the queries; rows beyond n repeat the last.
  void prepare(const Work& work, int64_t first, int n, int end, bool for_sinks) {
    Unit* out = (Unit*)queries[for_sinks];
    Unit* row = keys;  // not yet in use
    for (int r = 0; r < end; r++) {
      if (r < n) {
        int64_t token_row = (first + r) / context.group;
        int head = work.item.first_head * context.group + (first + r) % context.group;
        context.read_query(work.token(token_row), head, for_sinks);
        narrow_units(context.head, row);
        token[r / W][r % W] = work.position + token_row;
      } else {
        token[r / W][r % W] = token[(r - 1) / W][(r - 1) % W];
      }
      for (int64_t u = 0; u < key_units; u++) out[u * tile_rows + r] = row[u];
    }
  }

  void narrow_units(const float* x, float* out) { narrow(x, out, context.key_width); }
  void narrow_units(const float* x, uint32_t* out) { narrow(x, (bf16*)out, context.key_width); }

  // Bring a chunk's keys and values into the units of the products.
  void read(const Chunk<KV>& now) {
    const int64_t key_dim = context.a.key_dim, value_dim = context.a.value_dim;
    for (int j = 0; j < round_up(now.n, most_keys); j++) {
      typedef std::conditional_t<per_unit == 2, bf16, float> Number;
      Number* out = (Number*)(keys + j * key_units);
      int64_t i = 0;
      for (; i + W <= key_dim; i += W) copy(now.keys[j] + i, out + i);
      if (i < key_dim) {
        store(out + i, load_some(now.keys[j] + i, key_dim - i));
        i += W;
      }
      for (; i < context.key_width; i += W) store(out + i, F{});
    }
    for (int j = 0; j < now.n; j += per_unit) {
      const KV* one = now.values[j];
      const KV* other = now.values[j + per_unit - 1];  // has weight 0 where there is none
      F* out = (F*)(values + j / per_unit * context.value_width);
      int64_t i = 0;
      for (; i + W <= value_dim; i += W) *out++ = pair(one + i, other + i);
      if (i < value_dim) {
        int left = value_dim - i;
        *out++ = pair(load_some(one + i, left), load_some(other + i, left));
      }
    }
  }

  // W numbers, exactly.
  template <class T>
  QUIRE_INLINE void copy(const T* from, T* to) { __builtin_memcpy(to, from, W * sizeof(T)); }
  template <class T, class Other>
  QUIRE_INLINE void copy(const T* from, Other* to) { store(to, load(from)); }

  // Exact for bf16 and int8, the types that pairs are made of.
  QUIRE_INLINE F pair(F a, F b) {
    if constexpr (per_unit == 1) return a;
    return (F)((U)a >> 16 | ((U)b & 0xffff0000u));
  }
  QUIRE_INLINE F pair(const KV* a, const KV* b) {
    if constexpr (per_unit == 2 && sizeof(KV) == 2) return (F)(widen_16(a) | widen_16(b) << 16);
    return pair(load(a), load(b));
  }

  // Scores become weights; maxima, sums and fades follow. A weight beyond n is 0.
  template <int Vectors>
  void weigh(const Chunk<KV>& now) {
    const Attend& a = context.a;
    adjust<Vectors>(now);
    if (per_unit == 2 && now.n % 2) {
      for (int v = 0; v < Vectors; v++) {
        scores[now.n * tile_vectors + v] = splat(-__builtin_inff());
      }
    }
    int end = round_up(now.n, per_unit);
    F highest[Vectors];
    for (int v = 0; v < Vectors; v++) highest[v] = most[v];
    for (int j = 0; j < now.n; j++) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        highest[v] = maximum(scores[j * tile_vectors + v], highest[v]);
      }
    }
    const float* scales = a.value_scales;
    for (int v = 0; v < Vectors; v++) {
      fade[v] = exp2(most[v] - highest[v]);
      most[v] = highest[v];
      F sum[2] = {};
      for (int j = 0; j < end; j += per_unit) {
        F weight[2];
        for (int k = 0; k < per_unit; k++) {
          weight[k] = Units::weight(scores[(j + k) * tile_vectors + v] - most[v]);
          sum[k] += weight[k];
          if (scales) weight[k] *= scales[now.rows[j + k]];
        }
        weights[j / per_unit * tile_vectors + v] = Units::join(weight[0], weight[per_unit - 1]);
      }
      total[v] = total[v] * fade[v] + (sum[0] + sum[1]);
    }
  }

  // Scales, soft-capping, and -inf where a row does not see a column.
  template <int Vectors>
  void adjust(const Chunk<KV>& now) {
    const Attend& a = context.a;
    if (a.key_scales || a.softcap > 0) {
      for (int j = 0; j < now.n; j++) {
        float scale = a.key_scales ? a.key_scales[now.rows[j]] : 1.0f;
        for (int v = 0; v < Vectors; v++) {
          F& s = scores[j * tile_vectors + v];
          s *= scale;
          if (a.softcap > 0) s = tanh(s) * (a.softcap * log2e);
        }
      }
    }
    int32_t window = a.window, behind = now.sinks ? window : 0;
    int64_t oldest = token[0][0] - behind, newest = token[Vectors - 1][W - 1];
    bool windowed = window && !now.sinks;
    bool whole = now.position + now.n - 1 <= oldest;
    if (whole && !(windowed && now.position <= newest - window)) return;
    for (int j = 0; j < now.n; j++) {
      int32_t position = now.position + j;
      for (int v = 0; v < Vectors; v++) {
        F& s = scores[j * tile_vectors + v];
        I seen = token[v] - behind >= position;
        if (windowed) seen &= token[v] - window < position;
        s = select(seen, s, splat(-__builtin_inff()));
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA
