// The rows of a product: how they are multiplied, what they become before that, and where the sums
// go.
#pragma once

#include "products/bytes.hpp"
#include "products/groups.hpp"
#include "registers/heads.hpp"
#include "registers/tile_registers.hpp"

namespace quire::QUIRE_ISA {

// How rows are multiplied.
enum class Arithmetic { floats, pairs, bytes };

// Rows as the tiles read them.
struct Rows {
  char* data;
  int64_t row_bytes;
  // [sections, all rows and more]: a tile finds those of its rows side by side.
  float* scales;      // of bytes
  int32_t* starts;    // of bytes: from where on their products are added
  float* group_sums;  // where they are needed
  int64_t all;
  bool copied;        // otherwise ``data`` is x itself
  int64_t scratch_bytes;

  __attribute__((always_inline)) int64_t at(int64_t row, int64_t section) const {
    return section * all + row;
  }
};

// Rows from ``first`` to ``last`` as they are multiplied. This and what follows are compiled once,
// for all kinds of arithmetic, heights and forms.
void prepare(const Product& p, Arithmetic how, const Rows& rows, int64_t first, int64_t last);

// The sums of some rows, so many vectors of outputs from ``panel`` on, times their scale plus their
// bias, to where they go.
void give(const Product& p, int64_t row, int64_t rows, int64_t panel, int vectors, const F* sums);

namespace {

Arithmetic arithmetic(const Product& p) {
  if (p.weight.rounds_rows) return Arithmetic::bytes;
  bool pairs = p.dtype == DType::bfloat16 && has_pairs(p.weight.format);
  return pairs ? Arithmetic::pairs : Arithmetic::floats;
}

// Those of bf16 and of bytes are multiplied by tile registers, where there are any.
constexpr bool on_tiles(Arithmetic how) { return has_tiles && how != Arithmetic::floats; }

constexpr int64_t input_bytes(Arithmetic how) {
  return how == Arithmetic::floats ? 4 : how == Arithmetic::pairs ? 2 : 1;
}

// Whose sums are scaled each on their own: the groups, or all inputs.
QUIRE_INLINE int64_t num_sections(const Packed& w) {
  return in_groups(w.format) ? w.num_groups() : 1;
}

// Whether rows are multiplied as they are. Tiles read 64 bytes of a row at a time.
bool read_in_place(const Product& p, Arithmetic how) {
  const Packed& w = p.weight;
  if (how == Arithmetic::floats)
    return p.dtype == DType::float32 && w.inputs % inputs_per_unit(w.format) == 0;
  if (how == Arithmetic::bytes) return false;
  int64_t per_unit = inputs_per_unit(w.format),
          at_once = on_tiles(how) ? tile_row_bytes / 2 : per_unit;
  bool whole_groups = !in_groups(w.format) || w.groups.units * per_unit % at_once == 0;
  return w.inputs % at_once == 0 && whole_groups;
}

Rows place_rows(const Product& p, Arithmetic how, bool copied) {
  const Packed& w = p.weight;
  int64_t size = input_bytes(how);
  Rows rows{};
  rows.copied = copied;
  // Of many rows, sections lie so far apart that they do not crowd a few sets of the first cache.
  rows.all = p.rows < 64 ? p.rows : round_up(p.rows, 32) + 16;
  char* next = p.scratch;
  if (!rows.copied) {
    rows.data = (char*)p.x;
    rows.row_bytes = p.x_stride * size;
  } else {
    rows.data = next;
    // The last group's tile may begin anywhere, and reads zeros beyond it.
    rows.row_bytes = round_up(w.units * inputs_per_unit(w.format) * size, 64) +
                     (on_tiles(how) ? tile_row_bytes : 0);
    next += p.rows * rows.row_bytes;
  }
  if (how == Arithmetic::bytes) {
    rows.scales = (float*)next;
    next += rows.all * num_sections(w) * 4;
    rows.starts = (int32_t*)next;
    next += rows.all * num_sections(w) * 4;
  }
  if (w.needs_sums()) {
    rows.group_sums = (float*)next;
    next += rows.all * w.num_groups() * 4;
  }
  rows.scratch_bytes = round_up(next - p.scratch, 64);
  return rows;
}

Rows place_rows(const Product& p, Arithmetic how) {
  return place_rows(p, how, !read_in_place(p, how));
}

// The rows from ``first`` on.
Rows rows_from(Rows rows, int64_t first) {
  rows.data += first * rows.row_bytes;
  if (rows.scales) rows.scales += first, rows.starts += first;
  if (rows.group_sums) rows.group_sums += first;
  return rows;
}

// A prepared row once more, in memory for copies.
void copy_row(const Rows& from, int64_t source, const Rows& to, int64_t row, const Packed& w) {
  int64_t bytes = from.row_bytes < to.row_bytes ? from.row_bytes : to.row_bytes;
  __builtin_memcpy(to.data + row * to.row_bytes, from.data + source * from.row_bytes, bytes);
  for (int64_t s = 0; s < num_sections(w); s++) {
    int64_t out = to.at(row, s), in = from.at(source, s);
    if (to.scales) to.scales[out] = from.scales[in], to.starts[out] = from.starts[in];
    if (to.group_sums) to.group_sums[out] = from.group_sums[in];
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
