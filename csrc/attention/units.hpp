// What attention multiplies at a time, and how a pool's numbers are brought into that form.
//
// The order in which products are added is part of each kind: a query meets a key unit by unit, and
// weights meet values column by column, whether the lanes of vectors hold keys, dimensions or
// query rows (few_rows.hpp, many_rows.hpp). So a row's bits do not depend on its company.
#pragma once

#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {

// One float, for every type.
struct FloatUnit {
  typedef float Unit;
  typedef F Sum;
  static constexpr int per_unit = 1;
  static constexpr bool scaled = false;

  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) { return fma(b, a, sum); }
  QUIRE_INLINE F as_float(Sum sum) { return sum; }
  QUIRE_INLINE F weight(F score) { return exp2(score); }
  QUIRE_INLINE float round(const float* x, Unit* out, int64_t n) {
    narrow(x, out, n);
    return 1.0f;
  }
  QUIRE_INLINE float round_weights(const float* x, Unit* out, int64_t n) {
    return round(x, out, n);
  }

  // Words of four bytes, of as many keys as there are lanes, as units.
  QUIRE_INLINE void split(U words, const float*, F (&out)[1]) { out[0] = (F)words; }
  QUIRE_INLINE void split(U words, const bf16*, F (&out)[2]) {
    out[0] = (F)(words << 16);
    out[1] = (F)(words & 0xffff0000u);
  }
  QUIRE_INLINE void split(U words, const f16*, F (&out)[2]) {
    f16 halves[2][W];
    narrow_16(halves[0], words & 0xffffu);
    narrow_16(halves[1], words >> 16);
    for (int i = 0; i < 2; i++) out[i] = load(halves[i]);
  }
  QUIRE_INLINE void split(U words, const int8_t*, F (&out)[4]) {
    for (int i = 0; i < 4; i++)
      out[i] = __builtin_convertvector((I)(words << (24 - 8 * i)) >> 24, F);
  }
  QUIRE_INLINE void split(U words, const int4*, F (&out)[8]) {
    for (int k = 0; k < 4; k++) {
      out[2 * k] = level(words >> 4 * k & 15u);
      out[2 * k + 1] = level(words >> (16 + 4 * k) & 15u);
    }
  }
  // The same of codes of five bits, where ``fifth`` has the fifth in place of each first.
  QUIRE_INLINE void split_fine(U words, U fifth, F (&out)[8]) {
    for (int k = 0; k < 8; k++) {
      int at = k / 2 * 4 + k % 2 * 16;
      out[k] = fine_level((words >> at & 15u) | (fifth >> at & 1u) << 4);
    }
  }
  // W dimensions of two neighbouring columns, as they lie in the pool, as units of each.
  template <class KV>
  QUIRE_INLINE void columns(const KV* x, F (&out)[2]) { split(read<U>(x), x, out); }
  QUIRE_INLINE void columns(const int8_t* x, F (&out)[2]) {
    int8_t one[W], other[W];
    for (int i = 0; i < W; i++) one[i] = x[2 * i], other[i] = x[2 * i + 1];
    out[0] = load(one);
    out[1] = load(other);
  }
};

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// A pair of bf16, added up in float.
struct PairUnit {
  typedef uint32_t Unit;
  typedef F Sum;
  static constexpr int per_unit = 2;
  static constexpr bool scaled = false;

#if defined(__AVX512BF16__)
  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
  }
#else
  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) {
    return (F)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)splat(a), (bfloat16x8_t)b);
  }
#endif
  QUIRE_INLINE F as_float(Sum sum) { return sum; }
  QUIRE_INLINE F weight(F score) { return exp2<exp2_fraction_to_16_bits>(score); }
  QUIRE_INLINE float round(const float* x, Unit* out, int64_t n) {
    narrow(x, (bf16*)out, n);
    return 1.0f;
  }
  // To nearest, halves upwards. A row with a weight that is not a number has a sum that is none.
  QUIRE_INLINE U rounded(F weight) { return (U)weight + 0x8000u; }
  QUIRE_INLINE float round_weights(const float* x, Unit* out, int64_t n) {
    for (int64_t i = 0; i < n; i += W) narrow_16((bf16*)out + i, rounded(load(x + i)) >> 16);
    return 1.0f;
  }

  QUIRE_INLINE void split(U words, const bf16*, F (&out)[1]) { out[0] = (F)words; }
  QUIRE_INLINE void columns(const bf16* x, F (&out)[1]) { out[0] = read<F>(x); }
};
#endif

