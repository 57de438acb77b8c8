// Tiles of a product: some rows times P panels of weights, summed in registers.
#pragma once

#include "products.hpp"
#include "vec.hpp"

namespace quire::QUIRE_ISA {

constexpr int V = panel_width / W;  // vectors side by side in a panel

// What registers hold: rows times panels, and panels of products that only wait for memory.
#if defined(__aarch64__)  // 32 vectors, four to a panel
constexpr int most_rows = 6, most_panels = 1, few_rows = 2, few_rows_panels = 2;
#else
constexpr int most_rows = W == 16 ? 12 : W == 8 ? 5 : 2;
constexpr int most_panels = W == 16 ? 2 : 1;
constexpr int few_rows = W == 16 ? 4 : 1;
constexpr int few_rows_panels = W == 16 ? 4 : 2;
#endif

// --- lines of weights as numbers -----------------------------------------------------------------

// The weights of input j of a line, less what was added to them.
template <Format format>
QUIRE_INLINE F decode(U lanes, int j) {
  if constexpr (format == Format::float32) return (F)lanes;
  if constexpr (format == Format::bfloat16) return (F)(j ? lanes & 0xffff0000u : lanes << 16);
  if constexpr (format == Format::float16) {
    f16 halves[W];
    narrow_16(halves, j ? lanes >> 16 : lanes);
    return load(halves);
  }
#if defined(__aarch64__)
  // Signed numbers in the uppermost bits, converted with all others as their fraction.
  constexpr int bits = format == Format::int4 ? 4 : 8;
  if constexpr (format == Format::int8 || format == Format::int4) {
    U signs = lanes ^ (bits == 8 ? 0x80808080u : 0x88888888u);
    U top = signs << (32 - bits - bits * (j / 2) - 16 * (j % 2)) & (~0u << (32 - bits));
    return (F)vcvtq_n_f32_s32((int32x4_t)top, 32 - bits);
  }
#endif
  // A float from 2^23 on holds a whole number in its last bits.
  if constexpr (format == Format::int8) {
    return (F)(((lanes >> (8 * (j / 2) + 16 * (j % 2))) & 0xffu) | 0x4b000000u) - 8388736.0f;
  }
  return (F)(((lanes >> (4 * (j / 2) + 16 * (j % 2))) & 0xfu) | 0x4b000000u) - 8388616.0f;
}

#if defined(__AVX512BF16__)
// The number n - 8 in bf16, for the four bits n from ``bit`` on of each half of a lane.
QUIRE_INLINE __m512bh look_up(U lanes, int bit) {
  F numbers;
  for (int n = 0; n < 16; n++) numbers[n] = n - 8;
  __m256i table = (__m256i)_mm512_cvtneps_pbh((__m512)numbers);
  // Of an index five bits count, and the fifth is another weight's: the table is there twice.
  return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)lanes, bit),
                                            _mm512_broadcast_i64x4(table));
}

// Floats from 2^23 on hold whole numbers in their last bits: in each lane byte ``from`` becomes
// one.
QUIRE_INLINE F byte_as_float(U lanes, int from) {
  U places = (U)_mm512_set4_epi32(0x0c, 0x08, 0x04, 0x00) + uint32_t(from);
  U whole = (U)_mm512_mask_shuffle_epi8((__m512i)splat(0x4b000000u), 0x1111111111111111,
                                        (__m512i)lanes, (__m512i)places);
  return (F)whole - 8388736.0f;
}

// The upper halves of two numbers in bf16 that are floats: exact, as they have no more than 8 bits.
QUIRE_INLINE __m512bh upper_halves(F even, F odd) {
  __m512i up = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
  return (__m512bh)_mm512_mask_shuffle_epi8((__m512i)odd, 0x3333333333333333, (__m512i)even, up);
}

// The weights of inputs 2 j and 2 j + 1 of a line.
template <Format format>
QUIRE_INLINE __m512bh decode_pairs(U lanes, int j) {
  static_assert(format != Format::float32 && format != Format::float16);
  if constexpr (format == Format::bfloat16) return (__m512bh)lanes;
  if constexpr (format == Format::int8)
    return upper_halves(byte_as_float(lanes, j), byte_as_float(lanes, j + 2));
  return look_up(lanes, 4 * j);
}
#endif

