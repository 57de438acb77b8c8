// Attention of many query rows, as in prefill: tiles of rows against chunks of keys.
//
// Query rows lie in the lanes of vectors, keys and dimensions do not. So one number of a key meets
// a whole vector of rows, the softmax runs without sums over lanes, and only the queries have to be
// transposed, once. The chunks follow FlashAttention-2 (Dao, 2023), the softmax is the running one
// of few_rows.hpp, and every sum is added in the order that it has there.
#pragma once

#include "layout.hpp"
#include "units.hpp"

namespace quire::QUIRE_ISA {

constexpr int tile_vectors = registers == 32 ? 4 : 2;
constexpr int tile_rows = tile_vectors * W;

// Keys, or dimensions, of one step with so many vectors of rows: their sums fit the registers, and
// are enough of them to keep products coming.
constexpr int keys_of_step(int vectors) {
  return registers < 32 || vectors > 2 ? 4 : vectors == 2 ? 8 : 16;
}
constexpr int most_keys = keys_of_step(1);

template <class KV, class Units>
struct ManyRows {
  typedef typename Units::Unit Unit;
  static constexpr int per_unit = Units::per_unit;

  Context<KV> context;
  int64_t key_units;  // of a query or key, whole vectors
  Unit* queries[2];   // [key_units][tile_rows], for the window and for the sinks
  float* query_scale[2];  // [tile_rows]
  Unit* row_units;    // [key_units]
  Unit* keys;         // [chunk][key_units]
  Unit* values;       // [chunk / per_unit][value_width]
  F* scores;          // [chunk][tile_vectors]
  Unit* weights;      // [chunk / per_unit][tile_rows]
  F* sums;            // [value_width][tile_vectors], of the segment at hand
  F* sums_before;     // and of those before
  float* row_out;     // [value_width]
  F most[tile_vectors], total[tile_vectors], fade[tile_vectors], weight_scale[tile_vectors];
  F most_before[tile_vectors], total_before[tile_vectors];
  I token[tile_vectors];  // position of each row

  ManyRows(const Attend& a, Dealer& dealer)
      : context(a, dealer), key_units(context.key_width / per_unit) {
    for (auto& query : queries) query = dealer.take<Unit>(key_units * tile_rows);
    for (auto& scale : query_scale) scale = dealer.take<float>(tile_rows);
    row_units = dealer.take<Unit>(key_units);
    keys = dealer.take<Unit>(chunk * key_units);
    values = dealer.take<Unit>(chunk / per_unit * context.value_width);
    scores = dealer.take<F>(chunk * tile_vectors);
    weights = dealer.take<Unit>(chunk / per_unit * tile_rows);
    sums = dealer.take<F>(context.value_width * tile_vectors);
    sums_before = dealer.take<F>(context.value_width * tile_vectors);
    row_out = dealer.take<float>(context.value_width);
  }

  void run(const Work& work) {
    int64_t rows = work.tokens() * context.group;
    for (int64_t first = 0; first < rows; first += tile_rows) {
      int n = rows - first < tile_rows ? rows - first : tile_rows;
      switch ((n + W - 1) / W) {
        case 1: run_tile<1>(work, first, n); break;
        case 2: run_tile<2>(work, first, n); break;
        case 3: run_tile<tile_vectors < 3 ? 1 : 3>(work, first, n); break;
        default: run_tile<tile_vectors < 4 ? 1 : 4>(work, first, n);
      }
    }
  }

  template <int Vectors>
  void run_tile(const Work& work, int64_t first, int n) {
    const Attend& a = context.a;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    prepare(work, first, n, Vectors * W, false);
    if (two) prepare(work, first, n, Vectors * W, true);
    Chunk<KV> now;
    int64_t segment = -1, done = 0;
    for (int64_t column = work.item.first_column;; column += now.n) {
      now.find(a, work, column);
      if (segment >= 0 && (!now.n || now.segment != segment)) {
        end<Vectors>(work, first, n, done++);
      }
      if (!now.n) break;
      if (now.segment != segment) begin<Vectors>();
      segment = now.segment;
      read(now);
      score<Vectors>(now, queries[two && now.sinks]);
      weigh<Vectors>(now, query_scale[two && now.sinks]);
      gather<Vectors>(now);
    }
    if (work.item.groups) return;
    for (int r = 0; r < n; r++) {
      take_row(sums_before, r);
      finish_row(a, work.item.first_head, work.item.first_token, first + r,
                 total_before[r / W][r % W], row_out);
    }
  }

