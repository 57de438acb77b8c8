// What the weights of a group of inputs are for W outputs.
#pragma once

#include "products/products.hpp"
#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

// The codes less half of all codes, plus ``shift``, times ``scale``, plus ``offset``.
struct Group {
  F scale, shift{}, offset{};
  bool has_shift, has_offset;

  // Of a panel's group, W outputs from ``lane`` on.
  __attribute__((always_inline)) Group(const Packed& w, int64_t panel, int64_t group, int lane)
      : has_shift(w.needs_sums()), has_offset(w.groups.offsets) {
    const Groups& g = w.groups;
    int64_t at = panel * w.num_groups() + group;
    switch (g.factors_kind) {
      case Factors::none: read_numbers(g, at * panel_width + lane); break;
      case Factors::bytes:
        read_numbers(g, at / 16 * panel_width + lane);
        multiply_by_bytes(g.factors + at * panel_width * (has_offset ? 2 : 1) + lane);
        break;
      case Factors::sixes:
        read_numbers(g, at / 8 * panel_width + lane);
        multiply_by_sixes(g.factors + at / 8 * 3 * line_bytes + lane * 4, at % 8);
    }
    if (!has_shift) return;
    shift = splat(float(1 << (bits_of(w.format) - 1)));
    if (g.zeros) shift -= __builtin_convertvector(widen(g.zeros + at * panel_width + lane), F);
  }

  // ``total`` plus the group's part of a sum, whose x add up to ``*x_sum``.
  __attribute__((always_inline)) F add(F total, F part, const float* x_sum) const {
    if (has_shift) part = fma(shift, *x_sum, part);
    total = fma(part, scale, total);
    return has_offset ? fma(offset, *x_sum, total) : total;
  }

 private:
  __attribute__((always_inline)) static I widen(const uint8_t* p) {
    typedef uint8_t U8 __attribute__((vector_size(W)));
    return __builtin_convertvector(read<U8>(p), I);
  }

  __attribute__((always_inline)) void read_numbers(const Groups& g, int64_t at) {
    scale = load(g.scales + at);
    if (has_offset) offset = load(g.offsets + at);
  }

  __attribute__((always_inline)) void multiply_by_bytes(const char* factors) {
    scale *= load((const int8_t*)factors);
    if (has_offset) offset *= load((const int8_t*)factors + panel_width);
  }

  __attribute__((always_inline)) void multiply_by_sixes(const char* lines, int g) {
    U scales = read<U>(lines), offsets = read<U>(lines + line_bytes);
    U high = read<U>(lines + 2 * line_bytes) >> 2 * g;
    U of_scale = (scales >> 4 * g & 15u) | (high & 3u) << 4;
    U of_offset = (offsets >> 4 * g & 15u) | (high >> 12 & 0x30u);
    scale *= __builtin_convertvector((I)of_scale, F);
    offset *= __builtin_convertvector((I)of_offset, F);
  }
};

}  // namespace quire::QUIRE_ISA
