// Vectors of floats as wide as the instruction set that this file is compiled for.
//
// Everything here and in the files that include it lives in a namespace named after the
// instruction set, and uses nothing of the standard library that would leave a function shared
// between differently compiled files: the linker could keep the copy that this machine cannot run.
#pragma once

#include <cstdint>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "interface.hpp"

namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int registers = 32;
#else
constexpr int registers = 16;
#endif

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool has_bf16_products = true;
#else
constexpr bool has_bf16_products = false;
#endif

typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef uint32_t U __attribute__((vector_size(W * 4)));
typedef uint16_t U16 __attribute__((vector_size(W * 2)));
typedef int8_t I8 __attribute__((vector_size(W)));
typedef uint64_t U64 __attribute__((vector_size(W * 4)));
typedef float F4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));

QUIRE_INLINE F splat(float x) { return x - F{}; }
QUIRE_INLINE I splat(int32_t x) { return x - I{}; }
QUIRE_INLINE U splat(uint32_t x) { return x - U{}; }

template <class V>
QUIRE_INLINE V read(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
QUIRE_INLINE void write(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// a b + c, rounded once where the instruction set has that. Nothing else is contracted (see
// CMakeLists.txt): whether a sum is rounded once or twice must not depend on where it stands.
#if defined(__AVX512F__)
QUIRE_INLINE F fma(F a, F b, F c) {
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__FMA__)
QUIRE_INLINE F fma(F a, F b, F c) {
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#elif defined(__aarch64__)
QUIRE_INLINE F fma(F a, F b, F c) {
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
QUIRE_INLINE F fma(F a, F b, F c) { return a * b + c; }
#endif
QUIRE_INLINE F fma(F a, float b, F c) { return fma(a, splat(b), c); }
QUIRE_INLINE F fma(F a, F b, float c) { return fma(a, b, splat(c)); }

QUIRE_INLINE F select(I mask, F yes, F no) { return mask ? yes : no; }
// NaN in ``a`` is kept: a model's NaN must reach its own output, and no other.
QUIRE_INLINE U maximum(U a, U b) { return a > b ? a : b; }
QUIRE_INLINE F maximum(F a, F b) { return a < b ? b : a; }
QUIRE_INLINE F minimum(F a, F b) { return a > b ? b : a; }

// --- numbers in memory: float, bf16, f16, int8_t ---------------------------------------------

QUIRE_INLINE F load(const float* p) { return read<F>(p); }

// GCC widens and narrows whole vectors in several steps where there is one instruction.
#if defined(__AVX512F__)
QUIRE_INLINE U widen_16(const void* p) { return (U)_mm512_cvtepu16_epi32(read<__m256i>(p)); }
QUIRE_INLINE I widen_8(const void* p) { return (I)_mm512_cvtepi8_epi32(read<__m128i>(p)); }
QUIRE_INLINE void narrow_16(void* p, U v) { write(p, _mm512_cvtepi32_epi16((__m512i)v)); }
QUIRE_INLINE void narrow_8(void* p, I v) { write(p, _mm512_cvtepi32_epi8((__m512i)v)); }
#else
#if defined(__AVX2__)
QUIRE_INLINE U widen_16(const void* p) { return (U)_mm256_cvtepu16_epi32(read<__m128i>(p)); }
QUIRE_INLINE I widen_8(const void* p) { return (I)_mm256_cvtepi8_epi32(_mm_loadu_si64(p)); }
#else
QUIRE_INLINE U widen_16(const void* p) { return __builtin_convertvector(read<U16>(p), U); }
QUIRE_INLINE I widen_8(const void* p) { return __builtin_convertvector(read<I8>(p), I); }
#endif
QUIRE_INLINE void narrow_16(void* p, U v) { write(p, __builtin_convertvector(v, U16)); }
QUIRE_INLINE void narrow_8(void* p, I v) { write(p, __builtin_convertvector(v, I8)); }
#endif

QUIRE_INLINE F load(const bf16* p) { return (F)(widen_16(p) << 16); }
QUIRE_INLINE F load(const int8_t* p) { return __builtin_convertvector(widen_8(p), F); }

#if defined(__AVX512F__)
QUIRE_INLINE F load(const f16* p) { return (F)_mm512_cvtph_ps(read<__m256i>(p)); }
QUIRE_INLINE void store(f16* p, F v) { write(p, _mm512_cvtps_ph((__m512)v, 0)); }
#elif defined(__F16C__)
QUIRE_INLINE F load(const f16* p) { return (F)_mm256_cvtph_ps(read<__m128i>(p)); }
QUIRE_INLINE void store(f16* p, F v) { write(p, _mm256_cvtps_ph((__m256)v, 0)); }
#elif defined(__aarch64__)
QUIRE_INLINE F load(const f16* p) { return (F)vcvt_f32_f16(read<float16x4_t>(p)); }
QUIRE_INLINE void store(f16* p, F v) { write(p, vcvt_f16_f32((float32x4_t)v)); }
#else
QUIRE_INLINE F load(const f16* p) {
  // Shifted into place, a half's exponent is 112 short; a product restores it, subnormals too.
  U h = widen_16(p);
  U sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  U finite = (U)((F)rest * splat(0x1p112f));
  U special = rest | 0x7f800000u;  // infinities and NaN
  return (F)((((h & 0x7c00u) == 0x7c00u) ? special : finite) | sign);
}
QUIRE_INLINE void store(f16* p, F v) {
  U bits = (U)v, sign = bits & 0x80000000u, rest = bits ^ sign;
  // Normal halves: round to nearest even, then move the exponent. Below, the addition of 0.5
  // aligns the last place with a half's smallest step and rounds.
  U normal = (rest + 0xfffu + ((rest >> 13) & 1u)) - 0x38000000u;
  U small = (U)((F)rest + splat(0.5f)) - 0x3f000000u;
  U half = (rest < 0x38800000u) ? small : (normal >> 13);
  half = (rest >= 0x477ff000u) ? splat(0x7c00u) : half;
  half = (rest > 0x7f800000u) ? splat(0x7e00u) : half;
  narrow_16(p, half | (sign >> 16));
}
#endif

QUIRE_INLINE void store(float* p, F v) { write(p, v); }

QUIRE_INLINE U bf16_bits(F v) {  // round to nearest even; in the upper halves
  U bits = (U)v;
  U rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return ((v == v) ? rounded : splat(0x7fc00000u)) & 0xffff0000u;
}
#if defined(__AVX512BF16__)
QUIRE_INLINE void store(bf16* p, F v) { write(p, (__m256i)_mm512_cvtneps_pbh((__m512)v)); }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
QUIRE_INLINE void store(bf16* p, F v) { write(p, vcvt_bf16_f32((float32x4_t)v)); }
#else
QUIRE_INLINE void store(bf16* p, F v) { narrow_16(p, bf16_bits(v) >> 16); }
#endif
QUIRE_INLINE void store(int8_t* p, F v) {  // of whole numbers from -127 to 127
  narrow_8(p, __builtin_convertvector(v, I));
}

// The first n < W numbers, and zeros.
template <class T>
QUIRE_INLINE F load_some(const T* p, int n) {
  T buffer[W];
  __builtin_memset(buffer, 0, sizeof buffer);
  __builtin_memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}
template <class T>
QUIRE_INLINE void store_some(T* p, F v, int n) {
  T buffer[W];
  store(buffer, v);
  __builtin_memcpy(p, buffer, n * sizeof(T));
}

// n numbers, at most W.
template <class T>
QUIRE_INLINE F load_n(const T* p, int64_t n) { return n >= W ? load(p) : load_some(p, int(n)); }
template <class T>
QUIRE_INLINE void store_n(T* p, F v, int64_t n) { n >= W ? store(p, v) : store_some(p, v, int(n)); }

// Apply ``each(at, count)`` to whole vectors, then to what is left.
template <class Each>
QUIRE_INLINE void for_vectors(int64_t n, const Each& each) {
  int64_t i = 0;
  for (; i + W <= n; i += W) each(i, W);
  if (i < n) each(i, n - i);
}

// --- sums and maxima over lanes --------------------------------------------------------------

// Halves are added to each other, down to one lane.
QUIRE_INLINE float lanes_sum(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  for (int half = W / 2; half; half /= 2) {
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  }
  return v[0];
#endif
}
QUIRE_INLINE float lanes_max(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__aarch64__)
  return vmaxvq_f32((float32x4_t)v);
#else
  float most = v[0];
  for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// Wraps around.
QUIRE_INLINE uint32_t lanes_sum(U v) {
#if defined(__AVX512F__)  // the intrinsic adds signed numbers, which must not overflow
  U lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
#pragma GCC unroll 4
  for (uint32_t apart = W / 2; apart; apart /= 2)
    v += (U)_mm512_permutexvar_epi32((__m512i)(lane ^ apart), (__m512i)v);
  return v[0];
#else
  uint32_t sum = 0;
  for (int i = 0; i < W; i++) sum += v[i];
  return sum;
#endif
}
QUIRE_INLINE uint32_t lanes_max(U v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32((__m512i)v);
#else
  uint32_t most = v[0];
  for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// The same of up to four vectors at once; 0 of those that are not there.
#if defined(__AVX512F__)
template <class Both>
QUIRE_INLINE U4 fold_lanes(const U (&v)[4], const Both& both) {
  auto of_two = [&](U a, U b) __attribute__((always_inline)) {
    return both((U)_mm512_unpacklo_epi32((__m512i)a, (__m512i)b),
                (U)_mm512_unpackhi_epi32((__m512i)a, (__m512i)b));
  };
  __m512i low = (__m512i)of_two(v[0], v[1]), high = (__m512i)of_two(v[2], v[3]);
  U all = both((U)_mm512_unpacklo_epi64(low, high), (U)_mm512_unpackhi_epi64(low, high));
  all = both(all, (U)_mm512_shuffle_i64x2((__m512i)all, (__m512i)all, 0x4e));
  all = both(all, (U)_mm512_shuffle_i64x2((__m512i)all, (__m512i)all, 0xb1));
  return (U4)_mm512_castsi512_si128((__m512i)all);
}
QUIRE_INLINE U4 lanes_sum(const U (&v)[4]) {
  return fold_lanes(v, [](U a, U b) __attribute__((always_inline)) { return a + b; });
}
QUIRE_INLINE U4 lanes_max(const U (&v)[4]) {
  return fold_lanes(v, [](U a, U b) __attribute__((always_inline)) { return maximum(a, b); });
}
#endif
template <int n>
QUIRE_INLINE U4 lanes_sum(const U (&v)[n]) {
  U4 sums{};
  for (int i = 0; i < n; i++) sums[i] = lanes_sum(v[i]);
  return sums;
}
template <int n>
QUIRE_INLINE U4 lanes_max(const U (&v)[n]) {
  U4 most{};
  for (int i = 0; i < n; i++) most[i] = lanes_max(v[i]);
  return most;
}

// --- lanes become vectors ---------------------------------------------------------------------

// Lane j of vector i and lane i of vector j change places; or so many lanes, as one.
template <int Lanes = 1>
QUIRE_INLINE void transpose(F (&m)[W / Lanes]) {
#if defined(__AVX512F__)
  U lane{};
  for (int j = 0; j < W; j++) lane[j] = j;
#pragma GCC unroll 4
  for (int apart = 1; apart < W / Lanes; apart *= 2) {
    I second = (lane & uint32_t(apart * Lanes)) != 0u;
    U upper = second ? lane + uint32_t(W - apart * Lanes) : lane;
    U lower = second ? lane + uint32_t(W) : lane + uint32_t(apart * Lanes);
#pragma GCC unroll 16
    for (int i = 0; i < W / Lanes; i++) {
      if (i & apart) continue;
      __m512 a = (__m512)m[i], b = (__m512)m[i + apart];
      m[i] = (F)_mm512_permutex2var_ps(a, (__m512i)upper, b);
      m[i + apart] = (F)_mm512_permutex2var_ps(a, (__m512i)lower, b);
    }
  }
#else
  for (int i = 0; i < W; i++) {
    for (int j = 0; j < i / Lanes; j++) {
      int from = j * Lanes + i % Lanes;
      float upper = m[j][i];
      m[j][i] = m[i / Lanes][from];
      m[i / Lanes][from] = upper;
    }
  }
#endif
}

// --- functions -------------------------------------------------------------------------------

constexpr float log2e = 1.44269504088896340736f;

// 2^f for |f| <= 1/2: Taylor in f * ln 2; the first term left out is below 2e-8.
QUIRE_INLINE F exp2_fraction(F f) {
  F p = splat(1.52527338e-5f);
  p = fma(p, f, 1.54035304e-4f);
  p = fma(p, f, 1.33335581e-3f);
  p = fma(p, f, 9.61812911e-3f);
  p = fma(p, f, 5.55041087e-2f);
  p = fma(p, f, 2.40226507e-1f);
  p = fma(p, f, 6.93147181e-1f);
  return fma(p, f, 1.0f);
}

// The same within 3e-6 of itself, for what is rounded to 16 bits: the polynomial of degree 4 whose
// largest relative error is least.
QUIRE_INLINE F exp2_fraction_to_16_bits(F f) {
  F p = splat(9.570101276e-3f);
  p = fma(p, f, 5.591785908e-2f);
  p = fma(p, f, 2.402474433e-1f);
  p = fma(p, f, 6.931217909e-1f);
  return fma(p, f, 9.999992847e-1f);
}

// 2^x within 2 units in the last place, or as ``Fraction`` has it; 0 far below -126, NaN for NaN.
template <F (*Fraction)(F) = exp2_fraction>
QUIRE_INLINE F exp2(F x) {
#if defined(__AVX512DQ__)
  F f = (F)_mm512_reduce_ps((__m512)x, 0);  // x less x rounded, 0 for infinities
  return (F)_mm512_scalef_ps((__m512)Fraction(f), (__m512)(x - f));
#else
  x = x < -127.0f ? splat(-127.0f) : x;
  x = x > 127.99999f ? splat(127.99999f) : x;
  F shifted = x + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are x rounded
  F power = (F)(((I)shifted - 0x4b400000 + 127) << 23);
  return Fraction(x - (shifted - 12582912.0f)) * power;
#endif
}

QUIRE_INLINE F exp(F x) { return exp2(x * log2e); }

QUIRE_INLINE F sigmoid(F x) { return 1.0f / (1.0f + exp(-x)); }
QUIRE_INLINE F silu(F x) { return x / (1.0f + exp(-x)); }

// log(1 + e^x) within 3e-7 of itself: log(1 + y) is 2 artanh(y / (2 + y)), whose argument is at
// most 1/3; the first term left out is below 2e-9.
QUIRE_INLINE F softplus(F x) {
  F y = exp(-maximum(x, -x)), z = y / (2.0f + y), squared = z * z;
  F p = splat(1.0f / 15);
  for (int n = 13; n > 0; n -= 2) p = fma(p, squared, 1.0f / n);
  return fma(2.0f * z, p, maximum(x, F{}));
}

QUIRE_INLINE F tanh(F x) {
  F e = exp(minimum(x * 2.0f, splat(40.0f)));
  return 1.0f - 2.0f / (e + 1.0f);
}

// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: within 1.5e-7.
QUIRE_INLINE F erf(F x) {
  F a = maximum(x, -x);
  F t = 1.0f / (1.0f + 0.3275911f * a);
  F p = splat(1.061405429f);
  p = fma(p, t, -1.453152027f);
  p = fma(p, t, 1.421413741f);
  p = fma(p, t, -0.284496736f);
  p = fma(p, t, 0.254829592f);
  F y = 1.0f - p * t * exp(-a * a);
  return x < 0.0f ? -y : y;
}

}  // namespace quire::QUIRE_ISA
