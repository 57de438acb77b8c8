// What adapters (LoRA) add to products: plain values and pointers.
#pragma once

#include "interface.hpp"

namespace quire {

// Both of an adapter's matrices come in panels of 16 outputs, in the type of what they multiply. A
// panel is lines as those of ``Packed``: one input in float32, otherwise two. Zeros fill the last
// panel, and inputs up to four whole lines.
constexpr int adapter_panel = 16;

// What is added to some neighbouring outputs of a product, out of some of the ranks. DoRA multiplies
// each sum by the output's gain, and then adds its shift.
struct UpPart {
  int64_t first_output, outputs;
  int64_t first_rank, lines;
  const void* panels;   // [panels of outputs, lines, 64 bytes]
  const float* gains;   // [outputs, in whole panels], or null
  const float* shifts;  // the same
};

// To a product's outputs is added: parts(scales * down(x)).
struct LowRank {
  int64_t inputs, ranks, lines;  // ranks: whole panels; 0: nothing is added
  const void* down;     // [ranks / 16, lines, 64 bytes]
  const float* scales;  // [ranks]
  const UpPart* parts;
  int64_t num_parts;
};

// Rows that one adapter changes, by their places among all that are changed; and its changes: by
// layer, four projections each.
struct AdaptedRows {
  int64_t first, last;
  const LowRank* products;
};

// One product's outputs, to which the adapters of its rows are to add.
struct Adapt {
  const AdaptedRows* runs;
  int64_t num_runs;
  const int64_t* rows;  // by place
  int64_t product;  // of ``AdaptedRows::products``
  const void* x;    // [rows, inputs]
  int64_t x_stride;
  void* out;  // [rows, outputs]
  int64_t out_stride;
  DType dtype;
  float* ranks;  // [places, width]: what ``down`` gives
  int64_t width;
  float* wide_rows;  // [threads, adapted_at_once, wide]
  int64_t wide;
};

constexpr int adapted_at_once = 4;  // rows

}  // namespace quire
