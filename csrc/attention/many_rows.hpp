// Attention of many query rows, as in prefill: tiles of rows against chunks of keys.
//
// Query rows lie in the lanes of vectors, keys and dimensions do not. So one number of a key meets
// a whole vector of rows, the softmax runs without sums over lanes, and only the queries have to be
// transposed, once. The chunks follow FlashAttention-2 (Dao, 2023), the softmax is the running one
// of few_rows.hpp, and every sum is added in the order that it has there.
#pragma once

#include "attention/reading.hpp"

namespace quire::QUIRE_ISA {

constexpr int lane_vectors = registers == 32 ? 3 : 2;
constexpr int lane_rows = lane_vectors * W;

// Keys, or dimensions, of one step with so many vectors of rows: their sums fit the registers, and
// are enough of them to keep products coming.
constexpr int keys_of_step(int vectors) {
  return registers < 32 ? 4 : vectors > 1 ? 8 : 16;
}

template <class Units>
struct ManyRows {
  typedef typename Units::Unit Unit;
  typedef typename Reader<Units>::Ahead Ahead;
  static constexpr int per_unit = Units::per_unit;
  // Whether scores are scaled before they are stored: keys of so many bits have no centres.
  const bool scaled_at_once;

  const Context& context;
  Reader<Units>& reader;
  int64_t key_units;  // of a query, whole vectors
  Unit* queries[2];   // [key_units][lane_rows], for the window and for the sinks
  float* query_scale[2];  // [lane_rows]
  float* turned[2];       // [lane_rows, key_width]: see Context::read_query
  float* of_first[2];     // [lane_rows]: scores of the first key
  float* of_centre;       // [lane_rows]: of what the keys of the chunk at hand have in common
  Unit* row_units;    // [key_units]
  F* scores;          // [chunk][lane_vectors]
  Unit* weights;      // [chunk / per_unit][lane_rows], in the place of scores that are done with
  F* sums;            // [value_width][lane_vectors], of the segment at hand
  F* sums_before;     // and of those before
  float* rows_out;    // [W, value_width]
  F most[lane_vectors], total[lane_vectors], fade[lane_vectors], weight_scale[lane_vectors];
  F most_before[lane_vectors], total_before[lane_vectors];
  I token[lane_vectors];  // position of each row
  I* bias_before;         // [steps][lane_vectors], as ColumnBias has them, of each row
  F* bias;
  int64_t biased;         // columns to which any row has something added

  ManyRows(const Context& context, Reader<Units>& reader, Dealer& dealer)
      : scaled_at_once(Units::scaled && reader.kv_bits == 8), context(context), reader(reader),
        key_units(context.key_width / per_unit) {
    for (auto& query : queries) query = dealer.take<Unit>(key_units * lane_rows);
    for (auto& scale : query_scale) scale = dealer.take<float>(lane_rows);
    const int64_t centred = context.centred() ? lane_rows : 0;
    for (auto& query : turned) query = dealer.take<float>(centred * context.key_width);
    for (auto& score : of_first) score = dealer.take<float>(centred);
    of_centre = dealer.take<float>(centred);
    row_units = dealer.take<Unit>(key_units);
    scores = dealer.take<F>(chunk * lane_vectors);
    weights = (Unit*)scores;
    sums = dealer.take<F>(context.value_width * lane_vectors);
    sums_before = dealer.take<F>(context.value_width * lane_vectors);
    rows_out = dealer.take<float>(W * context.value_width);
    bias_before = dealer.take<I>(context.a.bias.steps * lane_vectors);
    bias = dealer.take<F>(context.a.bias.steps * lane_vectors);
  }

  void run(const Work& work) {
    int64_t rows = work.tokens() * context.group;
    for (int64_t first = 0; first < rows; first += lane_rows) {
      int n = rows - first < lane_rows ? rows - first : lane_rows;
      switch ((n + W - 1) / W) {
        case 1: run_tile<1>(work, first, n); break;
        case 2: run_tile<2>(work, first, n); break;
        default: run_tile<lane_vectors>(work, first, n);
      }
    }
  }

