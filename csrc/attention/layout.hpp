// Where attention finds things: a sequence's keys and values in the pool, a thread's scratch.
#pragma once

#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {

constexpr int chunk = 64;  // columns between two updates of the running softmax; divides a segment
static_assert(chunk == centred_columns);
constexpr int panel = 16;  // columns whose keys lie side by side in the pool; divides a chunk
constexpr float nothing_seen = -1e30f;  // a maximum below every score, yet finite

// Memory is dealt in pieces of whole cache lines; without a base it is only counted.
struct Dealer {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t n) {
    T* piece = base ? (T*)(base + used) : nullptr;
    used += round_up(n * sizeof(T), 64);
    return piece;
  }
};

// Whether the pool has keys and values as they are multiplied (see interface.hpp). Otherwise its
// blocks or heads are not of that size, and they lie in rows.
QUIRE_INLINE bool in_panels(const Attend& a) {
  int64_t bits = a.kv_dtype == DType::float32 ? 32 : a.kv_dtype == DType::int8 ? 8 : 16;
  if (a.kv_dtype == DType::int4) bits = 4;
  return !a.in_rows && a.block_size % panel == 0 && a.key_dim * bits % 32 == 0;
}

// Runs that are spread of a head of n numbers: where values are a part of keys, these have as many.
QUIRE_INLINE int64_t run_of(const Attend& a, int64_t n) {
  if (!a.values) n = a.key_dim | a.value_dim;
  return n & -n;
}

// The same of keys and queries. Of those that are centred, runs are of numbers that count alike.
QUIRE_INLINE int64_t key_run(const Attend& a) {
  int64_t run = run_of(a, a.key_dim);
  return a.centring.factors && run > most_fine ? most_fine : run;
}

// How many numbers of a key have a fifth bit.
QUIRE_INLINE int64_t fine_numbers(const Attend& a) {
  if (!a.centring.factors) return 0;
  return a.key_dim < most_fine ? a.key_dim : most_fine;
}

// Where a token of the batch stands in its sequence.
QUIRE_INLINE int64_t position_of(const Attend& a, int64_t token) {
  int64_t s = 0;
  for (int64_t end = a.num_sequences; end - s > 1;) {
    int64_t middle = s + (end - s) / 2;
    (a.query_starts[middle] <= token ? s : end) = middle;
  }
  return a.context_lens[s] - (a.query_starts[s + 1] - token);
}

// What every piece of work of one call shares.
struct Context {
  const Attend& a;
  WideNorm query_norm, key_norm, value_norm;
  int group;                // query heads of a KV head
  float query_scale;        // folded into the queries: scores come as powers of two
  float* head;              // one head, or a row of output
  int64_t key_width, value_width;  // in whole vectors
  float* balance_of_query;  // [key_width]; see ``balance``
  float* balance_of_key;
  bool balanced = false;
  float* centre;  // [key_width]; see ``find_centre``
  float* ordered;  // [key_width]

  Context(const Attend& a, Dealer& dealer)
      : a(a), group(a.num_heads / a.num_kv_heads),
        key_width(round_up(a.key_dim, 2 * W)), value_width(round_up(a.value_dim, 2 * W)) {
    query_scale = a.softcap > 0 ? a.scale / a.softcap : a.scale * log2e;
    head = dealer.take<float>(key_width > value_width ? key_width : value_width);
    float* weights[6];
    for (int i = 0; i < 6; i++) weights[i] = dealer.take<float>(i < 4 ? key_width : value_width);
    balance_of_query = dealer.take<float>(key_width);
    balance_of_key = dealer.take<float>(key_width);
    centre = dealer.take<float>(key_width);
    ordered = dealer.take<float>(centred() ? key_width : 0);
    if (!dealer.base) return;
    __builtin_memset(centre, 0, key_width * sizeof(float));
    query_norm = widen(a.query_norm, a.key_dim, weights[0], weights[1]);
    key_norm = widen(a.key_norm, a.key_dim, weights[2], weights[3]);
    value_norm = widen(a.value_norm, a.value_dim, weights[4], weights[5]);
    balanced = is_spread(a.kv_dtype) && query_norm.weight && key_norm.weight && !centred() &&
               !a.shared;
    if (balanced) {
      balance(query_norm.weight, key_norm.weight, a.key_dim, a.rotation.cos ? a.rotation.half : 0,
              balance_of_query, balance_of_key);
    }
  }

