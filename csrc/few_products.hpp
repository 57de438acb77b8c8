// How a few query rows meet keys, and their weights values, in the pool's own numbers.
//
// Each kind of products says what queries (Query) and weights (Weight) are rounded to, in what sums
// are kept (Sum), and by how much a rounded number is to be multiplied.
#pragma once

#include "layout.hpp"

namespace quire::QUIRE_ISA {

// In float, for every type.
template <class KV>
struct WideProducts {
  typedef float Query;
  typedef float Weight;
  typedef F Sum;
  typedef F Key;
  static constexpr int step = W;
  static constexpr bool pairs = false;  // values are taken one column at a time

  QUIRE_INLINE float round(const float* x, Query* out, int64_t n) {
    narrow(x, out, n);
    return 1.0f;
  }
  QUIRE_INLINE F as_float(Sum sum) { return sum; }
  QUIRE_INLINE Key key(const KV* k) { return load(k); }
  QUIRE_INLINE Key key(const KV* k, int n) { return load_some(k, n); }
  QUIRE_INLINE Sum add(Sum sum, const float* q, Key k) { return sum + load(q) * k; }
};

#if defined(__AVX2__)
#if defined(__AVX512F__)
typedef __m512i Pairs;  // 2 W numbers of 16 bits
QUIRE_INLINE Pairs low_pairs(Pairs a, Pairs b) { return _mm512_unpacklo_epi16(a, b); }
QUIRE_INLINE Pairs high_pairs(Pairs a, Pairs b) { return _mm512_unpackhi_epi16(a, b); }
QUIRE_INLINE Pairs all_pairs(int32_t x) { return _mm512_set1_epi32(x); }
QUIRE_INLINE Pairs widen_to_16(const int8_t* p) { return _mm512_cvtepi8_epi16(read<__m256i>(p)); }
#if defined(__AVX512VNNI__)
QUIRE_INLINE I add_products(I sum, Pairs a, Pairs b) {
  return (I)_mm512_dpwssd_epi32((__m512i)sum, a, b);
}
#else
QUIRE_INLINE I add_products(I sum, Pairs a, Pairs b) { return sum + (I)_mm512_madd_epi16(a, b); }
#endif
#else
typedef __m256i Pairs;
QUIRE_INLINE Pairs low_pairs(Pairs a, Pairs b) { return _mm256_unpacklo_epi16(a, b); }
QUIRE_INLINE Pairs high_pairs(Pairs a, Pairs b) { return _mm256_unpackhi_epi16(a, b); }
QUIRE_INLINE Pairs all_pairs(int32_t x) { return _mm256_set1_epi32(x); }
QUIRE_INLINE Pairs widen_to_16(const int8_t* p) { return _mm256_cvtepi8_epi16(read<__m128i>(p)); }
QUIRE_INLINE I add_products(I sum, Pairs a, Pairs b) { return sum + (I)_mm256_madd_epi16(a, b); }
#endif

// Of int8 with queries and weights of 16 bits, exactly added up: rounding a query or the weights of
// a chunk to 16 bits of their largest is finer than bf16 and f16 are. Heads up to 512 wide.
struct WholeProducts {
  typedef int16_t Query;
  typedef int16_t Weight;
  typedef I Sum;
  typedef Pairs Key;
  static constexpr int step = 2 * W;
  static constexpr bool pairs = true;