#if defined(__AVX2__)
// A pair of whole numbers of 16 bits, exactly added up: int8 and int4, with queries and a chunk's
// weights rounded to 16 bits of their largest, which is finer than bf16 and f16 are; of queries that
// are so wide that sums could overflow, to fewer.
struct WholeUnit {
  typedef uint32_t Unit;
  typedef I Sum;
  static constexpr int per_unit = 2;
  static constexpr bool scaled = true;  // what ``round`` gives is to be multiplied by its result

#if defined(__AVX512VNNI__)
  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) {
    return (I)_mm512_dpwssd_epi32((__m512i)sum, _mm512_set1_epi32(a), (__m512i)b);
  }
#elif defined(__AVX512F__)
  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) {
    return sum + (I)_mm512_madd_epi16(_mm512_set1_epi32(a), (__m512i)b);
  }
#else
  QUIRE_INLINE Sum add(Sum sum, Unit a, F b) {
    return sum + (I)_mm256_madd_epi16(_mm256_set1_epi32(a), (__m256i)b);
  }
#endif
  QUIRE_INLINE F as_float(Sum sum) { return __builtin_convertvector(sum, F); }
  QUIRE_INLINE F weight(F score) { return exp2<exp2_fraction_to_16_bits>(score); }
  static float round(const float* x, Unit* out, int64_t n) {
    F high{}, strange{};  // not a number where x is none, otherwise 0
    for (int64_t i = 0; i < n; i += W) {
      F v = load(x + i);
      high = maximum(maximum(v, -v), high);
      strange += v - v;
    }
    const float to = n > 512 ? float(int64_t(2147483647 / 127 / n)) : most_whole;
    float most = lanes_max(high), inverse = most > 0 ? to / most : 0.0f;
    for (int64_t i = 0; i < n; i += W)
      narrow_16((int16_t*)out + i, whole(load(x + i), splat(inverse)));
    return most / to + lanes_sum(strange);
  }
  QUIRE_INLINE float round_weights(const float* x, Unit* out, int64_t n) {
    return round(x, out, n);
  }

  static constexpr float most_whole = 32767.0f;
  QUIRE_INLINE U whole(F x, F inverse) {
    return (U)__builtin_convertvector(x * inverse + 12582912.0f - 12582912.0f, I);
  }

  // Each byte in the upper half of its 16 bits, and then shifted down with its sign.
  QUIRE_INLINE void split(U words, const int8_t*, F (&out)[2]) {
    const __m128i first = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m128i second = _mm_add_epi8(first, _mm_set1_epi16(0x0200));
#if defined(__AVX512F__)
    const __m512i bytes[] = {_mm512_broadcast_i32x4(first), _mm512_broadcast_i32x4(second)};
    for (int i = 0; i < 2; i++)
      out[i] = (F)_mm512_srai_epi16(_mm512_shuffle_epi8((__m512i)words, bytes[i]), 8);
#else
    const __m256i bytes[] = {_mm256_broadcastsi128_si256(first),
                             _mm256_broadcastsi128_si256(second)};
    for (int i = 0; i < 2; i++)
      out[i] = (F)_mm256_srai_epi16(_mm256_shuffle_epi8((__m256i)words, bytes[i]), 8);
#endif
  }
  // Of each half of a word one code after the other.
  QUIRE_INLINE void split(U words, const int4*, F (&out)[4]) {
#if defined(__AVX512F__)
    // The fifth bit of a lane's index is of the next code: the table has all levels twice.
    const __m512i table = _mm512_broadcast_i64x4(_mm256_cvtepi8_epi16(all_levels()));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
      out[k] = (F)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)words, 4 * k), table);