  bool centred() const { return a.centring.factors; }

  // In ``centre`` what the keys of KV head h have in common, in the chunk of a position.
  void find_centre(int64_t position, int h) const {
    const Rotation& r = a.rotation;
    __builtin_memcpy(centre, a.centring.common + h * a.key_dim, a.key_dim * sizeof(float));
    if (!r.cos) return;
    int64_t turn = position / chunk * r.half;
    rotate(centre, a.centring.cos + turn, a.centring.sin + turn, r.half);
  }

  // Take the nearer centre from a key, in ``head``; whether that is the first key.
  bool take_centre(int64_t position, int h) const {
    find_centre(position, h);
    const float *first = a.centring.first + h * a.key_dim;
    const float *factors = a.centring.factors + h * a.key_dim;
    float from_common = 0, from_first = 0;
    for (int64_t i = 0; i < a.key_dim; i++) {
      float one = (head[i] - centre[i]) * factors[i], other = (head[i] - first[i]) * factors[i];
      from_common += one * one;
      from_first += other * other;
    }
    bool is_first = from_first < from_common;
    for (int64_t i = 0; i < a.key_dim; i++) head[i] -= is_first ? first[i] : centre[i];
    return is_first;
  }

  // What the centres are of a query's scores: that of ``centre``, or the first key's.
  float score_of_centre(const float* query) const {
    F sum{};
    for (int64_t i = 0; i < key_width; i += W) sum = fma(load(query + i), load(centre + i), sum);
    return lanes_sum(sum);
  }
  float score_of_first(const float* query, int h) const {
    float sum = 0;
    for (int64_t i = 0; i < a.key_dim; i++) sum += query[i] * a.centring.first[h * a.key_dim + i];
    return sum;
  }

  // Spread a query or a key, in ``head``, as a pool of few bits has keys of KV head h.
  void make_even(const float* factors, int h) const {
    if (!is_spread(a.kv_dtype)) return;
    bool used = balanced || centred();
    for (int64_t i = 0; used && i < a.key_dim; i++) head[i] *= factors[i];
    if (centred()) {
      const int32_t* order = a.centring.order + h * a.key_dim;
      for (int64_t i = 0; i < a.key_dim; i++) ordered[i] = head[order[i]];
      __builtin_memcpy(head, ordered, a.key_dim * sizeof(float));
    }
    spread(head, a.key_dim, key_run(a));
  }

  // A query head of a token, ready for products, in ``head``; zeros beyond it. ``turned``: where
  // there are centres, the same before it is made even, [key_width].
  void read_query(int64_t token, int h, bool for_sinks, float* turned) const {
    store(head + key_width - W, F{});
    store(head + key_width - 2 * W, F{});
    widen(a.dtype, a.query.data, token * a.query.stride + int64_t(h) * a.key_dim, head, a.key_dim);
    const Rotation& r = a.rotation;
    if (query_norm.used && !a.norm_turned) normalise(query_norm, head, a.key_dim);
    if (r.cos) {
      rotate(head, (for_sinks ? r.sink_cos : r.cos) + token * r.half,
             (for_sinks ? r.sink_sin : r.sin) + token * r.half, r.half);
    }
    if (query_norm.used && a.norm_turned) normalise(query_norm, head, a.key_dim);
    const float scale = r.query_scale ? query_scale * r.query_scale[token] : query_scale;
    for (int64_t i = 0; centred() && i < key_width; i += W)
      store(turned + i, load(head + i) * scale);
    make_even(centred() ? a.centring.query_factors + h / group * a.key_dim : balance_of_query,
              h / group);
    for (int64_t i = 0; i < key_width; i += W) store(head + i, load(head + i) * scale);
  }

