// Panels that several tiles of rows meet are decoded for all of them, once, where that is faster:
// into lines of bf16 or of floats, as they are multiplied.
#pragma once

#include "products/product_rows.hpp"
#include "products/tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

// What rows are multiplied by, whatever the weights are kept as.
constexpr Format decoded_format(Arithmetic how) {
  return how == Arithmetic::pairs ? Format::bfloat16 : Format::float32;
}

// Lines that a line's inputs become.
constexpr int decoded_lines(Arithmetic how, Format format) {
  return inputs_per_line(format) / inputs_per_line(decoded_format(how));
}

constexpr int64_t most_decoded_bytes = 1 << 18;  // half of a second cache, or less

int64_t decoded_panel_bytes(const Packed& w, Arithmetic how) {
  return w.units * inputs_per_unit(w.format) / inputs_per_line(decoded_format(how)) * line_bytes;
}

#if defined(__aarch64__)
constexpr bool decodes_before = false;
#else
constexpr bool decodes_before = !has_tiles;  // they decode into tiles of their own
#endif

// Whether decoding takes longer than reading what was decoded. bf16 becomes floats by shifting, and
// four bits become bf16 by looking them up.
constexpr bool is_decoded_before(Arithmetic how, Format format) {
  if (!decodes_before || how == Arithmetic::bytes) return false;
  if (how == Arithmetic::pairs) return bits_of(format) < 16 && bits_of(format) > 4;
  return format != Format::float32 && format != Format::bfloat16;
}

// And enough tiles meet each panel.
bool is_decoded_before(const Product& p, Arithmetic how) {
  return is_decoded_before(how, p.weight.format) && p.rows >= decoded_from &&
         of_many.panels * decoded_panel_bytes(p.weight, how) <= most_decoded_bytes;
}

#if !QUIRE_HAS_TILES
// Of scratch, by each thread.
int64_t decoded_bytes(const Product& p, Arithmetic how) {
  return is_decoded_before(p, how) ? of_many.panels * decoded_panel_bytes(p.weight, how) : 0;
}
#endif

// The panels at ``lines``, to ``out``; those at ``next`` are fetched meanwhile.
template <Arithmetic how, Format format>
__attribute__((noinline)) void decode_panels(const Packed& w, const char* lines, const char* next,
                                             char* out) {
  constexpr int low = low_lines(format), from_line = decoded_lines(how, format);
  const int64_t panel_bytes = w.panel_bytes();
  for (int panel = 0; panel < of_many.panels; panel++) {
    const Tile from{lines + panel * panel_bytes, 0, nullptr, 0, next + panel * panel_bytes, 0};
    for (int64_t u = 0; u < w.units; u++) {
      High<format, V> high(from, u);
      if (high_bits(format)) from.fetch<V>((u + 1) * lines_per_unit(format) - 1);
      for (int i = 0; i < low; i++, high.shift(), out += from_line * line_bytes) {
        int64_t l = u * lines_per_unit(format) + i;
        from.fetch<V>(l);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          U lanes = from.lanes(l, v);
#pragma GCC unroll 8
          for (int j = 0; j < from_line; j++) {
            char* to = out + j * line_bytes + v * (W * 4);
            if constexpr (how == Arithmetic::pairs) {
#if defined(__AVX512BF16__)
              write(to, decode_pairs<format>(lanes, high.lanes[v], j));
#endif
            } else {
              write(to, decode<format>(lanes, high.lanes[v], j));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
