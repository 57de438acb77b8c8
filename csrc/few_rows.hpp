// Attention of a few query rows, as in decoding: each key and value is read from memory once, in
// the pool's own type, and meets all rows of its KV head there. Work on several heads takes a chunk
// of one after that of another, so that memory is read in longer runs than a head's share of a block.
//
// The softmax is kept as a running maximum and sum, and what was gathered so far is scaled when
// the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include <type_traits>

#include "few_products.hpp"

namespace quire::QUIRE_ISA {

template <class KV, class Products>
struct FewRows {
  typedef typename Products::Query Query;
  typedef typename Products::Weight Weight;

  Context<KV> context;
  // Of all heads: ``most_rows`` rows each.
  int64_t most_rows;
  Query* queries[2];      // turned for the window, and for the sinks: [heads, rows, key_width]
  float* query_scale[2];  // [heads, rows]
  float* sums;            // [heads, rows, value_width]
  float* most;            // [heads, rows] running maxima
  float* total;           // [heads, rows] running sums
  // Of the head at hand.
  float* scores;        // [rows, chunk]
  Weight* weights;      // [rows, chunk], the scores' place where they are floats
  float* fade;          // [rows]
  float* weight_scale;  // [rows]

  FewRows(const Attend& a, int64_t rows, Dealer& dealer)
      : context(a, dealer), most_rows(round_up(rows, 4)) {
    int64_t all = most_rows * a.num_kv_heads;
    for (auto& query : queries) query = dealer.take<Query>(all * context.key_width);
    for (auto& scale : query_scale) scale = dealer.take<float>(all);
    sums = dealer.take<float>(all * context.value_width);
    most = dealer.take<float>(all);
    total = dealer.take<float>(all);
    scores = dealer.take<float>(most_rows * chunk);
    weights = dealer.take<Weight>(most_rows * chunk);
    if constexpr (std::is_same_v<Weight, float>) weights = scores;
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
    for (int j = 0; j < first.n(); j++) fetch_row(first.key(j), a.key_dim);
    for (int head = 0; head < heads; head++) {
      prepare(work, rows, head, false);
      if (two) prepare(work, rows, head, true);
    }
    for (int turn = 0; chunks[turn].n; turn ^= 1) {
      column += chunks[turn].n;
      chunks[turn ^ 1].find(a, work, column);
      for (int head = 0; head < heads; head++) {
        HeadChunk<KV> now(a, chunks[turn], head);
        bool last = head + 1 == heads;
        HeadChunk<KV> next(a, chunks[turn ^ last], last ? 0 : head + 1);
        take(work, rows, head, now, next, two && chunks[turn].sinks);
      }
    }
    for (int head = 0; head < heads; head++) {
      for (int r = 0; r < rows; r++) {
        int64_t place = head * most_rows + r;
        float* row = sums + place * context.value_width;
#if defined(__AVX2__)
        if constexpr (Products::pairs) in_order(row, context.value_width);
#endif
        finish_row(a, work, work.item.first_head + head, r, most[place], total[place], row);
      }
    }
  }

  void prepare(const Work& work, int rows, int head, bool for_sinks) {
    for (int r = 0; r < rows; r++) {
      int64_t place = head * most_rows + r;
      int query_head = (work.item.first_head + head) * context.group + r % context.group;
      context.read_query(work.token(r / context.group), query_head, for_sinks);
      Query* out = queries[for_sinks] + place * context.key_width;
      query_scale[for_sinks][place] = Products::round(context.head, out, context.key_width);
      most[place] = nothing_seen;
      total[place] = 0;
      __builtin_memset(sums + place * context.value_width, 0, context.value_width * sizeof(float));
    }
  }

  void take(const Work& work, int rows, int head, const HeadChunk<KV>& now,
            const HeadChunk<KV>& next, bool far) {
    const Attend& a = context.a;
    int64_t place = head * most_rows;
    if (a.key_scales) {
      for (int j = 0; j < next.n(); j++) {
        if (j && next.row(j) % 16) continue;  // on a line that was fetched, or soon will be
        __builtin_prefetch(a.key_scales + next.row(j));
        __builtin_prefetch(a.value_scales + next.row(j));
      }
    }
    for (int r = 0; r < rows; r += 4) {
      const Query* q = queries[far] + (place + r) * context.key_width;
      float* s = scores + r * chunk;
      switch (rows - r) {
        case 1: score<Products, 1>(now, next, a.key_dim, q, context.key_width, s); break;
        case 2: score<Products, 2>(now, next, a.key_dim, q, context.key_width, s); break;
        case 3: score<Products, 3>(now, next, a.key_dim, q, context.key_width, s); break;
        default: score<Products, 4>(now, next, a.key_dim, q, context.key_width, s);
      }
    }
    weigh(work, rows, now, place, query_scale[far] + place);
    for (int r = 0; r < rows; r += 4) {
      const Weight* w = weights + r * chunk;
      const float* c = weight_scale + r;
      float* s = sums + (place + r) * context.value_width;
      const HeadChunk<KV>* ahead = r || !next.n() ? nullptr : &next;
      switch (rows - r) {
        case 1: gather_all<Products, 1>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        case 2: gather_all<Products, 2>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        case 3: gather_all<Products, 3>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        default: gather_all<Products, 4>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width);
      }
    }
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
    int end = round_up(now.n(), W);
    for (int r = 0; r < rows; r++) {
      float* s = scores + r * chunk;
      if (a.key_scales) {
        F scale = splat(query_scale[r]);
        for (int j = 0; j < end; j += W) store(s + j, load(s + j) * (load(key_scale + j) * scale));
      }
      if (a.softcap > 0) {
        for (int j = 0; j < end; j += W) store(s + j, tanh(load(s + j)) * (a.softcap * log2e));
      }
      int64_t token = work.position + r / context.group;
      int first = now.chunk.first_seen(a, token), last = now.chunk.end_seen(a, token);
      for (int j = 0; j < first; j++) s[j] = -__builtin_inff();
      for (int j = last; j < end; j++) s[j] = -__builtin_inff();
      F m = load(s);
      for (int j = W; j < end; j += W) m = maximum(load(s + j), m);
      float highest = lanes_max(m);
      float& running = most[place + r];
      highest = running > highest ? running : highest;
      fade[r] = exp2(splat(running - highest))[0];
      running = highest;
      F sum{};
      for (int j = 0; j < end; j += W) {
        F weight = exp2(load(s + j) - highest);
        sum += weight;
        store(s + j, a.value_scales ? weight * load(value_scale + j) : weight);
      }
      if constexpr (!std::is_same_v<Weight, float>) {
        weight_scale[r] = Products::round(s, weights + r * chunk, end);
      }
      float& sum_so_far = total[place + r];
      sum_so_far = sum_so_far * fade[r] + lanes_sum(sum);
    }
  }
};

}  // namespace quire::QUIRE_ISA