  template <int Vectors>
  void run_tile(const Work& work, int64_t first, int n) {
    const Attend& a = context.a;
    bool two = a.rotation.sink_cos && work.columns.sinks;
    prepare(work, first, n, Vectors * W, false);
    if (two) prepare(work, first, n, Vectors * W, true);
    if (a.bias.steps) prepare_bias(work, first, n, Vectors * W);
    Chunk chunks[2];
    int64_t column = work.item.first_column, done = 0;
    chunks[0].find(a, work, column);
    bool more = chunks[0].n;
    if (more) begin<Vectors>();
    for (int turn = 0; more; turn ^= 1) {
      const Chunk &now = chunks[turn], &next = chunks[turn ^ 1];
      column += now.n;
      chunks[turn ^ 1].find(a, work, column);
      more = next.n;
      auto ahead = reader.ahead(next, 0);
      reader.read_keys(now, 0, false);
      score<Vectors>(now, ahead, two && now.sinks);
      if (context.centred()) find_centre(now, work.item.first_head, Vectors * W, two && now.sinks);
      weigh<Vectors>(now, two && now.sinks);
      if (context.a.values) reader.read_values(now, 0);
      else reader.turn_keys(now, 0, context.a.value_dim);
      gather<Vectors>(now, ahead);
      if (more && next.segment == now.segment) continue;
      end<Vectors>(work, first, n, done++);
      if (more) begin<Vectors>();
    }
    if (work.item.groups) return;
    for (int r = 0; r < n; r++) {
      finish_row(a, work.item.first_head, work.item.first_token, first + r,
                 most_before[r / W][r % W], total_before[r / W][r % W], sums_of(sums_before, r));
    }
  }

  // Transpose the queries; rows beyond n repeat the last.
  void prepare(const Work& work, int64_t first, int n, int end, bool for_sinks) {
    Unit* out = queries[for_sinks];
    for (int r = 0; r < end; r++) {
      float& scale = query_scale[for_sinks][r];
      float* whole = turned[for_sinks] + r * context.key_width;
      if (r < n) {
        int64_t token_row = (first + r) / context.group;
        int head = work.item.first_head * context.group + (first + r) % context.group;
        context.read_query(work.token(token_row), head, for_sinks, whole);
        if (context.centred())
          of_first[for_sinks][r] = context.score_of_first(whole, work.item.first_head);
        scale = Units::round(context.head, row_units, context.key_width);
        token[r / W][r % W] = work.position + token_row;
      } else {
        scale = query_scale[for_sinks][r - 1];
        if (context.centred()) {
          __builtin_memcpy(whole, whole - context.key_width, context.key_width * sizeof(float));
          of_first[for_sinks][r] = of_first[for_sinks][r - 1];
        }
        token[r / W][r % W] = token[(r - 1) / W][(r - 1) % W];
      }
      for (int64_t u = 0; u < key_units; u++) out[u * lane_rows + r] = row_units[u];
    }
  }

  void find_centre(const Chunk& now, int h, int end, bool far) {
    context.find_centre(now.position, h);
    for (int r = 0; r < end; r++)
      of_centre[r] = context.score_of_centre(turned[far] + r * context.key_width);
  }

  void prepare_bias(const Work& work, int64_t first, int n, int end) {
    const ColumnBias& all = context.a.bias;
    biased = 0;
    for (int r = 0; r < end; r++) {
      int64_t row = first + (r < n ? r : n - 1);
      int64_t from = work.token(row / context.group) * all.steps;
      for (int64_t k = 0; k < all.steps; k++) {
        bias_before[k * lane_vectors + r / W][r % W] = all.before[from + k];
        bias[k * lane_vectors + r / W][r % W] = all.bias[from + k];
        if (all.before[from + k] > biased) biased = all.before[from + k];
      }
    }
  }

  template <int Vectors>
  void begin() {
    for (int v = 0; v < Vectors; v++) {
      most[v] = splat(nothing_seen);
      total[v] = F{};
    }
    __builtin_memset(sums, 0, context.value_width * lane_rows * sizeof(float));
  }

  // A segment is done: a part, or merged with those before, as ``merge`` does row by row.
  template <int Vectors>
  void end(const Work& work, int64_t first, int n, int64_t done) {
    const Attend& a = context.a;
    if (work.item.groups) {
      int64_t rows = work.tokens() * context.group;
      for (int r = 0; r < n; r++) {
        write_part(a, work, work.item.first_head, done, first + r, rows, most[r / W][r % W],
                   total[r / W][r % W], sums_of(sums, r));
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
        F& all = sums_before[d * lane_vectors + v];
        all = fma(all, fade[v], sums[d * lane_vectors + v] * share[v]);
      }
    }
  }

  // Of row r, after those of the row before: a vector of rows is turned at once.
  float* sums_of(const F* all, int r) {
    const int64_t width = context.value_width;
    for (int64_t d = 0; r % W == 0 && d < width; d += W) {
      F turned[W];
      for (int k = 0; k < W; k++) turned[k] = all[(d + k) * lane_vectors + r / W];
      transpose(turned);
      for (int k = 0; k < W; k++) store(rows_out + k * width + d, turned[k]);
    }
    return rows_out + r % W * width;
  }

