// One head of a query, key or value: read, normalised, turned, stored.
#pragma once

#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

QUIRE_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// n numbers as floats; ``out`` is filled with zeros to a whole vector.
template <class T>
QUIRE_INLINE void widen(const T* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i));
  if (i < n) store(out + i, load_some(x + i, n - i));
}

// n floats as numbers of type T; reads ``x`` to a whole vector.
template <class T>
QUIRE_INLINE void narrow(const float* x, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i));
  if (i < n) store_some(out + i, load(x + i), n - i);
}

// The same for a type known at run time only. ``at`` counts elements.
static void widen(DType dtype, const void* x, int64_t at, float* out, int64_t n) {
  if (dtype == DType::float32) return widen((const float*)x + at, out, n);
  if (dtype == DType::bfloat16) return widen((const bf16*)x + at, out, n);
  widen((const f16*)x + at, out, n);
}
static void narrow(DType dtype, const float* x, void* out, int64_t at, int64_t n) {
  if (dtype == DType::float32) return narrow(x, (float*)out + at, n);
  if (dtype == DType::bfloat16) return narrow(x, (bf16*)out + at, n);
  narrow(x, (f16*)out + at, n);
}

// A norm's parameters as floats, in memory of the caller: [width] each, whole vectors.
struct WideNorm {
  const float* weight;  // null: none
  const float* bias;
  float eps;
  bool centred;
  bool used;
};

static WideNorm widen(const Norm& norm, int64_t width, float* weight, float* bias) {
  if (norm.weight) widen(norm.dtype, norm.weight, 0, weight, width);
  if (norm.bias) widen(norm.dtype, norm.bias, 0, bias, width);
  return {norm.weight ? weight : nullptr, norm.bias ? bias : nullptr, norm.eps, norm.centred,
          norm.used};
}

// x [n], whole vectors with zeros beyond n, normalised in place.
QUIRE_INLINE void normalise(const WideNorm& norm, float* x, int64_t n) {
  float mean = 0;
  if (norm.centred) {
    F sum{};
    for (int64_t i = 0; i < n; i += W) sum += load(x + i);
    mean = lanes_sum(sum) / n;
  }
  F squares{};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    F v = load(x + i) - mean;
    squares = fma(v, v, squares);
  }
  float variance = lanes_sum(squares);
  for (; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
  float factor = 1.0f / __builtin_sqrtf(variance / n + norm.eps);
  for (int64_t i = 0; i < n; i += W) {
    F v = (load(x + i) - mean) * factor;
    if (norm.weight) v *= load(norm.weight + i);
    if (norm.bias) v += load(norm.bias + i);
    store(x + i, v);
  }
  for (int64_t i = n; i < round_up(n, W); i++) x[i] = 0;
}

// Turn the pairs (i, i + half) of x in place by the angles whose cosines and sines are given.
QUIRE_INLINE void rotate(float* x, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + W <= half; i += W) {
    F a = load(x + i), b = load(x + i + half), c = load(cos + i), s = load(sin + i);
    store(x + i, fma(a, c, -(b * s)));
    store(x + i + half, fma(b, c, a * s));
  }
  for (; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// Each lane of another.
QUIRE_INLINE F permuted(F v, U from) {
#if defined(__AVX512F__)
  return (F)_mm512_permutexvar_ps((__m512i)from, (__m512)v);
#elif defined(__AVX2__)
  return (F)_mm256_permutevar8x32_ps((__m256)v, (__m256i)from);
#else
  F out;
  for (int j = 0; j < W; j++) out[j] = v[from[j]];
  return out;
#endif
}

// Lanes change places with those ``apart`` from them. Within four, twice as many at a time.
QUIRE_INLINE F neighbours(F v, int apart) {
#if defined(__AVX512F__)
  switch (apart) {
    case 1: return (F)_mm512_permute_ps((__m512)v, 0xb1);
    case 2: return (F)_mm512_permute_ps((__m512)v, 0x4e);
    case 4: return (F)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xb1);
    default: return (F)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4e);
  }
#else
  U lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
  return permuted(v, lane ^ uint32_t(apart));
#endif
}

