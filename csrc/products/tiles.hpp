// Tiles of a product: some rows times P panels of weights, summed in registers.
#pragma once

#include "products/blocking.hpp"
#include "products/products.hpp"
#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

constexpr int V = panel_width / W;  // vectors side by side in a panel

// --- lines of weights as numbers -----------------------------------------------------------------

// The code of input j of a line less half of all codes. ``high``: high bits, from the lowest of each
// half on, those of a pair of inputs after those of the one before.
template <Format format>
QUIRE_INLINE F decode_integer(U lanes, U high, int j) {
  constexpr int above = high_bits(format), low = bits_of(format) - above;
#if defined(__aarch64__)
  // Signed numbers in the uppermost bits, converted with all others as their fraction.
  if constexpr (above == 0) {
    U signs = lanes ^ (low == 8 ? 0x80808080u : 0x88888888u);
    U top = signs << (32 - low - low * (j / 2) - 16 * (j % 2)) & (~0u << (32 - low));
    return (F)vcvtq_n_f32_s32((int32x4_t)top, 32 - low);
  }
#endif
  U code = lanes >> (low * (j / 2) + 16 * (j % 2)) & ((1u << low) - 1);
  if constexpr (above > 0)
    code |= (high >> (above * (j / 2) + 16 * (j % 2)) & ((1u << above) - 1)) << low;
  // A float from 2^23 on holds a whole number in its last bits.
  return (F)(code | 0x4b000000u) - float((1 << 23) + (1 << (low + above - 1)));
}

// The floats of four bits of input j of a line.
QUIRE_INLINE F decode_float4(U lanes, int j) {
  U code = lanes >> (4 * (j / 2) + 16 * (j % 2));
#if defined(__AVX512F__)
  const F table = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
  return (F)_mm512_permutexvar_ps((__m512i)code, (__m512)table);
#else
  // They grow by 1, by 2 and by 4: the highest of three lines.
  F size = (F)(code & 7u | 0x4b000000u) - float(1 << 23);
  size = maximum(size, maximum(size * 2.0f - 4.0f, size * 4.0f - 16.0f));
  return (F)((U)size | (code & 8u) << 28);
#endif
}

#if defined(__AVX512BW__)
// Floats from 2^23 on hold whole numbers in their last bits: in each lane byte ``from`` becomes
// one.
QUIRE_INLINE F byte_as_float(U lanes, int from) {
  U places = (U)_mm512_set4_epi32(0x0c, 0x08, 0x04, 0x00) + uint32_t(from);
  U whole = (U)_mm512_mask_shuffle_epi8((__m512i)splat(0x4b000000u), 0x1111111111111111,
                                        (__m512i)lanes, (__m512i)places);
  return (F)whole - 8388736.0f;
}
#endif

// The weights of input j of a line; see above.
template <Format format>
QUIRE_INLINE F decode(U lanes, U high, int j) {
  if constexpr (format == Format::float32) {
    return (F)lanes;
  } else if constexpr (format == Format::bfloat16) {
    return (F)(j ? lanes & 0xffff0000u : lanes << 16);
  } else if constexpr (format == Format::float16) {
    f16 halves[W];
    narrow_16(halves, j ? lanes >> 16 : lanes);
    return load(halves);
  } else if constexpr (format == Format::float4) {
    return decode_float4(lanes, j);
#if defined(__AVX512BW__)
  } else if constexpr (format == Format::int4) {
    const F table = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    U code = lanes >> (4 * (j / 2) + 16 * (j % 2));
    return (F)_mm512_permutexvar_ps((__m512i)code, (__m512)table);
  } else if constexpr (bits_of(format) == 8) {
    return byte_as_float(lanes, j / 2 + 2 * (j % 2));
#endif
  } else {
    return decode_integer<format>(lanes, high, j);
  }
}

// Whether pairs of bf16 can be made of weights, which are multiplied by two at a time.
constexpr bool has_pairs(Format format) {
#if defined(__aarch64__)
  if (high_bits(format) || format == Format::float4) return false;
#endif
  return has_bf16_products && format != Format::float32 && format != Format::float16;
}

#if defined(__AVX512BF16__)
// Sixteen whole numbers from ``first`` on, in bf16.
QUIRE_INLINE __m256i numbers_from(int first) {
  F numbers;
  for (int n = 0; n < 16; n++) numbers[n] = first + n;
  return (__m256i)_mm512_cvtneps_pbh((__m512)numbers);
}
QUIRE_INLINE __m512i numbers_from(int first, int then) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(numbers_from(first)), numbers_from(then), 1);
}

QUIRE_INLINE __m512i floats_of_four_bits() {
  __m512 numbers = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
  __m256i once = (__m256i)_mm512_cvtneps_pbh(numbers);
  return _mm512_inserti64x4(_mm512_castsi256_si512(once), once, 1);
}

// The codes of pair j of a line less half of all codes, in bf16, looked up by their bits in each
// half of a lane. More bits of an index than count are other weights'.
template <Format format>
QUIRE_INLINE __m512bh look_up(U lanes, U high, int j) {
  __m512i at = _mm512_srli_epi16((__m512i)lanes, 4 * j);
  // Of these five bits count: the table is there twice.
  if constexpr (format == Format::int4)
    return (__m512bh)_mm512_permutexvar_epi16(at, numbers_from(-8, -8));
  if constexpr (format == Format::float4)
    return (__m512bh)_mm512_permutexvar_epi16(at, floats_of_four_bits());
  const int up = 4 - high_bits(format) * j;
  __m512i above = up < 0 ? _mm512_srli_epi16((__m512i)high, -up)
                         : _mm512_slli_epi16((__m512i)high, up);
  at = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x000f000f), at, above, 0xca);  // low or high
  if constexpr (format == Format::int5)
    return (__m512bh)_mm512_permutexvar_epi16(at, numbers_from(-16, 0));
  return (__m512bh)_mm512_permutex2var_epi16(numbers_from(-32, -16), at, numbers_from(0, 16));
}

// The upper halves of two numbers in bf16 that are floats: exact, as they have no more than 8 bits.
QUIRE_INLINE __m512bh upper_halves(F even, F odd) {
  __m512i up = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
  return (__m512bh)_mm512_mask_shuffle_epi8((__m512i)odd, 0x3333333333333333, (__m512i)even, up);
}

// The weights of inputs 2 j and 2 j + 1 of a line; ``high`` as for decode().
template <Format format>
QUIRE_INLINE __m512bh decode_pairs(U lanes, U high, int j) {
  static_assert(has_pairs(format));
  if constexpr (format == Format::bfloat16) return (__m512bh)lanes;
  if constexpr (bits_of(format) == 8)
    return upper_halves(byte_as_float(lanes, j), byte_as_float(lanes, j + 2));
  return look_up<format>(lanes, high, j);
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

// What the rows of a tile hold at one line after the other. x86 reads three rows by one pointer: a
// pointer each are more than there are registers, and compilers keep the rest in those of vectors,
// from where it is fetched for each line by the units that multiply. Who shares a core notices.
template <int R>
class RowsAt {
 public:
  __attribute__((always_inline)) RowsAt(const Tile& t, int64_t offset) : row_bytes_(t.row_bytes) {
#pragma GCC unroll 16
    for (int i = 0; i < count; i++) at_[i] = t.x + i * a_pointer * row_bytes_ + offset;
  }

  template <class T>
  __attribute__((always_inline)) T get(int row, int64_t offset) const {
    return read<T>(at_[row / a_pointer] + row % a_pointer * row_bytes_ + offset);
  }

  __attribute__((always_inline)) void advance(int64_t bytes) {
#pragma GCC unroll 16
    for (int i = 0; i < count; i++) {
      at_[i] += bytes;
#if defined(__x86_64__)
      asm("" : "+r"(at_[i]));  // otherwise compilers make a pointer for each row of it
#endif
    }
  }

 private:
#if defined(__x86_64__)
  static constexpr int a_pointer = 3;  // row, row + stride and row + 2 stride are ways to address
#else
  static constexpr int a_pointer = 1;
#endif
  static constexpr int count = (R + a_pointer - 1) / a_pointer;

  const char* at_[count];
  int64_t row_bytes_;
};

// The high bits of a unit, for P vectors: first those that go with its first line.
template <Format format, int P>
struct High {
  U lanes[P];

  __attribute__((always_inline)) High(const Tile& t, int64_t unit) {
#pragma GCC unroll 16
    for (int p = 0; p < P; p++)
      lanes[p] = high_bits(format) ? t.lanes((unit + 1) * lines_per_unit(format) - 1, p) : U{};
  }

  // Those of the next line.
  __attribute__((always_inline)) void shift() {
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) lanes[p] >>= high_bits(format) * inputs_per_line(format) / 2;
  }
};

// Add a unit's products to ``sums``, those of every ``Apart``-th input to the same: floats times
// floats.
template <Format format, int Apart, int R, int P>
QUIRE_INLINE void add_unit(F (&sums)[Apart][R][P], const Tile& t, RowsAt<R>& x, int64_t u) {
  constexpr int n = inputs_per_line(format), lines = low_lines(format);
  High<format, P> high(t, u);
  if (high_bits(format)) t.fetch<P>((u + 1) * lines_per_unit(format) - 1);
  for (int i = 0; i < lines; i++, high.shift(), x.advance(n * 4)) {
    int64_t l = u * lines_per_unit(format) + i;
    t.fetch<P>(l);
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
      F w[P];
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) w[p] = decode<format>(t.lanes(l, p), high.lanes[p], j);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        F v = splat(x.template get<float>(r, j * 4));
        F(&sum)[P] = sums[j % Apart][r];
#pragma GCC unroll 16
        for (int p = 0; p < P; p++) sum[p] = fma(w[p], v, sum[p]);
      }
    }
  }
}

// Add the products of units ``first`` to ``last`` to ``acc``.
template <Format format, int R, int P>
QUIRE_INLINE void sum_floats(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  F sum[1][R][P];  // not acc itself: compilers would keep it in memory as well
  __builtin_memcpy(sum, acc, sizeof sum);
  RowsAt<R> x(t, first * inputs_per_unit(format) * 4);
  for (int64_t u = first; u < last; u++) add_unit<format>(sum, t, x, u);
  __builtin_memcpy(acc, sum, sizeof sum);
}

// The same in the order of tile registers: even and odd inputs apart, of as many as a tile has.
template <Format format, int R, int P>
QUIRE_INLINE void sum_as_tiles(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  constexpr int at_once = tile_row_bytes / 2 / inputs_per_unit(format);
  RowsAt<R> x(t, first * inputs_per_unit(format) * 4);
  for (int64_t u = first; u < last;) {
    F sums[2][R][P] = {};
    for (int64_t end = u + at_once < last ? u + at_once : last; u < end; u++)
      add_unit<format>(sums, t, x, u);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) acc[r][p] += sums[0][r][p] + sums[1][r][p];
    }
  }
}

#if defined(__AVX512BF16__)
// bf16 times bf16, two at a time.
template <Format format, int R, int P>
QUIRE_INLINE void sum_pairs(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  constexpr int n = inputs_per_line(format) / 2, lines = low_lines(format);
  RowsAt<R> x(t, first * lines * n * 4);
  for (int64_t u = first; u < last; u++) {
    High<format, P> high(t, u);
    if (high_bits(format)) t.fetch<P>((u + 1) * lines_per_unit(format) - 1);
    for (int i = 0; i < lines; i++, high.shift(), x.advance(n * 4)) {
      int64_t l = u * lines_per_unit(format) + i;
      t.fetch<P>(l);
      U lanes[P];
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) lanes[p] = t.lanes(l, p);
#pragma GCC unroll 4
      for (int j = 0; j < n; j++) {
        __m512bh w[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; p++) w[p] = decode_pairs<format>(lanes[p], high.lanes[p], j);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          __m512bh v = (__m512bh)_mm512_set1_epi32(x.template get<int>(r, j * 4));
#pragma GCC unroll 16
          for (int p = 0; p < P; p++) acc[r][p] = (F)_mm512_dpbf16_ps((__m512)acc[r][p], v, w[p]);
        }
      }
    }
  }
}
#endif

}  // namespace quire::QUIRE_ISA