  QUIRE_INLINE float round(const float* x, int16_t* out, int64_t n) {
    F high{}, strange{};  // not a number where x is none, otherwise 0
    for (int64_t i = 0; i < n; i += W) {
      F v = load(x + i);
      high = maximum(maximum(v, -v), high);
      strange += v - v;
    }
    float most = lanes_max(high), inverse = most > 0 ? 32767.0f / most : 0.0f;
    for (int64_t i = 0; i < n; i += W) {
      I whole = __builtin_convertvector(load(x + i) * inverse + 12582912.0f - 12582912.0f, I);
      narrow_16(out + i, (U)whole);
    }
    return most / 32767.0f + lanes_sum(strange);
  }
  QUIRE_INLINE F as_float(Sum sum) { return __builtin_convertvector(sum, F); }
  QUIRE_INLINE Key key(const int8_t* k) { return widen_to_16(k); }
  QUIRE_INLINE Key key(const int8_t* k, int n) {
    int8_t some[2 * W] = {};
    __builtin_memcpy(some, k, n);
    return widen_to_16(some);
  }
  QUIRE_INLINE Sum add(Sum sum, const int16_t* q, Key k) {
    return add_products(sum, read<Pairs>(q), k);
  }
  QUIRE_INLINE Sum add_pairs(Sum sum, Pairs weight, Pairs value) {
    return add_products(sum, weight, value);
  }
};
#endif

#if defined(__AVX512BF16__)
// Of bf16 with queries and weights of bf16, added up in float.
struct PairProducts {
  typedef bf16 Query;
  typedef bf16 Weight;
  typedef F Sum;
  typedef Pairs Key;
  static constexpr int step = 2 * W;
  static constexpr bool pairs = true;

