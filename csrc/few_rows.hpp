// Attention of a few query rows, as in decoding: each key and value is read from memory once and
// meets all rows of its KV head there. Work on several heads takes a chunk of one after that of
// another, so that memory is read in longer runs than a head's share of a block.
//
// Keys are transposed, so that they lie in the lanes of vectors, and a row's softmax runs over lanes.
// It is kept as a running maximum and sum, and what was gathered so far is scaled when the maximum
// grows (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include <type_traits>

#include "layout.hpp"
#include "units.hpp"

namespace quire::QUIRE_ISA {

template <class KV, class Units>
struct FewRows {
  typedef typename Units::Unit Unit;
  static constexpr int per_unit = Units::per_unit;
  static constexpr int vectors = registers == 32 ? 4 : 2;  // side by side, with four rows, in registers

  Context<KV> context;
  int64_t key_units;  // of a query or key, whole vectors
  // Of all heads: ``most_rows`` rows each.
  int64_t most_rows;
  Unit* queries[2];       // turned for the window, and for the sinks: [heads, rows, key_units]
  float* query_scale[2];  // [heads, rows]
  struct State {
    float* sums;   // [heads, rows, value_width]
    float* most;   // [heads, rows]
    float* total;  // [heads, rows]
  } segment, before;  // the one at hand, and all before it
  // Of the head at hand.
  Unit* keys;           // [key_units, chunk]
  Unit* values;         // [chunk / per_unit, value_width]
  float* scores;        // [rows, chunk]
  Unit* weights;        // [rows, chunk / per_unit], the scores' place where they are floats
  float* fade;          // [rows]
  float* weight_scale;  // [rows]

  FewRows(const Attend& a, int64_t rows, Dealer& dealer)
      : context(a, dealer), key_units(context.key_width / per_unit), most_rows(round_up(rows, 4)) {
    int64_t all = most_rows * a.num_kv_heads;
    for (auto& query : queries) query = dealer.take<Unit>(all * key_units);
    for (auto& scale : query_scale) scale = dealer.take<float>(all);
    for (State* state : {&segment, &before}) {
      state->sums = dealer.take<float>(all * context.value_width);
      state->most = dealer.take<float>(all);
      state->total = dealer.take<float>(all);
    }
    keys = dealer.take<Unit>(key_units * chunk);
    values = dealer.take<Unit>(chunk / per_unit * context.value_width);
    scores = dealer.take<float>(most_rows * chunk);
    weights = dealer.take<Unit>(most_rows * chunk / per_unit);
    if constexpr (std::is_same_v<Unit, float>) weights = scores;
    fade = dealer.take<float>(most_rows);
    weight_scale = dealer.take<float>(most_rows);
  }

  void run(const Work& work) {
    const Attend& a = context.a;
    int rows = work.tokens() * context.group, heads = work.item.heads;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    Chunk<KV> chunks[2];
    int64_t column = work.item.first_column;
    chunks[0].find(a, work, column);
    HeadChunk<KV> first(a, chunks[0], 0);
    for (int j = chunks[0].first; j < chunks[0].end; j++) fetch_row(first.key(j), a.key_dim);
    for (int head = 0; head < heads; head++) {
      prepare(work, rows, head, false);
      if (two) prepare(work, rows, head, true);
    }
    begin(rows, heads);
    int64_t done = 0;  // segments
    for (int turn = 0; chunks[turn].n; turn ^= 1) {
      column += chunks[turn].n;
      chunks[turn ^ 1].find(a, work, column);
      for (int head = 0; head < heads; head++) {
        HeadChunk<KV> now(a, chunks[turn], head);
        bool last = head + 1 == heads;
        HeadChunk<KV> next(a, chunks[turn ^ last], last ? 0 : head + 1);
        take(work, rows, head, now, next, two && chunks[turn].sinks);
      }
      bool more = chunks[turn ^ 1].n;
      if (more && chunks[turn ^ 1].segment == chunks[turn].segment) continue;
      end(work, rows, done++);
      if (more) begin(rows, heads);
    }
    if (work.item.groups) return;
    for (int head = 0; head < heads; head++) {
      for (int r = 0; r < rows; r++) {
        int64_t place = head * most_rows + r;
        finish_row(a, work.item.first_head + head, work.item.first_token, r, before.total[place],
                   before.sums + place * context.value_width);
      }
    }
  }

