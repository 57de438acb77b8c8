// Attention of a few query rows, as in decoding: each key and value is read from memory once, in
// the pool's own type, and meets all rows of its KV head there.
//
// The softmax is kept as a running maximum and sum, and what was gathered so far is scaled when
// the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include <type_traits>

#include "layout.hpp"

namespace quire::QUIRE_ISA {

// Products of query and key in float.
template <class KV>
struct WideProducts {
  typedef float Query;
  static constexpr int step = W;
  static constexpr bool pairs = false;
  typedef F Key;
  QUIRE_INLINE Key key(const KV* k) { return load(k); }
  QUIRE_INLINE Key key(const KV* k, int n) { return load_some(k, n); }
  QUIRE_INLINE F add(F sum, const float* q, Key k) { return sum + load(q) * k; }
};

#if defined(__AVX512BF16__)
// Products of pairs of bf16, added up in float.
struct PairProducts {
  typedef bf16 Query;
  static constexpr int step = 2 * W;
  static constexpr bool pairs = true;
  typedef __m512i Key;
  QUIRE_INLINE Key key(const bf16* k) { return _mm512_loadu_si512(k); }
  QUIRE_INLINE Key key(const bf16* k, int n) {
    return _mm512_maskz_loadu_epi16((1u << n) - 1, k);
  }
  QUIRE_INLINE F add(F sum, const bf16* q, Key k) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(q), (__m512bh)k);
  }
};
#endif

template <class T>
QUIRE_INLINE void fetch_row(const T* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(row + i, 0, 3);
}

// scores[g][j] for ``Rows`` query rows and all of the chunk's keys, as W products at a time.
template <class Products, int Rows, class KV>
static void score(const Chunk<KV>& keys, const Chunk<KV>& next, int64_t dim,
                  const typename Products::Query* queries, int64_t width, float* scores) {
  constexpr int columns = Rows == 1 ? W : Rows == 2 ? W / 2 : W / 4;
  constexpr int step = Products::step;
  int64_t whole = dim / step * step;
  for (int j0 = 0; j0 < keys.n; j0 += columns) {
    if (j0 < next.n) {
      for (int j = 0; j < columns; j++) fetch_row(next.keys[j0 + j], dim);
    }
    F sum[W] = {};
    int64_t i = 0;
    for (; i < whole; i += step) {
      typename Products::Key key[columns];
#pragma GCC unroll 16
      for (int j = 0; j < columns; j++) key[j] = Products::key(keys.keys[j0 + j] + i);
#pragma GCC unroll 4
      for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 16
        for (int j = 0; j < columns; j++) {
          sum[g * columns + j] = Products::add(sum[g * columns + j], queries + g * width + i, key[j]);
        }
      }
    }
    if (i < dim) {
#pragma GCC unroll 16
      for (int j = 0; j < columns; j++) {
        typename Products::Key key = Products::key(keys.keys[j0 + j] + i, dim - i);
#pragma GCC unroll 4
        for (int g = 0; g < Rows; g++) {
          sum[g * columns + j] = Products::add(sum[g * columns + j], queries + g * width + i, key);
        }
      }
    }
    float found[W];
    store(found, sums(sum));
#pragma GCC unroll 4
    for (int g = 0; g < Rows; g++) {
      __builtin_memcpy(scores + g * chunk + j0, found + g * columns, columns * sizeof(float));
    }
  }
}

// out[g] = out[g] * fade[g] + sum of weights[g][j] * value j, for ``Vectors`` vectors of dimensions.
template <int Rows, int Vectors, bool Whole, class KV>
static void gather(const Chunk<KV>& values, const Chunk<KV>* next, int64_t at, int64_t left,
                   const float* weights, const float* fade, float* out, int64_t width) {
  F sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) sum[g][v] = load(out + g * width + at + v * W) * fade[g];
  }
  for (int j = 0; j < values.n; j++) {
    F value[Vectors];
    if (next) {
#pragma GCC unroll 4
      for (unsigned v = 0; v < Vectors * W * sizeof(KV); v += 64) __builtin_prefetch((const char*)(next->values[j] + at) + v);
    }
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      const KV* from = values.values[j] + at + v * W;
      value[v] = Whole ? load(from) : load_some(from, left);
    }
#pragma GCC unroll 4
    for (int g = 0; g < Rows; g++) {
      F weight = splat(weights[g * chunk + j]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) sum[g][v] += weight * value[v];
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) store(out + g * width + at + v * W, sum[g][v]);
  }
}