  // Transpose the queries; rows beyond n repeat the last.
  void prepare(const Work& work, int64_t first, int n, int end, bool for_sinks) {
    Unit* out = queries[for_sinks];
    for (int r = 0; r < end; r++) {
      float& scale = query_scale[for_sinks][r];
      if (r < n) {
        int64_t token_row = (first + r) / context.group;
        int head = work.item.first_head * context.group + (first + r) % context.group;
        context.read_query(work.token(token_row), head, for_sinks);
        scale = Units::round(context.head, row_units, context.key_width);
        token[r / W][r % W] = work.position + token_row;
      } else {
        scale = query_scale[for_sinks][r - 1];
        token[r / W][r % W] = token[(r - 1) / W][(r - 1) % W];
      }
      for (int64_t u = 0; u < key_units; u++) out[u * tile_rows + r] = row_units[u];
    }
  }

  template <int Vectors>
  void begin() {
    for (int v = 0; v < Vectors; v++) {
      most[v] = splat(nothing_seen);
      total[v] = F{};
    }
    __builtin_memset(sums, 0, context.value_width * tile_rows * sizeof(float));
  }

  // A segment is done: a part, or merged with those before, as ``merge`` does row by row.
  template <int Vectors>
  void end(const Work& work, int64_t first, int n, int64_t done) {
    const Attend& a = context.a;
    if (work.item.groups) {
      int64_t rows = work.tokens() * context.group;
      for (int r = 0; r < n; r++) {
        take_row(sums, r);
        write_part(a, work, work.item.first_head, done, first + r, rows, most[r / W][r % W],
                   total[r / W][r % W], row_out);
      }
      return;
    }
    if (!done) {
      F* other = sums_before;
      sums_before = sums;
      sums = other;
      for (int v = 0; v < Vectors; v++) {
        most_before[v] = most[v];
        total_before[v] = total[v];
      }
      return;
    }
    F share[Vectors];
    for (int v = 0; v < Vectors; v++) {
      F highest = most_before[v] < most[v] ? most[v] : most_before[v];
      fade[v] = exp2(most_before[v] - highest);
      share[v] = exp2(most[v] - highest);
      most_before[v] = highest;
      total_before[v] = fma(total_before[v], fade[v], total[v] * share[v]);
    }
    for (int64_t d = 0; d < a.value_dim; d++) {
      for (int v = 0; v < Vectors; v++) {
        F& all = sums_before[d * tile_vectors + v];
        all = fma(all, fade[v], sums[d * tile_vectors + v] * share[v]);
      }
    }
  }

  void take_row(const F* from, int r) {
    const float* column = (const float*)from + r;
    for (int64_t d = 0; d < context.a.value_dim; d++) row_out[d] = column[d * tile_rows];
  }

  // Bring a chunk's keys and values into the units of the products.
  void read(const Chunk<KV>& now) {
    const int64_t key_dim = context.a.key_dim, value_dim = context.a.value_dim;
    constexpr int step = W * per_unit;
    for (int j = now.first / most_keys * most_keys; j < round_up(now.end, most_keys); j++) {
      Unit* out = keys + j * key_units;
      for (int64_t i = 0; i < key_dim; i += step, out += W) {
        write(out, some_key<Units>(now.keys[j] + i, key_dim - i));
      }
    }
    for (int j = now.first / per_unit; j * per_unit < now.end; j++) {
      const KV* one = now.values[j * per_unit];
      const KV* other = now.values[j * per_unit + per_unit - 1];  // has weight 0 where there is none
      Unit* out = values + j * context.value_width;
      for (int64_t i = 0; i < value_dim; i += W, out += W) {
        write(out, some_values<Units>(one + i, other + i, value_dim - i));
      }
    }
  }

  template <int Vectors>
  void score(const Chunk<KV>& now, const Unit* query) {
    constexpr int step = keys_of_step(Vectors);
    int64_t units = (context.a.key_dim + per_unit - 1) / per_unit;
    for (int j = now.first / step * step; j < now.end; j += step) {
      typename Units::Sum sum[step][Vectors] = {};
      add_products<Units>(sum, keys + j * key_units, key_units, 1, query, tile_rows, units);
#pragma GCC unroll 16
      for (int k = 0; k < step; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
          scores[(j + k) * tile_vectors + v] = Units::as_float(sum[k][v]);
        }
      }
    }
  }