  // A token's new key as it is rounded, in ``head``; whether it is taken for the first of its text.
  bool read_key(int64_t token, int h) const {
    widen(a.dtype, a.key.data, token * a.key.stride + int64_t(h) * a.key_dim, head, a.key_dim);
    const Rotation& r = a.rotation;
    if (key_norm.used && !a.norm_turned) normalise(key_norm, head, a.key_dim);
    if (r.cos) rotate(head, r.cos + token * r.half, r.sin + token * r.half, r.half);
    if (key_norm.used && a.norm_turned) normalise(key_norm, head, a.key_dim);
    bool is_first = centred() && take_centre(position_of(a, token), h);
    make_even(centred() ? a.centring.factors + h * a.key_dim : balance_of_key, h);
    return is_first;
  }

  // A scale as keys and values are multiplied with: of centred ones it has a half of its word.
  F own_scale(F stored) const { return centred() ? (F)((U)stored & 0xffff0000u) : stored; }
  float own_scale(float stored) const { return own_scale(splat(stored))[0]; }
};

// An item's tokens, KV heads and columns. Tokens of several sequences see all of its columns, as
// they do from the positions that neighbours of the first would have.
struct Work {
  const Item& item;
  int64_t position;  // of the first token
  Columns columns;
  const int64_t* table;
  int64_t dropped;
  const int32_t* order;

  Work(const Attend& a, const Item& item) : item(item), order(a.schedule.order) {
    int64_t s = item.sequence, ahead = a.query_starts[s + 1] - token(0);
    position = a.context_lens[s] - ahead;
    columns = columns_seen(position, position + item.last_token - item.first_token - 1, a.window,
                           a.sinks);
    table = a.tables.block_tables + s * a.tables.width;
    dropped = a.tables.num_dropped[s];
  }

  int64_t tokens() const { return item.last_token - item.first_token; }
  int64_t token(int64_t i) const { return order[item.first_token + i]; }  // its row of the batch
};

// Up to ``chunk`` neighbouring columns and where their rows are in the pool. Its lanes are
// positions: the first stands at a multiple of ``chunk``, and those that are not of the work are
// never seen.
struct Chunk {
  int n = 0;         // columns; 0: there is no such chunk
  int first, end;    // their lanes
  bool sinks;        // of the sinks, otherwise of the window
  int64_t position;  // of lane 0
  int64_t segment;   // which of those that the work sees
  int64_t rows[chunk];  // of the work's first head; the lanes of others have a neighbour's

  // The chunk that begins at ``column``; n = 0 if there is none.
  void find(const Attend& a, const Work& work, int64_t column) {
    const Columns& c = work.columns;
    sinks = column < c.sinks;
    int64_t left =
        (sinks && c.sinks < work.item.last_column ? c.sinks : work.item.last_column) - column;
    int64_t here = sinks ? column : column - c.sinks + c.start;
    first = here % quire::QUIRE_ISA::chunk;
    int64_t most = quire::QUIRE_ISA::chunk - first;
    n = left < most ? (left > 0 ? left : 0) : most;
    if (!n) return;
    end = first + n;
    position = here - first;
    segment = segment_of(c, column);
    int64_t size = a.block_size, block = here / size, offset = here % size;
    for (int i = first; a.tables.by_column && i < end; i++) {
      int64_t slot = work.table[position + i];
      rows[i] = slot / size * a.block_rows + work.item.first_head * size + slot % size;
    }
    for (int i = first; !a.tables.by_column && i < end; block++, offset = 0) {
      int64_t place = block < a.tables.num_sink_blocks ? block : block - work.dropped;
      int64_t row = work.table[place] * a.block_rows + work.item.first_head * size + offset;
      for (; i < end && offset < size; offset++) rows[i++] = row++;
    }
    for (int i = 0; i < first; i++) rows[i] = rows[first];
    for (int i = end; i < quire::QUIRE_ISA::chunk; i++) rows[i] = rows[end - 1];
  }