template <int Rows, class KV>
static void gather_all(const Chunk<KV>& values, const Chunk<KV>* next, int64_t dim, const float* weights,
                       const float* fade, float* out, int64_t width) {
  constexpr int most = W == 16 ? 4 : 2;  // as many sums as registers allow
  int64_t at = 0;
  for (; at + most * W <= dim; at += most * W) {
    gather<Rows, most, true>(values, next, at, 0, weights, fade, out, width);
  }
  for (; at + W <= dim; at += W) gather<Rows, 1, true>(values, next, at, 0, weights, fade, out, width);
  if (at < dim) gather<Rows, 1, false>(values, next, at, dim - at, weights, fade, out, width);
}

#if defined(__AVX512BF16__)
// The same for pairs of bf16 values, two columns at a time, and Vectors times 32 dimensions. In
// ``out`` those of 32 are in the order of ``unpack``: see ``in_order``.
template <int Rows, int Vectors>
static void gather_pairs(const Chunk<bf16>& values, const Chunk<bf16>* next, int64_t at,
                         uint32_t mask, const bf16* weights, const float* fade, float* out,
                         int64_t width) {
  F sum[Rows][2 * Vectors];
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * Vectors; v++) sum[g][v] = load(out + g * width + at + v * W) * fade[g];
  }
  for (int j = 0; j < values.n; j += 2) {
    F pair[2 * Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; v++) {
      __m512i a = _mm512_maskz_loadu_epi16(mask, values.values[j] + at + v * 32);
      __m512i b = _mm512_maskz_loadu_epi16(mask, values.values[j + 1] + at + v * 32);
      pair[2 * v] = (F)_mm512_unpacklo_epi16(a, b);
      pair[2 * v + 1] = (F)_mm512_unpackhi_epi16(a, b);
      if (next) {
        __builtin_prefetch(next->values[j] + at + v * 32, 0, 3);
        __builtin_prefetch(next->values[j + 1] + at + v * 32, 0, 3);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Rows; g++) {
      __m512i weight = _mm512_set1_epi32(read<int32_t>(weights + g * chunk + j));
#pragma GCC unroll 4
      for (int v = 0; v < 2 * Vectors; v++) {
        sum[g][v] = (F)_mm512_dpbf16_ps((__m512)sum[g][v], (__m512bh)weight, (__m512bh)pair[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * Vectors; v++) store(out + g * width + at + v * W, sum[g][v]);
  }
}

template <int Rows>
static void gather_all(const Chunk<bf16>& values, const Chunk<bf16>* next, int64_t dim,
                       const bf16* weights, const float* fade, float* out, int64_t width) {
  int64_t at = 0;
  for (; at + 64 <= dim; at += 64) {
    gather_pairs<Rows, 2>(values, next, at, ~0u, weights, fade, out, width);
  }
  for (; at < dim; at += 32) {
    uint32_t mask = dim - at >= 32 ? ~0u : (1u << (dim - at)) - 1;
    gather_pairs<Rows, 1>(values, next, at, mask, weights, fade, out, width);
  }
}

// Dimensions back in their order: low and high halves of groups of 8 lie 16 apart.
QUIRE_INLINE void in_order(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 2 * W) {
    __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + W);
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(x + i, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(x + i + W, _mm512_permutex2var_ps(low, second, high));
  }
}
#endif

template <class KV, class Products>
struct FewRows {
  typedef typename Products::Query Query;
  typedef std::conditional_t<Products::pairs, bf16, float> Weight;

  Context<KV> context;
  Query* queries[2];  // turned for the window, and for the sinks: [rows, key_width]
  float* scores;      // [rows, chunk]
  Weight* weights;    // [rows, chunk], the scores' place where they are floats
  float* sums;        // [rows, value_width]
  float* most;        // [rows] running maxima
  float* total;       // [rows] running sums
  float* fade;        // [rows]

  FewRows(const Attend& a, int64_t rows, Dealer& dealer) : context(a, dealer) {
    rows = round_up(rows, 4);
    for (auto& query : queries) query = dealer.take<Query>(rows * context.key_width);
    scores = dealer.take<float>(rows * chunk);
    weights = dealer.take<Weight>(rows * chunk);
    if constexpr (!Products::pairs) weights = scores;
    sums = dealer.take<float>(rows * context.value_width);
    most = dealer.take<float>(rows);
    total = dealer.take<float>(rows);
    fade = dealer.take<float>(rows);
  }

  void run(const Work& work) {
    const Attend& a = context.a;
    int rows = work.tokens() * context.group;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    prepare(work, rows, false);
    if (two) prepare(work, rows, true);
    for (int r = 0; r < rows; r++) {
      most[r] = nothing_seen;
      total[r] = 0;
    }
    __builtin_memset(sums, 0, rows * context.value_width * sizeof(float));
    Chunk<KV> chunks[2];
    int64_t column = work.item.first_column;
    chunks[0].find(a, work, column);
    for (int turn = 0; chunks[turn].n; turn ^= 1) {
      column += chunks[turn].n;
      chunks[turn ^ 1].find(a, work, column);
      take(work, rows, chunks[turn], chunks[turn ^ 1], queries[two && chunks[turn].sinks]);
    }
    for (int r = 0; r < rows; r++) {
      float* row = sums + r * context.value_width;
#if defined(__AVX512BF16__)
      if constexpr (Products::pairs) in_order(row, context.value_width);
#endif
      finish_row(context, work, r, most[r], total[r], row);
    }
  }

  void prepare(const Work& work, int rows, bool for_sinks) {
    for (int r = 0; r < rows; r++) {
      context.read_query(work.item.first_token + r / context.group,
                         work.h * context.group + r % context.group, for_sinks);
      narrow(context.head, queries[for_sinks] + r * context.key_width, context.key_width);
    }
  }

  void take(const Work& work, int rows, const Chunk<KV>& now, const Chunk<KV>& next,
            const Query* query) {
    const Attend& a = context.a;
    for (int r = 0; r < rows; r += 4) {
      const Query* q = query + r * context.key_width;
      float* s = scores + r * chunk;
      switch (rows - r) {
        case 1: score<Products, 1>(now, next, a.key_dim, q, context.key_width, s); break;
        case 2: score<Products, 2>(now, next, a.key_dim, q, context.key_width, s); break;
        case 3: score<Products, 3>(now, next, a.key_dim, q, context.key_width, s); break;
        default: score<Products, 4>(now, next, a.key_dim, q, context.key_width, s);
      }
    }
    weigh(work, rows, now);
    for (int r = 0; r < rows; r += 4) {
      const Weight* w = weights + r * chunk;
      float* s = sums + r * context.value_width;
      const Chunk<KV>* ahead = r || !next.n ? nullptr : &next;
      switch (rows - r) {
        case 1: gather_all<1>(now, ahead, a.value_dim, w, fade + r, s, context.value_width); break;
        case 2: gather_all<2>(now, ahead, a.value_dim, w, fade + r, s, context.value_width); break;
        case 3: gather_all<3>(now, ahead, a.value_dim, w, fade + r, s, context.value_width); break;
        default: gather_all<4>(now, ahead, a.value_dim, w, fade + r, s, context.value_width);
      }
    }
  }

  // Scores become weights; maxima, sums and fades follow.
  void weigh(const Work& work, int rows, const Chunk<KV>& now) {
    const Attend& a = context.a;
    float key_scale[chunk], value_scale[chunk];
    if (a.key_scales) {
      for (int j = 0; j < chunk; j++) {
        key_scale[j] = a.key_scales[now.rows[j]];
        value_scale[j] = a.value_scales[now.rows[j]];
      }
    }
    int end = round_up(now.n, W);
    for (int r = 0; r < rows; r++) {
      float* s = scores + r * chunk;
      if (a.key_scales) {
        for (int j = 0; j < end; j += W) store(s + j, load(s + j) * load(key_scale + j));
      }
      if (a.softcap > 0) {
        for (int j = 0; j < end; j += W) store(s + j, tanh(load(s + j)) * (a.softcap * log2e));
      }
      int64_t token = work.position + r / context.group;
      int first = now.first_seen(a, token), last = now.end_seen(a, token);
      for (int j = 0; j < first; j++) s[j] = -__builtin_inff();
      for (int j = last; j < end; j++) s[j] = -__builtin_inff();
      F m = load(s);
      for (int j = W; j < end; j += W) m = maximum(load(s + j), m);
      float highest = lanes_max(m);
      highest = most[r] > highest ? most[r] : highest;
      fade[r] = exp2(splat(most[r] - highest))[0];
      most[r] = highest;
      F sum{};
      for (int j = 0; j < end; j += W) {
        F weight = exp2(load(s + j) - highest);
        sum += weight;
        store(s + j, a.value_scales ? weight * load(value_scale + j) : weight);
      }
      if constexpr (Products::pairs) narrow(s, weights + r * chunk, end);
      total[r] = total[r] * fade[r] + lanes_sum(sum);
    }
  }
};

}  // namespace quire::QUIRE_ISA
