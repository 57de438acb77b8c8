// Matrix products with weights that were packed for them: plain values and pointers.
#pragma once

#include "interface.hpp"

namespace quire {

// Outputs come in panels of 16, of which there is an even number. A panel's weights are consecutive
// lines of 16 lanes of four bytes; lane n of line l belongs to output n and holds, from the low
// end, the weights of the inputs
//   float32   l
//   bfloat16  2 l, 2 l + 1; float16 as well
//   int8      4 l, 4 l + 2, 4 l + 1, 4 l + 3, each plus 128
//   int4      8 l, 8 l + 2, 8 l + 4, 8 l + 6, 8 l + 1, 8 l + 3, 8 l + 5, 8 l + 7, each plus 8
// so that the same bits of both halves belong to neighbouring inputs. int5 and int6, each plus 16
// or 32, have four or two lines as int4's, of their low bits, and then one of their high bits: each
// half has those of every other of the 32 or 16 inputs. Such lines are a unit; of other formats a
// line is one. Whole units and panels are filled with zeros (of integers: with 128, 8, 16 and 32).
// int8 has a scale for each output; int4, int5, int6 and grouped_int8 have groups of inputs. So has
// float4, whose lines are as int4's, of a sign and three bits that stand for 0, 1, 2, 3, 4, 6, 8, 12
// (E2M1 of the OCP's microscaling formats, times two).
enum class Format : int {
  float32 = 0, bfloat16 = 1, int8 = 2, int4 = 3, float16 = 4, grouped_int8 = 5, int5 = 6, int6 = 7,
  float4 = 8
};

constexpr int panel_width = 16;
constexpr int spread_run = 16;
constexpr int line_bytes = 64;
QUIRE_INLINE constexpr int bits_of(Format format) {
  constexpr int bits[] = {32, 16, 8, 4, 16, 8, 5, 6, 4};
  return bits[int(format)];
}
QUIRE_INLINE constexpr bool in_groups(Format format) {
  return format == Format::int4 || format >= Format::grouped_int8;
}
// Bits of a weight that are in a line of their own.
QUIRE_INLINE constexpr int high_bits(Format format) { return bits_of(format) % 4; }
QUIRE_INLINE constexpr int inputs_per_line(Format format) {
  return 32 / (bits_of(format) - high_bits(format));
}
// Of a unit: lines of all bits or of low ones, then all lines.
QUIRE_INLINE constexpr int low_lines(Format format) {
  return high_bits(format) ? 4 / high_bits(format) : 1;
}
QUIRE_INLINE constexpr int lines_per_unit(Format format) {
  return low_lines(format) + (high_bits(format) > 0);
}
QUIRE_INLINE constexpr int inputs_per_unit(Format format) {
  return inputs_per_line(format) * low_lines(format);
}

// By what the scales and offsets of several groups are multiplied for each of them.
//   bytes  16 groups: int8 [panels, groups, 16], or [panels, groups, 2, 16] where there are offsets
//   sixes  8 groups, with offsets: uint32 [panels, groups / 8, 3, 16]. Of group g the low four bits
//          of the scale's are from bit 4 g of the first, of the offset's of the second; the high
//          two from bit 2 g and from bit 16 + 2 g of the third.
enum class Factors : int { none = 0, bytes = 1, sixes = 2 };

// What codes from 0 on are in a group of inputs: (code - zero) * scale + offset.
struct Groups {
  int64_t units;         // of a group
  const f16* scales;     // [panels, groups, 16], or with factors for several groups
  const f16* offsets;    // as scales; null: none
  const uint8_t* zeros;  // [panels, groups, 16]; null: 0 with offsets, else half of all codes
  Factors factors_kind;
  const char* factors;
};

struct Packed {
  Format format;
  // Multiplied by rows that are rounded to int8 as well, a group's inputs of each to their own scale:
  // integers.
  bool rounds_rows;
  int64_t inputs, outputs, panels, units;
  const char* weights;  // [panels, lines, 64]
  const float* scales;  // int8: [panels, 16]
  Groups groups;        // formats that have them
  const float* bias;    // [outputs]; null: none
  const float* smoothing;  // [inputs], by what rows are multiplied before they are rounded; null: 1
  // Then each run of ``spread_run`` inputs by Hadamard's matrix, as those of weights were: a number
  // that stands out becomes a little of each. Groups have 16, 32 or 64 inputs then.
  bool spreads_rows;
  const Packed* rest;   // another weight, whose outputs are the last of these; null: none

  __attribute__((always_inline)) int64_t panel_bytes() const {
    return units * lines_per_unit(format) * line_bytes;
  }
  __attribute__((always_inline)) int64_t num_groups() const { return units / groups.units; }
  // Of a group's x.
  __attribute__((always_inline)) bool needs_sums() const { return groups.zeros || groups.offsets; }
  int64_t bytes() const { return panels * panel_bytes() + (rest ? rest->bytes() : 0); }
};

struct Product {
  Packed weight;
  const void* x;     // [rows, inputs]
  int64_t x_stride;  // elements from one row to the next
  void* out;         // [rows, outputs]
  int64_t rows;
  DType dtype, out_dtype;  // of x, of out
  char* scratch;     // of product_scratch(..., threads) bytes
  int64_t out_stride = weight.outputs;
  const Packed* next = nullptr;  // weights of the product after this, to be fetched; null: unknown
};

// Neighbouring rows of a product that one of several weights multiplies.
struct Share {
  int32_t weight;
  int32_t first, last;
};

// A product with several weights of one form and shape, each of which multiplies its own rows.
struct Grouped {
  Product product;  // all rows; its weight stands for all, and needs sums if any does
  const Packed* weights;
  const Share* shares;  // one after the other, of all rows
  int64_t num_shares;
  const int32_t* sources;  // by row, which row of x it is; null: its own
  int64_t x_rows;          // of x
};

// Some outputs' weights as they are, or as what they stand for.
struct Embed {
  Packed weight;
  const int64_t* outputs;
  void* out;  // [rows, inputs]
  int64_t rows;
  DType dtype;  // of out; the weight's, if those are floats
};

}  // namespace quire