  QUIRE_INLINE float round(const float* x, bf16* out, int64_t n) {
    narrow(x, out, n);
    return 1.0f;
  }
  QUIRE_INLINE F as_float(Sum sum) { return sum; }
  QUIRE_INLINE Key key(const bf16* k) { return read<Pairs>(k); }
  QUIRE_INLINE Key key(const bf16* k, int n) {
    return _mm512_maskz_loadu_epi16((1u << n) - 1, k);
  }
  QUIRE_INLINE Sum add(Sum sum, const bf16* q, Key k) { return add_pairs(sum, read<Pairs>(q), k); }
  QUIRE_INLINE Sum add_pairs(Sum sum, Pairs a, Pairs b) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

template <class T>
QUIRE_INLINE void fetch_row(const T* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(row + i, 0, 3);
}

// scores[g][j] for ``Rows`` query rows and all of the chunk's keys, as W products at a time.
template <class Products, int Rows, class KV>
static void score(const HeadChunk<KV>& keys, const HeadChunk<KV>& next, int64_t dim,
                  const typename Products::Query* queries, int64_t width, float* scores) {
  constexpr int columns = Rows == 1 ? W : Rows == 2 ? W / 2 : W / 4;
  constexpr int step = Products::step;
  int64_t whole = dim / step * step;
  for (int j0 = 0; j0 < keys.n(); j0 += columns) {
    if (j0 < next.n()) {
      for (int j = 0; j < columns; j++) fetch_row(next.key(j0 + j), dim);
    }
    typename Products::Sum sum[W] = {};
    int64_t i = 0;
    for (; i < whole; i += step) {
      typename Products::Key key[columns];
#pragma GCC unroll 16
      for (int j = 0; j < columns; j++) key[j] = Products::key(keys.key(j0 + j) + i);
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
        typename Products::Key key = Products::key(keys.key(j0 + j) + i, dim - i);
#pragma GCC unroll 4
        for (int g = 0; g < Rows; g++) {
          sum[g * columns + j] = Products::add(sum[g * columns + j], queries + g * width + i, key);
        }
      }
    }
    F rows[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) rows[i] = Products::as_float(sum[i]);
    float found[W];
    store(found, sums(rows));
#pragma GCC unroll 4
    for (int g = 0; g < Rows; g++) {
      __builtin_memcpy(scores + g * chunk + j0, found + g * columns, columns * sizeof(float));
    }
  }
}

// out[g] = out[g] * fade[g] + sum of weights[g][j] * value j, for ``Vectors`` vectors of dimensions.
template <int Rows, int Vectors, bool Whole, class KV>
static void gather(const HeadChunk<KV>& values, const HeadChunk<KV>* next, int64_t at, int64_t left,
                   const float* weights, const float* fade, float* out, int64_t width) {
  F sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) sum[g][v] = load(out + g * width + at + v * W) * fade[g];
  }
  for (int j = 0; j < values.n(); j++) {
    F value[Vectors];
    if (next) {
#pragma GCC unroll 4
      for (unsigned v = 0; v < Vectors * W * sizeof(KV); v += 64) __builtin_prefetch((const char*)(next->value(j) + at) + v);
    }
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      const KV* from = values.value(j) + at + v * W;
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

#if defined(__AVX2__)
// The same two columns at a time, for Vectors times 2 W dimensions, of which only ``left`` are there.
// In ``out`` those 2 W are in the order of low and high pairs: see ``in_order``.
template <class Products, int Rows, int Vectors, bool Whole, class KV>
static void gather_pairs(const HeadChunk<KV>& values, const HeadChunk<KV>* next, int64_t at, int left,
                         const typename Products::Weight* weights, const float* scale,
                         const float* fade, float* out, int64_t width) {
  typename Products::Sum sum[Rows][2 * Vectors] = {};
  for (int j = 0; j < values.n(); j += 2) {
    Pairs pair[2 * Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; v++) {
      const KV* one = values.value(j) + at + v * 2 * W;
      const KV* other = values.value(j + 1) + at + v * 2 * W;
      Pairs a = Whole ? Products::key(one) : Products::key(one, left);
      Pairs b = Whole ? Products::key(other) : Products::key(other, left);
      pair[2 * v] = low_pairs(a, b);
      pair[2 * v + 1] = high_pairs(a, b);
      if (next) {
        __builtin_prefetch(next->value(j) + at + v * 2 * W);
        __builtin_prefetch(next->value(j + 1) + at + v * 2 * W);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Rows; g++) {
      Pairs weight = all_pairs(read<int32_t>(weights + g * chunk + j));
#pragma GCC unroll 4
      for (int v = 0; v < 2 * Vectors; v++) {
        sum[g][v] = Products::add_pairs(sum[g][v], weight, pair[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < Rows; g++) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * Vectors; v++) {
      float* to = out + g * width + at + v * W;
      store(to, load(to) * fade[g] + Products::as_float(sum[g][v]) * scale[g]);
    }
  }
}

// Dimensions back in their order: in each 2 W, the low and the high pairs of every 8 lie W apart.
QUIRE_INLINE void in_order(float* x, int64_t n) {
  I first, second;
  for (int k = 0; k < W; k++) {
    first[k] = (k / 8) * 4 + k % 4 + (k % 8 / 4) * W;
    second[k] = first[k] + W / 2;
  }
  for (int64_t i = 0; i < n; i += 2 * W) {
    F low = load(x + i), high = load(x + i + W);
    store(x + i, shuffle(low, high, first));
    store(x + i + W, shuffle(low, high, second));
  }
}
#endif

template <class Products, int Rows, class KV>
static void gather_all(const HeadChunk<KV>& values, const HeadChunk<KV>* next, int64_t dim,
                       const typename Products::Weight* weights, const float* scale,
                       const float* fade, float* out, int64_t width) {
  int64_t at = 0;
#if defined(__AVX2__)
  if constexpr (Products::pairs) {
    constexpr int step = 2 * W;
    constexpr int most = W == 16 ? 2 : 1;  // as many sums as registers allow
    for (; at + most * step <= dim; at += most * step) {
      gather_pairs<Products, Rows, most, true>(values, next, at, 0, weights, scale, fade, out,
                                               width);
    }
    for (; at + step <= dim; at += step) {
      gather_pairs<Products, Rows, 1, true>(values, next, at, 0, weights, scale, fade, out, width);
    }
    if (at < dim) {
      gather_pairs<Products, Rows, 1, false>(values, next, at, dim - at, weights, scale, fade, out,
                                             width);
    }
  } else
#endif
  {
    constexpr int most = W == 16 ? 4 : 2;
    for (; at + most * W <= dim; at += most * W) {
      gather<Rows, most, true>(values, next, at, 0, weights, fade, out, width);
    }
    for (; at + W <= dim; at += W) {
      gather<Rows, 1, true>(values, next, at, 0, weights, fade, out, width);
    }
    if (at < dim) gather<Rows, 1, false>(values, next, at, dim - at, weights, fade, out, width);
  }
}

}  // namespace quire::QUIRE_ISA