  // The first and the end of the lanes that a token at ``token`` sees.
  int first_seen(const Attend& a, int64_t token) const {
    return sinks || !a.window.length ? first : within(oldest_seen(a.window, token) - position);
  }
  int end_seen(const Attend& a, int64_t token) const {
    return within((sinks ? token - a.window.length : token) + 1 - position);
  }

  // To a row of scores, what the batch's row ``token`` has for their columns.
  void add_bias(const ColumnBias& all, int64_t token, float* scores) const {
    int lane = first;
    for (int64_t step = token * all.steps; step < (token + 1) * all.steps; step++) {
      int until = within(all.before[step] - position);
      for (; lane < until; lane++) scores[lane] += all.bias[step];
    }
  }

 private:
  int within(int64_t i) const { return i < first ? first : i < end ? i : end; }
};

// A row of a part: its maximum, its sum, and the sums of values.
QUIRE_INLINE float* part_row(const Attend& a, int h, int64_t row) {
  return a.parts + (h * a.schedule.part_rows + row) * part_floats(a.value_dim);
}

// The result of a row (token x query head of KV head h), counted from a place in the order of
// tokens.
QUIRE_INLINE void write_row(const Attend& a, int h, int64_t first_token, int64_t row,
                            const float* values) {
  int group = a.num_heads / a.num_kv_heads;
  int64_t token = a.schedule.order[first_token + row / group];
  int64_t head = int64_t(h) * group + row % group;
  narrow(a.dtype, values, a.out, (token * a.num_heads + head) * a.value_dim, a.value_dim);
}

// What is known of a row's softmax: the largest score, the sum of weights relative to it, and the
// weighted sum of values, [n] whole vectors.
struct Softmax {
  float& most;
  float& total;
  float* sums;
};

// Of all columns so far and of the next segment: of both.
QUIRE_INLINE void merge(const Softmax& all, float most, float total, const float* sums, int64_t n) {
  float highest = all.most < most ? most : all.most;
  F fade = exp2(splat(all.most - highest)), share = exp2(splat(most - highest));
  all.most = highest;
  all.total = fma(splat(all.total), fade, splat(total) * share)[0];
  for (int64_t i = 0; i < n; i += W) {
    store(all.sums + i, fma(load(all.sums + i), fade, load(sums + i) * share));
  }
}

// A row of a segment, one of the item's, to be merged later.
QUIRE_INLINE void write_part(const Attend& a, const Work& work, int h, int64_t segment, int64_t row,
                             int64_t rows, float most, float total, const float* sums) {
  float* out = part_row(a, h, work.item.part + segment * rows + row);
  out[0] = most;
  out[1] = total;
  __builtin_memcpy(out + 2, sums, round_up(a.value_dim, W) * sizeof(float));
}

// The result of a row, all of whose columns are merged.
QUIRE_INLINE void finish_row(const Attend& a, int h, int64_t first_token, int64_t row, float most,
                             float total, float* sums) {
  float factor = 1.0f / total;
  if (a.sink_logits) {
    int group = a.num_heads / a.num_kv_heads;
    float sink = a.sink_logits[h * group + row % group] * log2e;
    float highest = sink > most ? sink : most;
    factor = exp2(splat(most - highest))[0];
    factor /= fma(splat(total), splat(factor), exp2(splat(sink - highest)))[0];
  }
  for (int64_t i = 0; i < a.value_dim; i += W) store(sums + i, load(sums + i) * factor);
  if (is_spread(a.kv_dtype)) spread(sums, a.value_dim, run_of(a, a.value_dim));
  write_row(a, h, first_token, row, sums);
}

}  // namespace quire::QUIRE_ISA