  void prepare(const Work& work, int rows, int head, bool for_sinks) {
    for (int r = 0; r < rows; r++) {
      int64_t place = head * most_rows + r;
      int query_head = (work.item.first_head + head) * context.group + r % context.group;
      context.read_query(work.token(r / context.group), query_head, for_sinks);
      query_scale[for_sinks][place] = Units::round(
          context.head, queries[for_sinks] + place * key_units, context.key_width);
    }
  }

  void begin(int rows, int heads) {
    for (int head = 0; head < heads; head++) {
      for (int64_t place = head * most_rows; place < head * most_rows + rows; place++) {
        segment.most[place] = nothing_seen;
        segment.total[place] = 0;
        __builtin_memset(segment.sums + place * context.value_width, 0,
                         context.value_width * sizeof(float));
      }
    }
  }

  // A segment is done: a part, or merged with those before.
  void end(const Work& work, int rows, int64_t done) {
    const Attend& a = context.a;
    if (!done && !work.item.groups) {
      State other = before;
      before = segment;
      segment = other;
      return;
    }
    for (int head = 0; head < work.item.heads; head++) {
      for (int r = 0; r < rows; r++) {
        int64_t place = head * most_rows + r, at = place * context.value_width;
        float most = segment.most[place], total = segment.total[place];
        if (work.item.groups) {
          write_part(a, work, work.item.first_head + head, done, r, rows, most, total,
                     segment.sums + at);
        } else {
          merge({before.most[place], before.total[place], before.sums + at}, most, total,
                segment.sums + at, a.value_dim);
        }
      }
    }
  }

  void take(const Work& work, int rows, int head, const HeadChunk<KV>& now,
            const HeadChunk<KV>& next, bool far) {
    int64_t place = head * most_rows;
    fetch_scales(next);
    read_keys(now, next);
    for (int r = 0; r < rows; r += 4) {
      const Unit* q = queries[far] + (place + r) * key_units;
      with_rows(rows - r, [&](auto n) { score<n.value>(q, scores + r * chunk); });
    }
    weigh(work, rows, now, place, query_scale[far] + place);
    read_values(now, next);
    for (int r = 0; r < rows; r += 4) {
      with_rows(rows - r, [&](auto n) { gather<n.value>(now.chunk, place, r); });
    }
  }

  template <class Body>
  QUIRE_INLINE void with_rows(int left, const Body& body) {
    switch (left) {
      case 1: return body(std::integral_constant<int, 1>{});
      case 2: return body(std::integral_constant<int, 2>{});
      case 3: return body(std::integral_constant<int, 3>{});
      default: return body(std::integral_constant<int, 4>{});
    }
  }

  static void fetch_row(const KV* row, int64_t n) {
    for (int64_t i = 0; i < n; i += 64 / sizeof(KV)) __builtin_prefetch(row + i, 0, 3);
  }
  void fetch_scales(const HeadChunk<KV>& next) const {
    const Attend& a = context.a;
    if (!a.key_scales || next.none()) return;
    for (int j = 0; j < chunk; j++) {
      if (j && next.row(j) % 16) continue;  // on a line that was fetched, or soon will be
      __builtin_prefetch(a.key_scales + next.row(j));
      __builtin_prefetch(a.value_scales + next.row(j));
    }
  }

  // A chunk's keys into the lanes.
  void read_keys(const HeadChunk<KV>& now, const HeadChunk<KV>& next) {
    const int64_t dim = context.a.key_dim, step = W * per_unit;
    for (int j = 0; j < chunk; j += W) {
      if (j + W <= now.chunk.first || j >= now.chunk.end) continue;  // nobody sees their scores
      for (int64_t i = 0; i < dim; i += step) {
        F rows[W];
#pragma GCC unroll 16
        for (int k = 0; k < W; k++) rows[k] = some_key<Units>(now.key(j + k) + i, dim - i);
        transpose(rows);
        Unit* out = keys + i / per_unit * chunk + j;
#pragma GCC unroll 16
        for (int k = 0; k < W; k++) write(out + k * chunk, rows[k]);
      }
    }
    if (next.none()) return;
    for (int j = next.chunk.first; j < next.chunk.end; j++) fetch_row(next.key(j), dim);
  }

