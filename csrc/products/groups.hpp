// What the weights of a group of inputs are for W outputs.
#pragma once

#include "products/tiles.hpp"

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

// The same for P vectors of outputs side by side.
template <int P>
struct TileGroup {
  F scale[P], shift[P], offset[P];

  // With shifts, in tiles of many rows, by a function of its own: in each of them it would be
  // longer than all else there.
  __attribute__((always_inline)) void read(const Packed& w, int64_t groups, int64_t panel,
                                           int64_t group) {
    if (!w.needs_sums()) {
      bool factors = w.groups.factors_kind == Factors::bytes;
#pragma GCC unroll 16
      for (int v = 0; v < P; v++) {
        int64_t at = (panel + v / V) * groups + group, lane = v % V * W;
        scale[v] = load(w.groups.scales + (factors ? at / 16 : at) * panel_width + lane);
        if (factors) scale[v] *= load((const int8_t*)w.groups.factors + at * panel_width + lane);
      }
    } else if (P > of_many.panels * V) {
      read_all(w, panel, group);
    } else {
      read_apart(w, panel, group);
    }
  }

  __attribute__((always_inline)) void read_all(const Packed& w, int64_t panel, int64_t group) {
#pragma GCC unroll 16
    for (int v = 0; v < P; v++) {
      Group one(w, panel + v / V, group, v % V * W);
      scale[v] = one.scale, shift[v] = one.shift, offset[v] = one.offset;
    }
  }

  __attribute__((noinline)) void read_apart(const Packed& w, int64_t panel, int64_t group) {
    read_all(w, panel, group);
  }

  // Adds ``part`` of each row and vector to the sums of all groups. ``x_sums``: what the x of each
  // row add up to.
  template <int R, class Part>
  __attribute__((always_inline)) void add(const Packed& w, F (&total)[R][P], const float* x_sums,
                                          const Part& part) const {
    if (!w.needs_sums()) {
      add<false, false>(total, nullptr, part);
    } else if (!w.groups.offsets) {
      add<true, false>(total, x_sums, part);
    } else {
      add<true, true>(total, x_sums, part);
    }
  }

  // ``shifted``: codes have a shift; ``moved``: weights an offset.
  template <bool shifted, bool moved, int R, class Part>
  __attribute__((always_inline)) void add(F (&total)[R][P], const float* x_sums,
                                          const Part& part) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      F x_sum = shifted ? splat(x_sums[r]) : F{};
#pragma GCC unroll 16
      for (int v = 0; v < P; v++) {
        F sum = part(r, v);
        if (shifted) sum = fma(shift[v], x_sum, sum);
        sum = fma(sum, scale[v], total[r][v]);
        total[r][v] = moved ? fma(offset[v], x_sum, sum) : sum;
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA
