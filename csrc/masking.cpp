#include "masking.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace quire {
namespace {

constexpr int64_t masked_from = 1 << 16;  // numbers, from which threads share them
constexpr int64_t chosen_from = 1 << 15;  // words
constexpr int64_t most_of_few = 64;
constexpr int word_bits = 32;

void mask_row(const Masked& m, int64_t row) {
  const float* x = m.x + row * m.x_stride;
  float* out = m.out + row * m.width;
  if (m.numbers[row] < 0) {
    std::memcpy(out, x, m.width * sizeof(float));
    return;
  }
  const uint32_t* mask = m.masks + m.numbers[row] * m.words;
  const float none = -__builtin_inff();
  int64_t known = std::min(m.width, m.words * word_bits), i = 0;
  for (; i + word_bits <= known; i += word_bits) {
    uint32_t bits = mask[i / word_bits];
    if (bits == 0) {  // as most are, or all
      std::fill_n(out + i, word_bits, none);
    } else if (bits == ~uint32_t(0)) {
      std::memcpy(out + i, x + i, word_bits * sizeof(float));
    } else {
      for (int bit = 0; bit < word_bits; bit++) out[i + bit] = bits >> bit & 1 ? x[i + bit] : none;
    }
  }
  for (; i < known; i++) out[i] = mask[i / word_bits] >> i % word_bits & 1 ? x[i] : none;
  std::fill(out + known, out + m.width, none);
}

// How many numbers a mask leaves; where it is more than a few, not all are counted.
int64_t left_by(const uint32_t* mask, const Few& f) {
  int64_t whole = std::min(f.words, f.width / word_bits), count = 0;
  for (int64_t word = 0; word < whole && count <= most_of_few; word++) {
    count += __builtin_popcount(mask[word]);
  }
  if (f.width % word_bits != 0 && whole < f.words) {
    count += __builtin_popcount(mask[whole] & ((uint32_t(1) << f.width % word_bits) - 1));
  }
  return count;
}

void choose_of_row(const Few& f, int64_t number) {
  constexpr double faintest = 80;  // nats below the likeliest, beyond which none is drawn
  const uint32_t* mask = f.masks + number * f.words;
  const float* x = f.x + f.rows[number] * f.x_stride;
  int64_t count = left_by(mask, f), best = 0;
  f.chosen[number] = -1;
  if (count == 0 || count > most_of_few) return;
  int64_t ids[most_of_few];
  double weights[most_of_few], total = 0;
  int64_t n = 0;
  for (int64_t word = 0; n < count; word++) {
    for (uint32_t bits = mask[word]; bits != 0 && n < count; bits &= bits - 1) {
      ids[n++] = word * word_bits + __builtin_ctz(bits);
    }
  }
  for (int64_t i = 0; i < n; i++) {
    float value = x[ids[i]];
    if (value != value || value > x[ids[best]]) best = i;
    if (value != value) break;
  }
  float peak = f.peaks[number] = x[ids[best]];
  f.chosen[number] = ids[best];
  double temperature = f.temperature[number];
  if (temperature == 0 || peak - peak != 0) return;
  for (int64_t i = 0; i < n; i++) {
    double gap = (double(peak) - double(x[ids[i]])) / temperature;
    total += weights[i] = gap < faintest ? std::exp(-gap) : 0;
  }
  double aim = f.uniform[number] * total, reached = 0;
  for (int64_t i = 0; i < n; i++) {
    reached += weights[i];
    if (reached > aim) {
      f.chosen[number] = ids[i];
      return;
    }
  }
}

}  // namespace

void choose_of_few(const Few& few, int threads) {
  if (few.count * few.words < chosen_from) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t number = 0; number < few.count; number++) choose_of_row(few, number);
}

void mask(const Masked& masked, int threads) {
  if (masked.rows * masked.width < masked_from) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t row = 0; row < masked.rows; row++) mask_row(masked, row);
}

}  // namespace quire