  // Scores become weights; maxima, sums and fades follow.
  void weigh(const Work& work, int rows, const HeadChunk<KV>& now, int64_t place,
             const float* query_scale) {
    const Attend& a = context.a;
    float key_scale[chunk], value_scale[chunk];
    if (a.key_scales) {
      for (int j = 0; j < chunk; j++) {
        key_scale[j] = a.key_scales[now.row(j)];
        value_scale[j] = a.value_scales[now.row(j)];
      }
    }
    for (int r = 0; r < rows; r++) {
      float* s = scores + r * chunk;
      if (a.key_scales) {
        F scale = splat(query_scale[r]);
        for (int j = 0; j < chunk; j += W) store(s + j, load(s + j) * (load(key_scale + j) * scale));
      }
      if (a.softcap > 0) {
        for (int j = 0; j < chunk; j += W) store(s + j, tanh(load(s + j)) * (a.softcap * log2e));
      }
      int64_t token = work.position + r / context.group;
      int first = now.chunk.first_seen(a, token), last = now.chunk.end_seen(a, token);
      for (int j = 0; j < first; j++) s[j] = -__builtin_inff();
      for (int j = last; j < chunk; j++) s[j] = -__builtin_inff();
      F m = load(s);
      for (int j = W; j < chunk; j += W) m = maximum(load(s + j), m);
      float highest = lanes_max(m), &running = segment.most[place + r];
      highest = running > highest ? running : highest;
      fade[r] = exp2(splat(running - highest))[0];
      running = highest;
      F sum{};
      for (int j = 0; j < chunk; j += W) {
        F weight = Units::weight(load(s + j) - highest);
        sum += weight;
        store(s + j, a.value_scales ? weight * load(value_scale + j) : weight);
      }
      if constexpr (!std::is_same_v<Unit, float>) {
        weight_scale[r] = Units::round_weights(s, weights + r * (chunk / per_unit), chunk);
      }
      float& total = segment.total[place + r];
      total = fma(splat(total), splat(fade[r]), splat(lanes_sum(sum)))[0];
    }
  }

  // A chunk's values, column by column.
  void read_values(const HeadChunk<KV>& now, const HeadChunk<KV>& next) {
    const int64_t dim = context.a.value_dim;
    for (int j = now.chunk.first / per_unit; j * per_unit < now.chunk.end; j++) {
      const KV* one = now.value(j * per_unit);
      const KV* other = now.value(j * per_unit + per_unit - 1);
      Unit* out = values + j * context.value_width;
      int64_t i = 0;
      for (; i + W <= dim; i += W) write(out + i, Units::values(one + i, other + i));
      if (i < dim) write(out + i, some_values<Units>(one + i, other + i, dim - i));
    }
    if (next.none()) return;
    for (int j = next.chunk.first; j < next.chunk.end; j++) fetch_row(next.value(j), dim);
  }

  template <int Rows>
  void score(const Unit* q, float* out) {
    int64_t units = (context.a.key_dim + per_unit - 1) / per_unit;
    for (int j = 0; j < chunk; j += vectors * W) {
      typename Units::Sum sum[Rows][vectors] = {};
      add_products<Units>(sum, q, key_units, 1, keys + j, chunk, units);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(out + r * chunk + j + v * W, Units::as_float(sum[r][v]));
      }
    }
  }

  // sums[row] = sums[row] * fade[row] + weighted values.
  template <int Rows>
  void gather(const Chunk<KV>& columns, int64_t place, int r) {
    const int64_t dim = context.a.value_dim, most = vectors * W;
    float* out = segment.sums + (place + r) * context.value_width;
    int64_t i = 0;
    for (; i + most <= dim; i += most) gather<Rows, vectors>(columns, r, i, out);
    for (; i < dim; i += W) gather<Rows, 1>(columns, r, i, out);
  }

  template <int Rows, int Vectors>
  void gather(const Chunk<KV>& columns, int r, int64_t i, float* out) {
    int64_t first = columns.first / per_unit, end = (columns.end + per_unit - 1) / per_unit;
    typename Units::Sum sum[Rows][Vectors] = {};
    add_products<Units>(sum, weights + r * (chunk / per_unit) + first, chunk / per_unit, 1,
                        values + first * context.value_width + i, context.value_width, end - first);
#pragma GCC unroll 4
    for (int k = 0; k < Rows; k++) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        float* to = out + k * context.value_width + i + v * W;
        F found = Units::as_float(sum[k][v]);
        if constexpr (Units::scaled) found *= weight_scale[r + k];
        store(to, fma(load(to), fade[r + k], found));
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA
