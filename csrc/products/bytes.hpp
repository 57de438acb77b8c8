// Products of codes of weights and rows that were rounded to bytes: whole numbers, so exact in any
// order.
#pragma once

#include "products/tiles.hpp"

namespace quire::QUIRE_ISA {

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool sums_in_16_bits = true;  // at first: the instruction adds two products
#else
constexpr bool sums_in_16_bits = false;
#endif

// What codes have too much when they are multiplied. Bytes are signed where the instruction takes
// signed ones, or would not hold the sum of two products.
constexpr int added_to_codes(Format format) {
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
  constexpr bool signed_bytes = true;
#else
  constexpr bool signed_bytes = sums_in_16_bits;
#endif
  return bits_of(format) == 8 && signed_bytes ? 0 : 1 << (bits_of(format) - 1);
}

// Four codes of a line, a byte each: of a line of eight those of inputs 0, 4, 1 and 5, then of 2, 6,
// 3 and 7. ``high`` as for decode().
template <Format format>
QUIRE_INLINE U codes_as_bytes(U lanes, U high, int j) {
  if constexpr (bits_of(format) == 8) return lanes;
  U codes = lanes >> 4 * j & 0x0f0f0f0fu;
  constexpr int above = high_bits(format);
  if constexpr (above > 0) {
    constexpr uint32_t bits = ((1u << above) - 1) << 4;
    codes |= high << (4 - above * j) & bits * 0x00010001u;
    codes |= high << (12 - above * (j + 2)) & bits * 0x01000100u;
  }
  return codes;
}

typedef int16_t S __attribute__((vector_size(W * 4)));

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
// Pairs of products, added up: the bytes of w are not negative.
QUIRE_INLINE S add_pairs(U w, U x) {
#if defined(__AVX512F__)
  return (S)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
#else
  return (S)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#endif
}
QUIRE_INLINE I add_pairs(S sums) {
#if defined(__AVX512F__)
  return (I)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1));
#else
  return (I)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
#endif
}

// Signed bytes without their signs, and others with these in addition.
QUIRE_INLINE U size_of(U w) {
#if defined(__AVX512F__)
  return (U)_mm512_abs_epi8((__m512i)w);
#else
  return (U)_mm256_abs_epi8((__m256i)w);
#endif
}
QUIRE_INLINE U with_signs_of(U w, U x) {
#if defined(__AVX512F__)
  return (U)_mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w),
                                 _mm512_setzero_si512(), (__m512i)x);
#else
  return (U)_mm256_sign_epi8((__m256i)x, (__m256i)w);
#endif
}

// Four products of each lane, added to ``part``; that, to ``sum``.
template <Format format>
QUIRE_INLINE void add_bytes(I&, S& part, U codes, U x) {
  if constexpr (bits_of(format) == 8) {
    U w = codes ^ 0x80808080u;
    part += add_pairs(size_of(w), with_signs_of(w, x));
  } else {
    part += add_pairs(codes, x);
  }
}
QUIRE_INLINE void add_part(I& sum, S& part) {
  sum += add_pairs(part);
  part = S{};
}
#else
// Four products of each lane, added to ``sum``.
template <Format format>
QUIRE_INLINE void add_bytes(I& sum, S&, U codes, U x) {
#if defined(__AVX512VNNI__)
  sum = (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
  U w = bits_of(format) == 8 ? codes ^ 0x80808080u : codes;
  sum = (I)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) sum += ((I)(x << (24 - 8 * j)) >> 24) * (I)(codes >> 8 * j & 0xffu);
#endif
}
QUIRE_INLINE void add_part(I&, S&) {}
#endif

// How many sums of two products fit into 16 bits, whatever the codes.
constexpr int pairs_at_once(Format format) {
  int largest = bits_of(format) == 8 ? 128 : (1 << bits_of(format)) - 1;
  return 32767 / (2 * 127 * largest);
}

// Sums of R rows times P vectors of outputs.
template <Format format, int R, int P>
class ByteSums {
 public:
  explicit ByteSums(I (&sums)[R][P]) : sums_(sums) {}

  __attribute__((always_inline)) void add(const U (&codes)[P], int r, U x) {
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) add_bytes<format>(sums_[r][p], parts_[r][p], codes[p], x);
  }

  __attribute__((always_inline)) void end_line() {
    constexpr int lines_at_once = pairs_at_once(format) / (inputs_per_line(format) / 4);
    if (sums_in_16_bits && ++lines_ >= lines_at_once) finish();
  }

  __attribute__((always_inline)) void finish() {
    lines_ = 0;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) add_part(sums_[r][p], parts_[r][p]);
    }
  }

 private:
  I (&sums_)[R][P];
  S parts_[R][P] = {};
  int lines_ = 0;
};

#if !defined(__ARM_FEATURE_MATMUL_INT8)
// Add the products of units ``first`` to ``last`` to ``acc``; of codes ``added_to_codes`` is not
// subtracted.
template <Format format, int R, int P>
QUIRE_INLINE void sum_bytes(I (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  constexpr int n = inputs_per_line(format), lines = low_lines(format);
  ByteSums<format, R, P> sums(acc);
  RowsAt<R> x(t, first * lines * n);
  for (int64_t u = first; u < last; u++) {
    High<format, P> high(t, u);
    if (high_bits(format)) t.fetch<P>((u + 1) * lines_per_unit(format) - 1);
    for (int i = 0; i < lines; i++, high.shift(), x.advance(n)) {
      int64_t l = u * lines_per_unit(format) + i;
      t.fetch<P>(l);
#pragma GCC unroll 2
      for (int j = 0; j < n / 4; j++) {
        U codes[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; p++)
          codes[p] = codes_as_bytes<format>(t.lanes(l, p), high.lanes[p], j);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) sums.add(codes, r, splat(x.template get<uint32_t>(r, 4 * j)));
      }
      sums.end_line();
    }
  }
  sums.finish();
}
#endif

}  // namespace quire::QUIRE_ISA