  // ``ahead``: what comes next, to be fetched meanwhile.
  template <int Vectors>
  void score(const Chunk& now, const Ahead& ahead, bool far) {
    constexpr int step = keys_of_step(Vectors);
    // Where keys are all there is, half of those that come next are fetched as values are.
    const int64_t key_bytes = reader.bytes_of(context.a.key_dim) / (context.a.values ? 1 : 2);
    const Unit* rows[Vectors];
    for (int v = 0; v < Vectors; v++) rows[v] = queries[far] + v * W;
    for (int j = now.first / step * step; j < now.end; j += step) {
      reader.fetch(ahead.keys[j / panel] + j % panel * key_bytes, step * key_bytes);
      typename Units::Sum sum[step][Vectors] = {};
      add_products<Units>(sum, reader.keys[j / panel] + j % panel, 1, panel, rows, lane_rows,
                          reader.key_units());
      F* out = scores + j * lane_vectors;
#pragma GCC unroll 16
      for (int k = 0; k < step; k++) {
        F key_scale{};
        if (Units::scaled && scaled_at_once)
          key_scale = splat(context.a.key_scales[now.rows[j + k]]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
          F found = Units::as_float(sum[k][v]);
          if (Units::scaled && scaled_at_once) found *= key_scale * load(query_scale[far] + v * W);
          out[k * lane_vectors + v] = found;
        }
      }
    }
  }

  template <int Vectors>
  void gather(const Chunk& now, const Ahead& ahead) {
    constexpr int step = keys_of_step(Vectors);
    const int64_t dim = context.a.value_dim, all_columns = reader.bytes_of(chunk);
    const int64_t half = reader.bytes_of(context.a.key_dim) * panel / 2;
    for (int64_t d = 0; d < dim; d += step) {
      if (context.a.values) {
        int64_t at = d * all_columns, of_panel = reader.bytes_of(dim * panel);
        reader.fetch(ahead.values[at / of_panel] + at % of_panel, step * all_columns);
      } else {
        int64_t at = d * reader.panels * half / dim;
        reader.fetch(ahead.keys[at / half] + half + at % half, step * reader.panels * half / dim);
      }
      typename Units::Sum sum[step][Vectors] = {};
      const bool one = !reader.as_stored;
      reader.for_runs(now, one, [&](int unit, const Unit* values, int n) __attribute__((always_inline)) {
        const Unit* rows[Vectors];
        for (int v = 0; v < Vectors; v++) rows[v] = weights + unit * lane_rows + v * W;
        add_products<Units>(sum, values + d, 1, reader.value_stride, rows, lane_rows, n);
      });
      F* out = sums + d * lane_vectors;
#pragma GCC unroll 16
      for (int k = 0; k < step; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
          F found = Units::as_float(sum[k][v]);
          if constexpr (Units::scaled) found *= weight_scale[v];
          F& to = out[k * lane_vectors + v];
          to = fma(to, fade[v], found);  // read here: sums have all registers
        }
      }
    }
  }