// --- sums ----------------------------------------------------------------------------------------

// Where a tile's weights and rows begin.
struct Tile {
  const char* lines;  // of the first panel
  int64_t panel_bytes;
  const char* x;  // the first row
  int64_t row_bytes;
  const char* ahead;  // panels to be fetched meanwhile, and how far one is from the next
  int64_t ahead_bytes;

  __attribute__((always_inline)) U lanes(int64_t line, int vector) const {
    return read<U>(lines + vector / V * panel_bytes + line * line_bytes + vector % V * (W * 4));
  }

  template <int P>
  __attribute__((always_inline)) void fetch(int64_t line) const {
#pragma GCC unroll 16
    for (int panel = 0; panel < P / V; panel++)
      __builtin_prefetch(ahead + panel * ahead_bytes + line * line_bytes, 0, 2);
  }
};

// Add the products of lines ``first`` to ``last`` to ``acc``: floats times floats.
template <Format format, int R, int P>
QUIRE_INLINE void sum_floats(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  constexpr int n = inputs_per_line(format);
  F sum[R][P];  // not acc itself: compilers would keep it in memory as well
  __builtin_memcpy(sum, acc, sizeof sum);
  for (int64_t l = first; l < last; l++) {
    const char* x = t.x + l * n * 4;
    t.fetch<P>(l);
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
      F w[P];
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) w[p] = decode<format>(t.lanes(l, p), j);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        F v = splat(read<float>(x + r * t.row_bytes + j * 4));
#pragma GCC unroll 16
        for (int p = 0; p < P; p++) sum[r][p] = fma(w[p], v, sum[r][p]);
      }
    }
  }
  __builtin_memcpy(acc, sum, sizeof sum);
}

#if defined(__AVX512BF16__)
// bf16 times bf16, two at a time.
template <Format format, int R, int P>
QUIRE_INLINE void sum_pairs(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  constexpr int n = inputs_per_line(format) / 2;
  for (int64_t l = first; l < last; l++) {
    const char* x = t.x + l * n * 4;
    t.fetch<P>(l);
    U lanes[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) lanes[p] = t.lanes(l, p);
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) {
      __m512bh w[P];
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) w[p] = decode_pairs<format>(lanes[p], j);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        __m512bh v = (__m512bh)_mm512_set1_epi32(read<int>(x + r * t.row_bytes + j * 4));
#pragma GCC unroll 16
        for (int p = 0; p < P; p++) acc[r][p] = (F)_mm512_dpbf16_ps((__m512)acc[r][p], v, w[p]);
      }
    }
  }
}
#endif

// Bytes times signed bytes, four at a time; of the former ``added_to_bytes`` is not subtracted.
#if !defined(__ARM_FEATURE_MATMUL_INT8)
template <int R, int P>
QUIRE_INLINE void sum_bytes(I (&acc)[R][P], const Tile& t, int64_t lines) {
  for (int64_t l = 0; l < lines; l++) {
    const char* x = t.x + l * 4;
    t.fetch<P>(l);
    U w[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) w[p] = t.lanes(l, p);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#if defined(__AVX512VNNI__)
      __m512i v = _mm512_set1_epi32(read<int>(x + r * t.row_bytes));
#pragma GCC unroll 16
      for (int p = 0; p < P; p++)
        acc[r][p] = (I)_mm512_dpbusd_epi32((__m512i)acc[r][p], (__m512i)w[p], v);
#elif defined(__ARM_FEATURE_DOTPROD)
      int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(read<int>(x + r * t.row_bytes)));
#pragma GCC unroll 16
      for (int p = 0; p < P; p++)
        acc[r][p] = (I)vdotq_s32((int32x4_t)acc[r][p], (int8x16_t)(w[p] ^ 0x80808080u), v);
#else
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        I v = splat(int32_t(read<int8_t>(x + r * t.row_bytes + j)));
#pragma GCC unroll 16
        for (int p = 0; p < P; p++) acc[r][p] += v * (I)((w[p] >> 8 * j) & 0xffu);
      }
#endif
    }
  }
}
#endif

}  // namespace quire::QUIRE_ISA