// Each lane's neighbour, ``apart`` lanes from it, plus the lane itself, or less it in upper lanes.
QUIRE_INLINE F butterfly(F v, int apart) {
  U lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
  F sign = (lane & uint32_t(apart)) != 0u ? splat(-1.0f) : splat(1.0f);
  return fma(v, sign, neighbours(v, apart));
}

// All lanes of a run times Hadamard's matrix, and by the root of the run.
template <int run>
QUIRE_INLINE F spread_lanes(F v) {
#pragma GCC unroll 4
  for (int apart = 1; apart < run && apart < W; apart *= 2) v = butterfly(v, apart);
  return v;
}

// Runs of N vectors each, as ``spread`` does: in memory a step would wait for what the one before
// stores.
template <int N>
QUIRE_INLINE void spread_vectors(float* x, int64_t n, float length) {
  for (; n > 0; n -= N * W, x += N * W) {
    F v[N];
#pragma GCC unroll 8
    for (int k = 0; k < N; k++) v[k] = spread_lanes<W>(load(x + k * W));
#pragma GCC unroll 4
    for (int apart = 1; apart < N; apart *= 2) {
#pragma GCC unroll 8
      for (int k = 0; k < N; k++) {
        if (k & apart) continue;
        F a = v[k], b = v[k + apart];
        v[k] = a + b, v[k + apart] = a - b;
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < N; k++) store(x + k * W, v[k] * length);
  }
}

// Multiply x by Hadamard's matrix, which is its own inverse: what one number stands out by is
// spread over all of them, so that rounding to a common scale loses less. Each ``run``, a power of
// two that divides n, by itself; reads and writes whole vectors.
static void spread(float* x, int64_t n, int64_t run) {
  const float length = 1.0f / __builtin_sqrtf(run);
  if (run == 8 * W) return spread_vectors<8>(x, n, length);
  if (run == 4 * W) return spread_vectors<4>(x, n, length);
  for (int64_t apart = 1; apart < run && apart < W; apart *= 2) {
    for (int64_t i = 0; i < n; i += W) store(x + i, butterfly(load(x + i), apart));
  }
  for (int64_t apart = W; apart < run; apart *= 2) {
    for (int64_t i = 0; i < n; i += W) {
      if (i & apart) continue;
      F a = load(x + i), b = load(x + i + apart);
      store(x + i, a + b);
      store(x + i + apart, a - b);
    }
  }
  for (int64_t i = 0; i < n; i += W) store(x + i, load(x + i) * length);
}

// By the weights of their norms, which numbers of queries and keys are large: what both are to be
// multiplied by, so that they are large alike, and products stay. For those that are turned
// together, (i, i + half), the same.
static void balance(const float* query, const float* key, int64_t n, int64_t half, float* of_query,
                    float* of_key) {
  auto size = [&](const float* weight, int64_t i) {  // squared
    if (i >= 2 * half) return weight[i] * weight[i];
    i %= half;
    return 0.5f * (weight[i] * weight[i] + weight[i + half] * weight[i + half]);
  };
  float largest[2] = {};
  for (int64_t i = 0; i < n; i++) {
    float q = size(query, i), k = size(key, i);
    largest[0] = q > largest[0] ? q : largest[0];
    largest[1] = k > largest[1] ? k : largest[1];
  }
  for (int64_t i = 0; i < n; i++) {  // of less than a hundredth of the largest nobody needs to know
    float q = size(query, i) + 1e-4f * largest[0], k = size(key, i) + 1e-4f * largest[1];
    float factor = __builtin_sqrtf(__builtin_sqrtf(k / q));
    bool known = factor > 0 && factor < 1e9f;
    of_query[i] = known ? factor : 1.0f;
    of_key[i] = known ? 1.0f / factor : 1.0f;
  }
}

// Whether the numbers of a pool are of keys and values that were spread.
QUIRE_INLINE bool is_spread(DType kv_dtype) {
  return kv_dtype == DType::int8 || kv_dtype == DType::int4;
}

// What codes of four bits stand for: their lower three bits say which of these, the fourth bit that
// it is negative. Of 16 levels they lose least of normally distributed numbers (Max, "Quantizing
// for minimum distortion", 1960), with 46 for the standard deviation.
constexpr int8_t levels[8] = {6, 18, 30, 43, 58, 74, 95, 126};
constexpr float deviation = 46.0f;

// The levels of codes in the low bits of lanes.
QUIRE_INLINE F level(U codes) {
#if defined(__AVX512F__)
  F table;
  for (int j = 0; j < W; j++) table[j] = j < 8 ? levels[j] : -levels[j - 8];
  return (F)_mm512_permutexvar_ps((__m512i)codes, (__m512)table);
#else
  F found;
#if defined(__AVX2__)
  F table;
  for (int j = 0; j < W; j++) table[j] = levels[j];
  found = (F)_mm256_permutevar8x32_ps((__m256)table, (__m256i)codes);
#else
  for (int j = 0; j < W; j++) found[j] = levels[codes[j] & 7u];
#endif
  return (F)((U)found ^ (codes & 8u) << 28);
#endif
}

// The same of five bits, the fifth of which says that it is one of the upper eight, for keys that
// are centred: those of their numbers that count most, as many as ``most_fine``.
constexpr int8_t fine_levels[16] = {3, 8, 13, 18, 23, 28, 34, 40, 46, 53, 60, 68, 77, 88, 102, 124};
constexpr float fine_deviation = 38.0f;
constexpr int most_fine = 32;

QUIRE_INLINE F fine_level(U codes) {
#if defined(__AVX512F__)
  F low, high;
  for (int j = 0; j < W; j++) {
    low[j] = j < 8 ? fine_levels[j] : -fine_levels[j - 8];
    high[j] = j < 8 ? fine_levels[j + 8] : -fine_levels[j];
  }
  return (F)_mm512_permutex2var_ps((__m512)low, (__m512i)codes, (__m512)high);
#else
  F found;
  U place = (codes & 7u) | (codes >> 1 & 8u);
#if defined(__AVX2__)
  F low, high;
  for (int j = 0; j < W; j++) low[j] = fine_levels[j], high[j] = fine_levels[j + 8];
  F lower = (F)_mm256_permutevar8x32_ps((__m256)low, (__m256i)place);
  F upper = (F)_mm256_permutevar8x32_ps((__m256)high, (__m256i)place);
  found = select((I)(codes & 16u) != 0, upper, lower);
#else
  for (int j = 0; j < W; j++) found[j] = fine_levels[place[j]];
#endif
  return (F)((U)found ^ (codes & 8u) << 28);
#endif
}

// A row of the cache; the scale by which its whole numbers are to be multiplied. Reads ``x`` to a
// whole vector.
template <class T>
QUIRE_INLINE float store_row(const float* x, T* out, int64_t n) {
  narrow(x, out, n);
  return 1.0f;
}
QUIRE_INLINE float store_row(const float* x, int8_t* out, int64_t n) {
  U high{};  // without their signs, floats are in the order of their bits; NaN comes last
  for (int64_t i = 0; i < n; i += W) high = maximum(high, (U)load_n(x + i, n - i) & 0x7fffffffu);
  const float most = __builtin_bit_cast(float, lanes_max(high));
  float scale = most / 127.0f, step = most > 0 ? scale : 1.0f;
  const F half = splat(12582912.0f);  // 1.5 * 2^23 rounds to nearest even
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i) / step + half - half);
  if (i < n) store_some(out + i, load(x + i) / step + half - half, n - i);
  return scale;
}