  // Scores become weights; maxima, sums and fades follow.
  template <int Vectors>
  void weigh(const Chunk& now, bool far) {
    adjust<Vectors>(now, far);
    F highest[Vectors];
    for (int v = 0; v < Vectors; v++) highest[v] = most[v];
    for (int j = now.first; j < now.end; j++) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        highest[v] = maximum(scores[j * lane_vectors + v], highest[v]);
      }
    }
    for (int v = 0; v < Vectors; v++) {
      fade[v] = exp2(most[v] - highest[v]);
      most[v] = highest[v];
      F largest;
      total[v] = fma(total[v], fade[v], weigh_lanes(now, v, largest));
      if constexpr (Units::scaled) round_weights(now, v, largest);
    }
  }

  // Scores of a vector of rows become weights, scaled as the values are; their sums before that, in
  // the order of ``lanes_sum``. ``largest``: of what is to be rounded, without its sign; those that
  // are no numbers are above all others.
  F weigh_lanes(const Chunk& now, int v, F& largest) {
    const float* scales = context.a.value_scales;
    F sum[W] = {};
    U bits{};
    auto weigh = [&](int j, F& sum) __attribute__((always_inline)) {
      F weight = Units::weight(scores[j * lane_vectors + v] - most[v]);
      sum += weight;
      if (scales) weight *= context.own_scale(scales[now.rows[j]]);
      if constexpr (Units::scaled) bits = maximum(bits, (U)weight & 0x7fffffffu);
      return weight;
    };
    for (int j = now.first / W * W; j < now.end; j += W) {
      bool whole = j >= now.first && j + W <= now.end;
#pragma GCC unroll 16
      for (int k = 0; whole && k < W; k += per_unit) {
        F weight[per_unit];
        for (int i = 0; i < per_unit; i++) weight[i] = weigh(j + k + i, sum[k + i]);
        put_weights(weights, scores, j + k, v, weight);
      }
      for (int k = 0; !whole && k < W; k += per_unit) {
        F weight[per_unit] = {};
        for (int i = 0; i < per_unit; i++) {
          bool seen = j + k + i >= now.first && j + k + i < now.end;
          if (seen) weight[i] = weigh(j + k + i, sum[k + i]);
        }
        put_weights(weights, scores, j + k, v, weight);
      }
    }
#pragma GCC unroll 16
    for (int half = W / 2; half; half /= 2) {
#pragma GCC unroll 16
      for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    }
    largest = (F)bits;
    return sum[0];
  }

  // Those of a unit's columns: in its place, or in the scores' until they can be rounded.
  QUIRE_INLINE void put_weights(Unit* units, F* scores, int j, int v, const F (&weight)[per_unit]) {
    if constexpr (per_unit == 1 || Units::scaled) {
      for (int i = 0; i < per_unit; i++) scores[(j + i) * lane_vectors + v] = weight[i];
    } else {
      U low = Units::rounded(weight[0]), high = Units::rounded(weight[1]);
      write(units + j / per_unit * lane_rows + v * W, low >> 16 | (high & 0xffff0000u));
    }
  }

  // As Units::round_weights does row by row. The last bits of 1.5 * 2^23 + x are x rounded.
  void round_weights(const Chunk& now, int v, F largest) {
    F inverse = select(largest > 0.0f, Units::most_whole / largest, F{});
    weight_scale[v] = largest / Units::most_whole + (largest - largest);
    auto rounded = [&](int j) __attribute__((always_inline)) {
      return (U)(scores[j * lane_vectors + v] * inverse + 12582912.0f);
    };
    for (int j = now.first / 2 * 2; j < now.end; j += 2) {
      U low = rounded(j), high = rounded(j + 1);
      write(weights + j / 2 * lane_rows + v * W, (low & 0xffffu) | high << 16);
    }
  }

  template <int Vectors>
  void add_bias(const Chunk& now) {
    for (int j = now.first; j < now.end && now.position + j < biased; j++) {
      int32_t position = now.position + j;
      for (int v = 0; v < Vectors; v++) {
        F here{};
        for (int64_t k = context.a.bias.steps - 1; k >= 0; k--) {
          int64_t step = k * lane_vectors + v;
          here = select(bias_before[step] > position, bias[step], here);
        }
        scores[j * lane_vectors + v] += here;
      }
    }
  }

  // Scales, soft-capping, a bias, and -inf where a row does not see a column.
  template <int Vectors>
  void adjust(const Chunk& now, bool far) {
    const Attend& a = context.a;
    if ((a.key_scales && !scaled_at_once) || a.softcap > 0) {
      for (int j = now.first; j < now.end; j++) {
        float key_scale = a.key_scales ? context.own_scale(a.key_scales[now.rows[j]]) : 1.0f;
        for (int v = 0; v < Vectors; v++) {
          F& s = scores[j * lane_vectors + v];
          F query = load(query_scale[far] + v * W);
          if (context.centred()) {
            const float* centre = __builtin_signbitf(key_scale) ? of_first[far] : of_centre;
            s = fma(s, __builtin_fabsf(key_scale) * query, load(centre + v * W));
          } else if (a.key_scales && !scaled_at_once) {
            s *= key_scale * query;
          }
          if (a.softcap > 0) s = tanh(s) * (a.softcap * log2e);
        }
      }
    }
    if (a.bias.steps) add_bias<Vectors>(now);
    int32_t window = a.window.length, behind = now.sinks ? window : 0;
    int64_t oldest = token[0][0] - behind, newest = token[Vectors - 1][W - 1];
    bool windowed = window && !now.sinks;
    bool whole = now.position + now.end - 1 <= oldest;
    if (whole && !(windowed && now.position + now.first < oldest_seen(a.window, newest))) return;
    I seen_from[Vectors];
    for (int v = 0; v < Vectors; v++) {
      seen_from[v] = a.window.chunk ? token[v] - token[v] % window : token[v] - window + 1;
    }
    for (int j = now.first; j < now.end; j++) {
      int32_t position = now.position + j;
      for (int v = 0; v < Vectors; v++) {
        F& s = scores[j * lane_vectors + v];
        I seen = token[v] - behind >= position;
        if (windowed) seen &= seen_from[v] <= position;
        s = select(seen, s, splat(-__builtin_inff()));
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA
