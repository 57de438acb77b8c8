// How new keys and values are put into a pool.
#pragma once

#include "attention/layout.hpp"

namespace quire::QUIRE_ISA {

// Of a pool's kind of numbers.
template <class KV>
struct Storing {
  const Context& context;
  const Attend& a;
  float* head;   // the context's
  KV* stored;    // one head as the pool has it
  float* lanes;  // [key_dim, W], keys that are rounded together

  Storing(const Context& context, Dealer& dealer)
      : context(context), a(context.a), head(context.head) {
    const bool keys = context.key_width > context.value_width;
    stored = dealer.take<KV>(keys ? context.key_width : context.value_width);
    lanes = dealer.take<float>(context.centred() ? a.key_dim * W : 0);
  }

  // Tokens whose keys are rounded together.
  int together() const { return bits<KV> == 4 && context.centred() ? W : 1; }

  // Put new keys and values of one head into the pool, of at most so many tokens.
  void store_tokens(int64_t first, int64_t last, int h) const {
    if constexpr (bits<KV> == 4) {
      if (context.centred()) return store_together(first, last, h);
    }
    context.read_key(first, h);
    put(first, h, store_row(head, stored, a.key_dim), 0);
  }

  void store_together(int64_t first, int64_t last, int h) const {
    const int64_t n = a.key_dim, fine = fine_numbers(a);
    bool is_first[W];
    F scales{};
    for (int64_t lane = 0; lane < last - first; lane++) {
      is_first[lane] = context.read_key(first + lane, h);
      scales[lane] = coarse(best_steps(head, n, fine).scale);
      for (int64_t i = 0; i < n; i++) lanes[i * W + lane] = head[i];
    }
    const float* shares = a.centring.shares + h * n * round_up(n, 16);
    round_sharing(lanes, n, key_run(a), shares, fine, scales);
    for (int64_t lane = 0; lane < last - first; lane++) {
      for (int64_t i = 0; i < n; i++)
        stored[i].code = __builtin_bit_cast(uint32_t, lanes[i * W + lane]);
      put(first + lane, h, is_first[lane] ? -scales[lane] : scales[lane], take_fine_bits());
    }
  }

  // Put the key in ``stored``, and the token's value, into the pool.
  void put(int64_t token, int h, float scale, uint32_t fine) const {
    int64_t slot = a.tables.slots[token], n = a.block_size;
    int64_t row = slot / n * a.block_rows + h * n + slot % n;
    if (a.key_scales) a.key_scales[row] = with_bits(scale, fine);
    put_key(row, slot % n);
    if (!a.values) return;
    widen(a.dtype, a.value.data, token * a.value.stride + int64_t(h) * a.value_dim, head,
          a.value_dim);
    if (context.value_norm.used) normalise(context.value_norm, head, a.value_dim);
    if (is_spread(a.kv_dtype)) spread(head, a.value_dim, run_of(a, a.value_dim));
    scale = store_row(head, stored, a.value_dim);
    if (a.value_scales) a.value_scales[row] = with_bits(scale, fine >> 16);
    put_value(row, slot % n);
  }

  // The fifth bits of the key in ``stored``, which it has no longer then.
  uint32_t take_fine_bits() const {
    uint32_t found = 0;
    if constexpr (bits<KV> == 4) {
      for (int64_t i = 0; i < fine_numbers(a); i++) {
        found |= uint32_t(stored[i].code >> 4) << (i % 8 / 2 * 4 + i / 8 + i % 2 * 16);
        stored[i].code &= 15;
      }
    }
    return found;
  }

  // A scale as it lies in the pool: of centred keys, and their values, it has a half of a word.
  float with_bits(float scale, uint32_t fine) const {
    if (!context.centred()) return scale;
    uint32_t word = __builtin_bit_cast(uint32_t, coarse(scale)) & 0xffff0000u;
    return __builtin_bit_cast(float, word | (fine & 0xffffu));
  }

  // ``place``: in the tile.
  void put_key(int64_t row, int64_t place) const {
    char* keys = (char*)a.keys;
    const int64_t size = bytes_of<KV>(a.key_dim);
    const void* from = stored;
    if constexpr (bits<KV> == 4) {
      uint16_t* halves = (uint16_t*)head;
      for (int64_t i = 0; i < a.key_dim / 4; i++)
        halves[i] = half_word(stored + i / 2 * 8 + i % 2, 2);
      from = halves;
    }
    if (!in_panels(a)) {
      __builtin_memcpy(keys + row * size, from, size);
      return;
    }
    const int64_t lane = place % panel;
    uint32_t* out = (uint32_t*)(keys + (row - lane) * size) + lane;
    for (int64_t c = 0; c < size / 4; c++) out[c * panel] = ((const uint32_t*)from)[c];
  }

  void put_value(int64_t row, int64_t place) const {
    typedef Cell<KV> Own;
    const int64_t cells = bytes_of<KV>(a.value_dim) / sizeof(Own);
    const void* from = stored;
    if constexpr (bits<KV> == 4) {
      uint16_t* halves = (uint16_t*)head;
      for (int64_t l = 0; l < cells; l++) halves[l] = half_word(stored + l, cells);
      from = halves;
    }
    Own* values = (Own*)a.values;
    if (!in_panels(a) || sizeof(Own) == 4) {
      __builtin_memcpy(values + row * cells, from, cells * sizeof(Own));
      return;
    }
    const int64_t lane = place % 2;
    Own* out = values + (row - lane) * cells + lane;
    for (int64_t i = 0; i < cells; i++) out[2 * i] = ((const Own*)from)[i];
  }
};

}  // namespace quire::QUIRE_ISA