// Codes of the levels that are nearest to x / step.
QUIRE_INLINE U nearest(F x, F inverse) {
  F size = maximum(x, -x) * inverse;
  U code = ((U)x >> 31) << 3;
  for (int k = 0; k < 7; k++)
    code -= (U)(size > 0.5f * (levels[k] + levels[k + 1]));
  return code;
}

QUIRE_INLINE U nearest_fine(F x, F inverse) {
  F size = maximum(x, -x) * inverse;
  U place{};
  for (int k = 0; k < 15; k++)
    place -= (U)(size > 0.5f * (fine_levels[k] + fine_levels[k + 1]));
  return (place & 7u) | ((U)x >> 31) << 3 | (place & 8u) << 1;
}

// A scale to 16 bits; the others are room for something else.
QUIRE_INLINE float coarse(float scale) {
  if (scale != scale) return scale;
  uint32_t word = __builtin_bit_cast(uint32_t, scale) + 0x8000u & 0xffff0000u;
  return __builtin_bit_cast(float, word);
}

// How numbers are rounded to levels: whole numbers of ``step`` find their codes, and levels times
// ``scale`` are what codes stand for.
struct Steps {
  float step, scale;
};

// Of some steps about the one that the row's deviation suggests, the one that loses least; the
// scale is then the best there is for its codes.
static Steps best_steps(const float* x, int64_t n, int64_t fine = 0) {
  I lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
  auto own = [&](F v, int64_t i) { return select(lane < int32_t(n - i), v, F{}); };
  F squares{};
  for (int64_t i = 0; i < n; i += W) {
    F v = own(load(x + i), i);
    squares = fma(v, v, squares);
  }
  constexpr float less = 1.0f - fine_deviation * fine_deviation / (deviation * deviation);
  float usual = __builtin_sqrtf(lanes_sum(squares) / (n - fine * less)) / deviation;
  float best = -1.0f;
  Steps found{usual, usual};
  constexpr float factors[] = {1.0f, 0.85f, 0.92f, 1.08f, 1.16f};
  for (float factor : factors) {
    F inverse = splat(usual > 0 ? 1.0f / (usual * factor) : 0.0f);
    F product{}, square{};  // of numbers and their levels, and of levels
    for (int64_t i = 0; i < n; i += W) {
      F v = own(load(x + i), i), level_of = level(nearest(v, inverse));
      if (i < fine)
        level_of = select(lane < int32_t(fine - i), fine_level(nearest_fine(v, inverse)), level_of);
      level_of = own(level_of, i);
      product = fma(v, level_of, product);
      square = fma(level_of, level_of, square);
    }
    float along = lanes_sum(product), length = lanes_sum(square);
    float kept = along * along / length;  // of the row's squares
    if (!(kept > best)) continue;
    best = kept;
    found = {usual * factor, along / length};
  }
  return found;
}
static float store_row(const float* x, int4* out, int64_t n) {
  Steps found = best_steps(x, n);
  F inverse = splat(found.step > 0 ? 1.0f / found.step : 0.0f);
  for (int64_t i = 0; i < n; i += W) {
    int8_t codes[W];
    narrow_8(codes, (I)nearest(load(x + i), inverse));
    __builtin_memcpy(out + i, codes, n - i < W ? n - i : W);
  }
  return found.scale;
}

// Rows x [n, W], a lane each, become codes: from the last number on, where what is lost of one is
// made up for by those before it in its run. ``shares`` [n, whole 16]: how much of it each is to
// have more. The first so many numbers have codes of five bits.
static void round_sharing(float* x, int64_t n, int64_t run, const float* shares, int64_t fine,
                          F scales) {
  const F inverse = select(scales > F{}, 1.0f / scales, F{});
  for (int64_t i = n - 1; i >= 0; i--) {
    F own = load(x + i * W);
    U code = i < fine ? nearest_fine(own, inverse) : nearest(own, inverse);
    F lost = fma(i < fine ? -fine_level(code) : -level(code), scales, own);
    store(x + i * W, (F)code);
    const float* more = shares + i * round_up(n, 16);
    for (int64_t j = i / run * run; j < i; j++)
      store(x + j * W, fma(lost, splat(more[j]), load(x + j * W)));
  }
}

// Of a number in a pool, and bytes of so many.
template <class KV>
constexpr int64_t bits = 8 * sizeof(KV);
template <>
constexpr int64_t bits<int4> = 4;
template <class KV>
constexpr int64_t bytes_of(int64_t n) { return n * bits<KV> / 8; }

// What of a value lies in one piece beside its neighbour's.
template <class KV>
struct CellOf {
  typedef KV Type;
};
template <>
struct CellOf<int4> {
  typedef uint16_t Type;
};
template <class KV>
using Cell = typename CellOf<KV>::Type;

// Half of a word: the codes at 0, apart, 2 apart and 3 apart.
QUIRE_INLINE uint16_t half_word(const int4* codes, int64_t apart) {
  uint16_t half = 0;
  for (int k = 0; k < 4; k++) half |= codes[k * apart].code << 4 * k;
  return half;
}

}  // namespace quire::QUIRE_ISA