  template <int Vectors>
  void gather(const Chunk<KV>& now) {
    constexpr int step = keys_of_step(Vectors);
    int64_t first = now.first / per_unit, units = (now.end + per_unit - 1) / per_unit - first;
    for (int64_t d = 0; d < context.a.value_dim; d += step) {
      typename Units::Sum sum[step][Vectors] = {};
      add_products<Units>(sum, values + first * context.value_width + d, 1, context.value_width,
                          weights + first * tile_rows, tile_rows, units);
#pragma GCC unroll 16
      for (int k = 0; k < step; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
          F found = Units::as_float(sum[k][v]);
          if constexpr (Units::scaled) found *= weight_scale[v];
          F& out = sums[(d + k) * tile_vectors + v];
          out = fma(out, fade[v], found);
        }
      }
    }
  }

  // Scores become weights; maxima, sums and fades follow.
  template <int Vectors>
  void weigh(const Chunk<KV>& now, const float* query_scale) {
    adjust<Vectors>(now, query_scale);
    F highest[Vectors];
    for (int v = 0; v < Vectors; v++) highest[v] = most[v];
    for (int j = now.first; j < now.end; j++) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        highest[v] = maximum(scores[j * tile_vectors + v], highest[v]);
      }
    }
    for (int v = 0; v < Vectors; v++) {
      fade[v] = exp2(most[v] - highest[v]);
      most[v] = highest[v];
      total[v] = fma(total[v], fade[v], weigh_lanes(now, v));
      round_weights(now, v);
    }
  }

  // Scores of a vector of rows become weights; their sums, in the order of ``lanes_sum``.
  F weigh_lanes(const Chunk<KV>& now, int v) {
    const float* scales = context.a.value_scales;
    F sum[W] = {};
    for (int j = now.first / W * W; j < now.end; j += W) {
#pragma GCC unroll 16
      for (int k = 0; k < W; k++) {
        F& s = scores[(j + k) * tile_vectors + v];
        if (j + k < now.first || j + k >= now.end) {
          s = F{};
          continue;
        }
        s = Units::weight(s - most[v]);
        sum[k] += s;
        if (scales) s *= scales[now.rows[j + k]];
      }
    }
#pragma GCC unroll 16
    for (int half = W / 2; half; half /= 2) {
#pragma GCC unroll 16
      for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    }
    return sum[0];
  }

  // As Units::round_weights does row by row.
  void round_weights(const Chunk<KV>& now, int v) {
    auto weight = [&](int j) { return scores[j * tile_vectors + v]; };
    F inverse{};
    if constexpr (Units::scaled) {
      F high{}, strange{};
      for (int j = now.first; j < now.end; j++) {
        high = maximum(maximum(weight(j), -weight(j)), high);
        strange += weight(j) - weight(j);
      }
      inverse = select(high > 0.0f, Units::most_whole / high, F{});
      weight_scale[v] = high / Units::most_whole + strange;
    }
    for (int j = now.first / per_unit * per_unit; j < now.end; j += per_unit) {
      Unit* out = weights + j / per_unit * tile_rows + v * W;
      if constexpr (per_unit == 1) {
        write(out, weight(j));
      } else if constexpr (Units::scaled) {
        U low = Units::whole(weight(j), inverse), high = Units::whole(weight(j + 1), inverse);
        write(out, (low & 0xffffu) | high << 16);
      } else {
        U low = Units::rounded(weight(j)), high = Units::rounded(weight(j + 1));
        write(out, low >> 16 | (high & 0xffff0000u));
      }
    }
  }

  // Scales, soft-capping, and -inf where a row does not see a column.
  template <int Vectors>
  void adjust(const Chunk<KV>& now, const float* query_scale) {
    const Attend& a = context.a;
    if (a.key_scales || a.softcap > 0) {
      for (int j = now.first; j < now.end; j++) {
        float key_scale = a.key_scales ? a.key_scales[now.rows[j]] : 1.0f;
        for (int v = 0; v < Vectors; v++) {
          F& s = scores[j * tile_vectors + v];
          if (a.key_scales) s *= key_scale * load(query_scale + v * W);
          if (a.softcap > 0) s = tanh(s) * (a.softcap * log2e);
        }
      }
    }
    int32_t window = a.window, behind = now.sinks ? window : 0;
    int64_t oldest = token[0][0] - behind, newest = token[Vectors - 1][W - 1];
    bool windowed = window && !now.sinks;
    bool whole = now.position + now.end - 1 <= oldest;
    if (whole && !(windowed && now.position + now.first <= newest - window)) return;
    for (int j = now.first; j < now.end; j++) {
      int32_t position = now.position + j;
      for (int v = 0; v < Vectors; v++) {
        F& s = scores[j * tile_vectors + v];
        I seen = token[v] - behind >= position;
        if (windowed) seen &= token[v] - window < position;
        s = select(seen, s, splat(-__builtin_inff()));
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA
