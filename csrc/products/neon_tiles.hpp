// Tiles of a product by ARM's matrix instructions, for processors with both i8mm and bf16.
//
// One instruction multiplies two outputs by two rows, eight bytes of each: four bf16 or eight
// integers. A row that has no neighbour is multiplied as its own, so that every row's sums are
// made by the same instructions in the same order, however many rows there are. Pairs of bf16 are
// added as FEAT_BF16 says, with its own rounding, unless a program sets FPCR.EBF, as nobody does.
#pragma once

#include "products/bytes.hpp"

namespace quire::QUIRE_ISA {

#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

// The sums of outputs 0 and 1, each with rows 0 and 1.
QUIRE_INLINE F add_block(F sum, U w, U x) {
  return (F)vbfmmlaq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)x);
}
QUIRE_INLINE I add_block(I sum, U w, U x) {
  return (I)vusmmlaq_s32((int32x4_t)sum, (uint8x16_t)w, (int8x16_t)x);
}

// A vector's four outputs, as two blocks of two.
struct FourOutputs {
  U low, high;
};

// Of two lines: those of an output become neighbours.
QUIRE_INLINE FourOutputs join_lines(U first, U second) {
  return {(U)vzip1q_u32((uint32x4_t)first, (uint32x4_t)second),
          (U)vzip2q_u32((uint32x4_t)first, (uint32x4_t)second)};
}

// The four inputs of a line, in order.
QUIRE_INLINE FourOutputs decode_int8(U lanes) {
  auto codes = (uint8x16_t)(lanes ^ 0x80808080u);
  auto output = [&](uint8_t n) __attribute__((always_inline)) {
    constexpr uint8_t no = 0xff;  // gives 0
    uint8_t a = 4 * n, b = a + 2, c = a + 1, d = a + 3;
    const uint8x16_t upper = {no, no, no, a, no, no, no, b, no, no, no, c, no, no, no, d};
    return (uint16x8_t)vcvtq_n_f32_s32((int32x4_t)vqtbl1q_u8(codes, upper), 24);
  };
  // The upper halves of floats of 8 bits are bf16.
  return {(U)vuzp2q_u16(output(0), output(1)), (U)vuzp2q_u16(output(2), output(3))};
}

// The eight inputs of a line: 0, 1, 4, 5 and 2, 3, 6, 7.
QUIRE_INLINE void decode_int4(U lanes, FourOutputs (&out)[2]) {
  // bf16 from -8 to 7, by their lower and their upper bytes.
  const uint8x16_t lower = {0x00, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0x00, 0x80,
                            0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0};
  const uint8x16_t upper = {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf,
                            0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40};
  const uint8x16_t order = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  uint8x16_t bytes = vqtbl1q_u8((uint8x16_t)lanes, order);
  uint8x16_t codes[2] = {vandq_u8(bytes, vdupq_n_u8(0x0f)), vshrq_n_u8(bytes, 4)};
  for (int i = 0; i < 2; i++) {
    uint8x16_t a = vqtbl1q_u8(lower, codes[i]), b = vqtbl1q_u8(upper, codes[i]);
    out[i] = {(U)vzip1q_u8(a, b), (U)vzip2q_u8(a, b)};
  }
}

// R rows times P vectors of outputs, as S.
template <class S, int R, int P>
struct Blocks {
  static constexpr int pairs = (R + 1) / 2;  // of rows
  S low[pairs][P] = {}, high[pairs][P] = {};

  __attribute__((always_inline)) static const char* row(const Tile& t, const char* x, int r) {
    return x + (r < R ? r : R - 1) * t.row_bytes;
  }

  // The next ``bytes`` of two rows, and zeros.
  template <int bytes>
  __attribute__((always_inline)) static U read_rows(const Tile& t, const char* x, int pair) {
    uint64_t a = 0, b = 0;
    __builtin_memcpy(&a, row(t, x, 2 * pair), bytes);
    __builtin_memcpy(&b, row(t, x, 2 * pair + 1), bytes);
    return (U)vcombine_u64(vcreate_u64(a), vcreate_u64(b));
  }

  __attribute__((always_inline)) void add(int pair, int p, FourOutputs w, U x) {
    low[pair][p] = add_block(low[pair][p], w.low, x);
    high[pair][p] = add_block(high[pair][p], w.high, x);
  }

