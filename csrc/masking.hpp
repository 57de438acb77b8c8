// Logits cut to what masks allow, in one pass over all rows of a step.
#pragma once

#include <cstdint>

namespace quire {

struct Masked {
  const float* x;         // [rows, width]
  int64_t x_stride;
  const uint32_t* masks;  // [.., words]: a bit for each number, the lowest first
  int64_t words;
  const int32_t* numbers;  // of each row's mask; negative: it has none
  float* out;             // [rows, width], contiguous
  int64_t rows, width;
};

// out: x, with -inf where the mask has no bit, or no word. Takes memory's time: so one build does.
void mask(const Masked& masked, int threads);

struct Few {
  const float* x;  // [.., width]
  int64_t x_stride;
  const uint32_t* masks;  // [count, words]
  int64_t words;
  const int32_t* rows;        // of x, one for each mask
  const double* temperature;  // of each; 0: the likeliest is chosen
  const double* uniform;      // in [0, 1), by which one is drawn
  int64_t count, width;
  int64_t* chosen;  // [count]; negative where a mask leaves more than 64, or nothing
  float* peaks;     // [count]: the largest that is left; NaN if one is
};

// Choose of what each mask leaves of its row, where that is few.
void choose_of_few(const Few& few, int threads);

}  // namespace quire
