// Attention of a few query rows, as in decoding: each key and value is read from memory once, in
// the pool's own type, and meets all rows of its KV head there.
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
  Query* queries[2];  // turned for the window, and for the sinks: [rows, key_width]
  float* scores;      // [rows, chunk]
  Weight* weights;    // [rows, chunk], the scores' place where they are floats
  float* sums;        // [rows, value_width]
  float* most;        // [rows] running maxima
  float* total;       // [rows] running sums
  float* fade;        // [rows]
  float* query_scale[2];  // [rows], as queries
  float* weight_scale;    // [rows]

  FewRows(const Attend& a, int64_t rows, Dealer& dealer) : context(a, dealer) {
    rows = round_up(rows, 4);
    for (auto& query : queries) query = dealer.take<Query>(rows * context.key_width);
    scores = dealer.take<float>(rows * chunk);
    weights = dealer.take<Weight>(rows * chunk);
    if constexpr (std::is_same_v<Weight, float>) weights = scores;
    sums = dealer.take<float>(rows * context.value_width);
    most = dealer.take<float>(rows);
    total = dealer.take<float>(rows);
    fade = dealer.take<float>(rows);
    for (auto& scale : query_scale) scale = dealer.take<float>(rows);
    weight_scale = dealer.take<float>(rows);
  }

  void run(const Work& work) {
    const Attend& a = context.a;
    int rows = work.tokens() * context.group;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    prepare(work, rows, false);
    if (two) prepare(work, rows, true);
    for (int r = 0; r < rows; r++) {
      most[r] = nothing_seen;
      total[r] = 0;
    }
    __builtin_memset(sums, 0, rows * context.value_width * sizeof(float));
    Chunk<KV> chunks[2];
    int64_t column = work.item.first_column;
    chunks[0].find(a, work, column);
    for (int turn = 0; chunks[turn].n; turn ^= 1) {
      column += chunks[turn].n;
      chunks[turn ^ 1].find(a, work, column);
      take(work, rows, chunks[turn], chunks[turn ^ 1], two && chunks[turn].sinks);
    }
    for (int r = 0; r < rows; r++) {
      float* row = sums + r * context.value_width;
#if defined(__AVX2__)
      if constexpr (Products::pairs) in_order(row, context.value_width);
#endif
      finish_row(context, work, r, most[r], total[r], row);
    }
  }

  void prepare(const Work& work, int rows, bool for_sinks) {
    for (int r = 0; r < rows; r++) {
      context.read_query(work.item.first_token + r / context.group,
                         work.h * context.group + r % context.group, for_sinks);
      Query* out = queries[for_sinks] + r * context.key_width;
      query_scale[for_sinks][r] = Products::round(context.head, out, context.key_width);
    }
  }

  void take(const Work& work, int rows, const Chunk<KV>& now, const Chunk<KV>& next,
            bool far) {
    const Attend& a = context.a;
    const Query* query = queries[far];
    if (a.key_scales) {
      for (int j = 0; j < next.n; j++) {
        if (j && next.rows[j] % 16) continue;  // on a line that was fetched, or soon will be
        __builtin_prefetch(a.key_scales + next.rows[j]);
        __builtin_prefetch(a.value_scales + next.rows[j]);
      }
    }
    for (int r = 0; r < rows; r += 4) {
      const Query* q = query + r * context.key_width;
      float* s = scores + r * chunk;
      switch (rows - r) {
        case 1: score<Products, 1>(now, next, a.key_dim, q, context.key_width, s); break;
        case 2: score<Products, 2>(now, next, a.key_dim, q, context.key_width, s); break;
        case 3: score<Products, 3>(now, next, a.key_dim, q, context.key_width, s); break;
        default: score<Products, 4>(now, next, a.key_dim, q, context.key_width, s);
      }
    }
    weigh(work, rows, now, query_scale[far]);
    for (int r = 0; r < rows; r += 4) {
      const Weight* w = weights + r * chunk;
      const float* c = weight_scale + r;
      float* s = sums + r * context.value_width;
      const Chunk<KV>* ahead = r || !next.n ? nullptr : &next;
      switch (rows - r) {
        case 1: gather_all<Products, 1>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        case 2: gather_all<Products, 2>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        case 3: gather_all<Products, 3>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width); break;
        default: gather_all<Products, 4>(now, ahead, a.value_dim, w, c, fade + r, s, context.value_width);
      }
    }
  }

  // Scores become weights; maxima, sums and fades follow.
  void weigh(const Work& work, int rows, const Chunk<KV>& now, const float* query_scale) {
    const Attend& a = context.a;
    float key_scale[chunk], value_scale[chunk];
    if (a.key_scales) {
      for (int j = 0; j < chunk; j++) {
        key_scale[j] = a.key_scales[now.rows[j]];
        value_scale[j] = a.value_scales[now.rows[j]];
      }
    }
    int end = round_up(now.n, W);
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
      int first = now.first_seen(a, token), last = now.end_seen(a, token);
      for (int j = 0; j < first; j++) s[j] = -__builtin_inff();
      for (int j = last; j < end; j++) s[j] = -__builtin_inff();
      F m = load(s);
      for (int j = W; j < end; j += W) m = maximum(load(s + j), m);
      float highest = lanes_max(m);
      highest = most[r] > highest ? most[r] : highest;
      fade[r] = exp2(splat(most[r] - highest))[0];
      most[r] = highest;
      F sum{};
      for (int j = 0; j < end; j += W) {
        F weight = exp2(load(s + j) - highest);
        sum += weight;
        store(s + j, a.value_scales ? weight * load(value_scale + j) : weight);
      }
      if constexpr (!std::is_same_v<Weight, float>) {
        weight_scale[r] = Products::round(s, weights + r * chunk, end);
      }
      total[r] = total[r] * fade[r] + lanes_sum(sum);
    }
  }
};

}  // namespace quire::QUIRE_ISA