  // ``weights(p)`` with eight bytes of the rows from x on.
  template <int bytes, class Weights>
  __attribute__((always_inline)) void add_all(const Tile& t, const char* x, Weights weights) {
    U v[pairs];
#pragma GCC unroll 8
    for (int i = 0; i < pairs; i++) v[i] = read_rows<bytes>(t, x, i);
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) {
      FourOutputs w = weights(p);
#pragma GCC unroll 8
      for (int i = 0; i < pairs; i++) add(i, p, w, v[i]);
    }
  }

  __attribute__((always_inline)) void finish(S (&acc)[R][P]) const {
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        uint32x4_t a = (uint32x4_t)low[r / 2][p], b = (uint32x4_t)high[r / 2][p];
        acc[r][p] += (S)(r % 2 ? vuzp2q_u32(a, b) : vuzp1q_u32(a, b));
      }
    }
  }
};

// Lines of numbers that are multiplied as they are, two at a time.
template <class S, int R, int P>
QUIRE_INLINE void sum_lines(S (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  Blocks<S, R, P> blocks;
  int64_t l = first;
  for (; l + 2 <= last; l += 2) {
    t.fetch<P>(l);
    t.fetch<P>(l + 1);
    blocks.template add_all<8>(t, t.x + l * 4, [&](int p) __attribute__((always_inline)) {
      return join_lines(t.lanes(l, p), t.lanes(l + 1, p));
    });
  }
  if (l < last) {
    blocks.template add_all<4>(t, t.x + l * 4, [&](int p) __attribute__((always_inline)) {
      return join_lines(t.lanes(l, p), U{});
    });
  }
  blocks.finish(acc);
}

// bf16 times bf16.
template <Format format, int R, int P>
QUIRE_INLINE void sum_pairs(F (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  if constexpr (format == Format::bfloat16) return sum_lines(acc, t, first, last);
  Blocks<F, R, P> blocks;
  constexpr int bytes = 2 * inputs_per_line(format);
  for (int64_t l = first; l < last; l++) {
    const char* x = t.x + l * bytes;
    t.fetch<P>(l);
    if constexpr (bits_of(format) == 8) {
      blocks.template add_all<8>(t, x, [&](int p) __attribute__((always_inline)) {
        return decode_int8(t.lanes(l, p));
      });
    } else {
      U even[blocks.pairs], odd[blocks.pairs];  // inputs in the order of the weights
#pragma GCC unroll 8
      for (int i = 0; i < blocks.pairs; i++) {
        auto a = read<uint32x4_t>(blocks.row(t, x, 2 * i));
        auto b = read<uint32x4_t>(blocks.row(t, x, 2 * i + 1));
        even[i] = (U)vuzp1q_u32(a, b);
        odd[i] = (U)vuzp2q_u32(a, b);
      }
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) {
        FourOutputs w[2];
        decode_int4(t.lanes(l, p), w);
#pragma GCC unroll 8
        for (int i = 0; i < blocks.pairs; i++) {
          blocks.add(i, p, w[0], even[i]);
          blocks.add(i, p, w[1], odd[i]);
        }
      }
    }
  }
  blocks.finish(acc);
}

// See bytes.hpp.
template <Format format, int R, int P>
QUIRE_INLINE void sum_bytes(I (&acc)[R][P], const Tile& t, int64_t first, int64_t last) {
  if constexpr (bits_of(format) == 8) return sum_lines(acc, t, first, last);
  Blocks<I, R, P> blocks;
  constexpr int lines = low_lines(format), bytes = inputs_per_line(format);
  for (int64_t u = first; u < last; u++) {
    High<format, P> high(t, u);
    for (int i = 0; i < lines; i++, high.shift()) {
      int64_t l = u * lines_per_unit(format) + i;
      t.fetch<P>(l);
      const char* x = t.x + (u * lines + i) * bytes;
      blocks.template add_all<8>(t, x, [&](int p) __attribute__((always_inline)) {
        U lanes = t.lanes(l, p);
        return join_lines(codes_as_bytes<format>(lanes, high.lanes[p], 0),
                          codes_as_bytes<format>(lanes, high.lanes[p], 1));
      });
    }
  }
  blocks.finish(acc);
}
#endif

}  // namespace quire::QUIRE_ISA
