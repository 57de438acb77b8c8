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
// so that the same bits of both halves belong to neighbouring inputs. Whole lines and panels are
// filled with zeros (of int8 and int4: with 128 and 8).
enum class Format : int { float32 = 0, bfloat16 = 1, int8 = 2, int4 = 3, float16 = 4 };

constexpr int panel_width = 16;
constexpr int line_bytes = 64;
constexpr int inputs_per_line(Format format) {
  return format == Format::float16 ? 2 : 1 << int(format);
}

struct Packed {
  Format format;
  bool rounds_rows;  // int8: multiplied by rows that are rounded to int8 as well
  int64_t inputs, outputs, panels, lines;
  const char* weights;        // [panels, lines, 64]
  const float* scales;        // int8: [panels, 16]
  const f16* group_scales;    // int4: [panels, groups, 16]
  const uint8_t* group_zeros; // int4: as above, what is subtracted from the stored; null: 8
  int64_t group_lines;        // int4: lines that share a scale
  const float* bias;          // [outputs]; null: none
};

struct Product {
  Packed weight;
  const void* x;     // [rows, inputs]
  int64_t x_stride;  // elements from one row to the next
  void* out;         // [rows, outputs], contiguous
  int64_t rows;
  DType dtype, out_dtype;  // of x, of out
  char* scratch;     // of product_scratch(..., threads) bytes
};

// Neighbouring rows of a product that one of several weights multiplies.
struct Share {
  int32_t weight;
  int32_t first, last;
};

// A product with several weights of one form and shape, each of which multiplies its own rows.
struct Grouped {
  Product product;  // all rows; its weight stands for all, and has ``group_zeros`` if any has
  const Packed* weights;
  const Share* shares;  // one after the other, of all rows
  int64_t num_shares;
  const int32_t* sources;  // by row, which row of x it is; null: its own
  int64_t x_rows;          // of x
};

// Some outputs' weights, of int8 scaled, otherwise as they are.
struct Embed {
  Packed weight;  // not of int4
  const int64_t* outputs;
  void* out;  // [rows, inputs]
  int64_t rows;
  DType dtype;  // of out; the weight's, if that is not int8
};

}  // namespace quire