#else
    const __m256i table = _mm256_broadcastsi128_si256(all_levels());
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {  // to the upper byte, whose sign is shifted down
      U codes = (words >> 4 * k & 0x000f000fu) << 8 | 0x00800080u;
      out[k] = (F)_mm256_srai_epi16(_mm256_shuffle_epi8(table, (__m256i)codes), 8);
    }
#endif
  }
  // The same of codes of five bits, where ``fifth`` has the fifth in place of each first.
  QUIRE_INLINE void split_fine(U words, U fifth, F (&out)[4]) {
#if defined(__AVX512F__)
    const __m256i low = _mm256_cvtepi8_epi16(all_levels(fine_levels));
    const __m256i high = _mm256_cvtepi8_epi16(all_levels(fine_levels + 8));
    const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    const __m512i is_fifth = _mm512_set1_epi8(16);
    // The first and the third code with a fifth bit behind each, and the second and the fourth.
    const __m512i codes[] = {
        _mm512_ternarylogic_epi32(is_fifth, (__m512i)(fifth << 4), (__m512i)words, 0xca),
        _mm512_ternarylogic_epi32(is_fifth, (__m512i)fifth, (__m512i)(words >> 4), 0xca)};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      __m512i code = _mm512_srli_epi16(codes[k % 2], k / 2 * 8);
      out[k] = (F)_mm512_permutexvar_epi16(code, table);
    }
#else
    const __m256i low = _mm256_broadcastsi128_si256(all_levels(fine_levels));
    const __m256i high = _mm256_broadcastsi128_si256(all_levels(fine_levels + 8));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      U codes = (words >> 4 * k & 0x000f000fu) << 8 | 0x00800080u;
      __m256i lower = _mm256_shuffle_epi8(low, (__m256i)codes);
      __m256i upper = _mm256_shuffle_epi8(high, (__m256i)codes);
      __m256i bit = _mm256_slli_epi16((__m256i)fifth, 15 - 4 * k);
      out[k] = (F)_mm256_srai_epi16(_mm256_blendv_epi8(lower, upper, bit), 8);
    }
#endif
  }
  QUIRE_INLINE __m128i all_levels(const int8_t* of = levels) {
    __m128i upper = _mm_loadu_si64(of);
    return _mm_unpacklo_epi64(upper, _mm_sub_epi8(_mm_setzero_si128(), upper));
  }

#if defined(__AVX512F__)
  QUIRE_INLINE void columns(const int8_t* x, F (&out)[1]) {
    out[0] = (F)_mm512_cvtepi8_epi16(read<__m256i>(x));
  }
#else
  QUIRE_INLINE void columns(const int8_t* x, F (&out)[1]) {
    out[0] = (F)_mm256_cvtepi8_epi16(read<__m128i>(x));
  }
#endif
};
#endif

struct Nothing {
  template <class... T>
  Nothing(const T&...) {}
  template <class... T>
  __attribute__((always_inline)) void operator()(T...) const {}
};

// What is read once: compilers would read it again for each of its uses.
QUIRE_INLINE F once(F v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#endif
  return v;
}

// sum[i][v] += products of the units of a[i] and those in the lanes at b[v]; ``ahead(u)`` is called
// meanwhile.
template <class Units, int Rows, int Vectors, class Ahead = Nothing>
QUIRE_INLINE void add_products(typename Units::Sum (&sum)[Rows][Vectors],
                               const typename Units::Unit* a, int64_t a_row, int64_t a_unit,
                               const typename Units::Unit* const (&b)[Vectors], int64_t b_unit,
                               int64_t units, const Ahead& ahead = {}) {
  for (int64_t u = 0; u < units; u++) {
    ahead(u);
    F lanes[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; v++) lanes[v] = once(read<F>(b[v] + u * b_unit));
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; v++) {
        sum[i][v] = Units::add(sum[i][v], a[i * a_row + u * a_unit], lanes[v]);
      }
    }
  }
}

}  // namespace quire::QUIRE_ISA
