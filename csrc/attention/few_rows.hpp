// Attention of a few query rows, as in decoding, and where there are tile registers of many: each
// key and value is read from memory once and meets all rows of its KV head there. Work on several
// heads takes a chunk of one after that of another, so that memory is read in longer runs than a
// head's share of a block.
//
// Keys lie in the lanes of vectors, and a row's softmax runs over lanes. It is kept as a running
// maximum and sum, and what was gathered so far is scaled when the maximum grows (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include <initializer_list>
#include <type_traits>

#include "attention/attention_on_tiles.hpp"

namespace quire::QUIRE_ISA {

#if QUIRE_HAS_TILES
template <class Units>
constexpr bool on_tiles = std::is_same_v<Units, PairUnit>;
template <class Units>
using Tiles = std::conditional_t<on_tiles<Units>, TileProducts, Nothing>;
#else
template <class Units>
constexpr bool on_tiles = false;
template <class Units>
using Tiles = Nothing;
#endif

// ``Source``: who reads keys and values.
template <class Source>
struct FewRows {
  typedef typename Source::Kind Units;
  typedef typename Units::Unit Unit;
  typedef typename Source::Ahead Ahead;
  static constexpr int per_unit = Units::per_unit;
  static constexpr bool may_stay_whole = Source::may_stay_whole;
  static constexpr int units_per_word = 4;  // of such words, which are int4's
  static constexpr int vectors = registers == 32 ? 4 : 2;  // side by side, with four rows, in registers

  const Context& context;
  Source& reader;
  Tiles<Units> tiles;
  int64_t key_units;  // of a query, whole vectors
  // Of all heads: so many rows each, of which some may be room for whole tiles.
  int64_t room_rows;
  Unit* queries[2];       // turned for the window, and for the sinks: [heads, rows, key_units]
  float* query_scale[2];  // [heads, rows]
  float* turned[2];       // [heads, rows, key_width]: see Context::read_query
  float* of_first[2];     // [heads, rows]: scores of the first key
  struct State {
    float* sums;   // [heads, rows, value_width]
    float* most;   // [heads, rows]
    float* total;  // [heads, rows]
  } segment, before;  // the one at hand, and all before it
  // Of the head at hand.
  float* scores;        // [rows, chunk]
  Unit* weights;        // [rows, chunk / per_unit], the scores' place where they are floats
  float* fade;          // [rows]
  float* weight_scale;  // [rows]
  const Item* fetched = nullptr;  // whose first columns have been asked of memory

  // For up to ``few`` rows of each KV head, or up to ``many`` of one.
  FewRows(const Context& context, Source& reader, int64_t few, int64_t many,
          Dealer& dealer)
      : context(context), reader(reader), tiles(reader, dealer),
        key_units(context.key_width / per_unit) {
    few = round_up(few, 4), many = round_up(many, 16);
    const int64_t most_rows = few > many ? few : many, kv_heads = context.a.num_kv_heads;
    int64_t all = few * kv_heads > many ? few * kv_heads : many;
    for (auto& query : queries) query = dealer.take<Unit>(all * key_units);
    for (auto& scale : query_scale) scale = dealer.take<float>(all);
    const int64_t centred = context.centred() ? all : 0;
    for (auto& query : turned) query = dealer.take<float>(centred * context.key_width);
    for (auto& score : of_first) score = dealer.take<float>(centred);
    for (State* state : {&segment, &before}) {
      state->sums = dealer.take<float>(all * context.value_width);
      state->most = dealer.take<float>(all);
      state->total = dealer.take<float>(all);
    }
    scores = dealer.take<float>(most_rows * chunk);
    weights = dealer.take<Unit>(most_rows * chunk / per_unit);
    if constexpr (std::is_same_v<Unit, float>) weights = scores;
    fade = dealer.take<float>(most_rows);
    weight_scale = dealer.take<float>(most_rows);
  }

  // ``next``: what follows, whose first columns are fetched meanwhile; null: unknown.
  void run(const Work& work, const Work* next) {
    const Attend& a = context.a;
    int rows = work.tokens() * context.group, heads = work.item.heads;
    room_rows = round_up(rows, rows < 16 ? 4 : 16);
    if constexpr (on_tiles<Units>) tiles.configure(rows);
    bool two = a.rotation.sink_cos && work.columns.sinks;
    Chunk chunks[2];
    int64_t column = work.item.first_column;
    chunks[0].find(a, work, column);
    for (const char* keys : reader.ahead(chunks[0], 0).keys) {
      if (fetched != &work.item) reader.fetch(keys, reader.bytes_of(panel * a.key_dim));
    }
    fetched = next ? &next->item : nullptr;
    for (int head = 0; head < heads; head++) {
      prepare(work, rows, head, false);
      if (two) prepare(work, rows, head, true);
    }
    begin(rows, heads);
    int64_t done = 0;  // segments
    bool more = chunks[0].n;
    for (int turn = 0; more; turn ^= 1) {
      column += chunks[turn].n;
      chunks[turn ^ 1].find(a, work, column);
      more = chunks[turn ^ 1].n;
      if (!more && next) chunks[turn ^ 1].find(a, *next, next->item.first_column);
      for (int head = 0; head < heads; head++) {
        bool last = head + 1 == heads;
        take(work, rows, head, chunks[turn], {chunks[turn ^ last], last ? 0 : head + 1},
             two && chunks[turn].sinks);
      }
      if (more && chunks[turn ^ 1].segment == chunks[turn].segment) continue;
      end(work, rows, done++);
      if (more) begin(rows, heads);
    }
    if (work.item.groups) return;
    for (int head = 0; head < heads; head++) {
      for (int r = 0; r < rows; r++) {
        int64_t place = head * room_rows + r;
        finish_row(a, work.item.first_head + head, work.item.first_token, r, before.most[place],
                   before.total[place], before.sums + place * context.value_width);
      }
    }
  }

  void prepare(const Work& work, int rows, int head, bool for_sinks) {
    for (int r = 0; r < rows; r++) {
      int64_t place = head * room_rows + r;
      int query_head = (work.item.first_head + head) * context.group + r % context.group;
      float* whole = turned[for_sinks] + place * context.key_width;
      context.read_query(work.token(r / context.group), query_head, for_sinks, whole);
      if (context.centred())
        of_first[for_sinks][place] = context.score_of_first(whole, query_head / context.group);
      query_scale[for_sinks][place] = Units::round(
          context.head, queries[for_sinks] + place * key_units, context.key_width);
    }
  }

  void begin(int rows, int heads) {
    for (int head = 0; head < heads; head++) {
      for (int64_t place = head * room_rows; place < head * room_rows + rows; place++) {
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
        int64_t place = head * room_rows + r, at = place * context.value_width;
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

  // What comes after, to be fetched meanwhile.
  struct Next {
    const Chunk& columns;
    int head;
  };

  void take(const Work& work, int rows, int head, const Chunk& now, const Next& next, bool far) {
    const int64_t place = head * room_rows, shift = head * context.a.block_size;
    fetch_scales(next);
    auto ahead = reader.ahead(next.columns, next.head * context.a.block_size);
    Lines lines = lines_of(ahead, rows);
    const bool whole = may_stay_whole && reader.stays_whole(rows);
    reader.read_keys(now, shift, whole);
    const Unit* q = queries[far] + place * key_units;
    if constexpr (on_tiles<Units>) {
      tiles.score(now, ahead, q, key_units, rows, scores);
    } else {
      if constexpr (may_stay_whole) {
        if (whole) with_rows(rows, [&](auto n) { score_words<n.value>(now, ahead, q); });
      }
      if (!whole && context.a.values) score_rows<false>(now, ahead, lines, rows, q);
      if (!context.a.values) score_rows<true>(now, ahead, lines, rows, q);
    }
    if (context.centred()) context.find_centre(now.position, work.item.first_head + head);
    weigh(work, rows, now, shift, place, far);
    if constexpr (may_stay_whole) {
      if (whole)
        return with_rows(rows, [&](auto n) { gather_words<n.value>(now, shift, ahead, place); });
    }
    if (context.a.values) reader.read_values(now, shift);
    if constexpr (on_tiles<Units>) {
      if (!context.a.values) reader.turn_keys(now, 0, context.a.value_dim);
      float* sums = segment.sums + place * context.value_width;
      return tiles.gather(now, ahead, weights, rows, fade, sums, context.value_width);
    }
    if (context.a.values) gather_rows<false>(now, ahead, lines, rows, place);
    else gather_rows<true>(now, ahead, lines, rows, place);
  }

  // Where values are parts of keys: these, while scores and then values are computed.
  Lines lines_of(const Ahead& ahead, int rows) const {
    constexpr int step = vectors * W;
    int64_t turns = chunk / step * reader.key_units() +
                    chunk / per_unit * (context.a.value_dim / step);
    return {ahead.keys, reader.words, (rows + 3) / 4 * turns};
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

  void fetch_scales(const Next& next) const {
    const Attend& a = context.a;
    if (!a.key_scales || !next.columns.n) return;
    for (int j = 0; j < chunk; j += reader.in_panels ? panel : 1) {
      int64_t row = next.columns.rows[j] + next.head * a.block_size;
      if (j && row % 16) continue;  // on a line that was fetched, or soon will be
      __builtin_prefetch(a.key_scales + row);
      __builtin_prefetch(a.value_scales + row);
    }
  }

  // Of latents, so many units of a step's keys stay in the first cache while all rows meet them.
  template <bool Latent>
  void score_rows(const Chunk& now, const Ahead& ahead, Lines& lines, int rows, const Unit* q) {
    constexpr int step = vectors * W;
    const int64_t units = reader.key_units();
    const int64_t most = Latent ? 24 * 1024 / (step * sizeof(Unit)) : units;
    for (int j = 0; j < chunk; j += step) {
      if (j + step <= now.first || j >= now.end) continue;
      for (int64_t first = 0; first < units; first += most) {
        const int64_t n = units - first < most ? units - first : most;
        for (int r = 0; r < rows; r += 4) {
          with_rows(rows - r, [&](auto left) {
            score<left.value, Latent>(ahead, lines, q + r * key_units, r, j, first, n);
          });
        }
      }
    }
  }

  // Of n units from ``first`` on, after those before.
  template <int Rows, bool Latent>
  void score(const Ahead& ahead, Lines& all, const Unit* q, int r, int j, int64_t first,
             int64_t n) {
    constexpr int step = vectors * W;
    typename Units::Sum sum[Rows][vectors] = {};
    const Unit* lanes[vectors];
    for (int v = 0; v < vectors; v++)
      lanes[v] = reader.keys[(j + v * W) / panel] + first * panel + (j + v * W) % panel;
    Lines lines = all;  // in registers
    auto fetch = [&](int64_t u) __attribute__((always_inline)) {
      if constexpr (Latent) return lines.fetch();
      if (r || j % panel || u >= reader.words) return;
#pragma GCC unroll 4
      for (int p = 0; p < (step + panel - 1) / panel; p++)
        __builtin_prefetch(ahead.keys[j / panel + p] + u * 64, 0, 2);
    };
    if (Latent && first) load_sums(sum, r, j);
    add_products<Units>(sum, q + first, key_units, 1, lanes, panel, n, fetch);
    all = lines;
    if (Latent && first + n < reader.key_units()) store_sums(sum, r, j);
    else store_scores(sum, r, j);
  }

  // The same of words, each of several units; no more rows.
  template <int Rows>
  void score_words(const Chunk& now, const Ahead& ahead, const Unit* q) {
    constexpr int step = vectors * W;
    for (int j = 0; j < chunk; j += step) {
      if (j + step <= now.first || j >= now.end) continue;
      typename Units::Sum sum[Rows][vectors] = {};
      U fifth[vectors] = {};
      for (int v = 0; reader.fine_words && v < vectors; v++)
        fifth[v] = read<U>(reader.fifth + j + v * W);
      auto add = [&](int64_t c, auto fine) __attribute__((always_inline)) {
        for (int p = j / panel; j % panel == 0 && p * panel < j + step; p++)
          __builtin_prefetch(ahead.keys[p] + c * 64, 0, 2);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
          int lane = j + v * W;
          auto words = read<U>(reader.keys[lane / panel] + c * panel + lane % panel);
          F units[units_per_word];
          if constexpr (fine.value) Units::split_fine(words, fifth[v], units);
          else Units::split(words, (const int4*)nullptr, units);
          if constexpr (fine.value) fifth[v] >>= 1;
          add_units(sum, v, units, q + c * units_per_word, key_units);
        }
      };
      int64_t c = 0;
      for (; c < reader.fine_words; c++) add(c, std::true_type{});
      for (; c < reader.words; c++) add(c, std::false_type{});
      store_scores(sum, 0, j);
    }
  }

  // sum[row][v] += the products of a row's units with those of words.
  template <int Rows>
  QUIRE_INLINE void add_units(typename Units::Sum (&sum)[Rows][vectors], int v,
                              const F (&units)[units_per_word], const Unit* a, int64_t a_row) {
#pragma GCC unroll 8
    for (int u = 0; u < units_per_word; u++) {
#pragma GCC unroll 4
      for (int i = 0; i < Rows; i++) sum[i][v] = Units::add(sum[i][v], a[i * a_row + u], units[u]);
    }
  }

  template <int Rows>
  __attribute__((always_inline)) void store_scores(
      const typename Units::Sum (&sum)[Rows][vectors], int r, int j) const {
#pragma GCC unroll 4
    for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        store(scores + (r + i) * chunk + j + v * W, Units::as_float(sum[i][v]));
    }
  }

  template <int Rows>
  __attribute__((always_inline)) void load_sums(typename Units::Sum (&sum)[Rows][vectors], int r,
                                                int j) const {
#pragma GCC unroll 4
    for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        sum[i][v] = (typename Units::Sum)load(scores + (r + i) * chunk + j + v * W);
    }
  }
  template <int Rows>
  __attribute__((always_inline)) void store_sums(
      const typename Units::Sum (&sum)[Rows][vectors], int r, int j) const {
#pragma GCC unroll 4
    for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++)
        store(scores + (r + i) * chunk + j + v * W, (F)sum[i][v]);
    }
  }

  void gather_scales(const Chunk& now, int64_t shift, const float* from, float* out) const {
    for (int j = 0; j < chunk; j += panel) {
      if (reader.in_panels && j >= now.first && j + panel <= now.end) {  // they are neighbours
        __builtin_memcpy(out + j, from + now.rows[j] + shift, panel * sizeof(float));
        continue;
      }
      for (int k = j; k < j + panel; k++) out[k] = from[now.rows[k] + shift];
    }
  }

  // Scores become weights; maxima, sums and fades follow.
  void weigh(const Work& work, int rows, const Chunk& now, int64_t shift, int64_t place,
             bool far) {
    const Attend& a = context.a;
    float key_scale[chunk], value_scale[chunk];
    if (a.key_scales) {
      gather_scales(now, shift, a.key_scales, key_scale);
      gather_scales(now, shift, a.value_scales, value_scale);
      for (int j = 0; context.centred() && j < chunk; j += W)
        store(value_scale + j, context.own_scale(load(value_scale + j)));
    }
    for (int r = 0; r < rows; r++) {
      float* s = scores + r * chunk;
      if (a.key_scales) {
        F scale = splat(query_scale[far][place + r]);
        if (context.centred()) {
          F first = splat(of_first[far][place + r]);
          F common = splat(context.score_of_centre(turned[far] + (place + r) * context.key_width));
          for (int j = 0; j < chunk; j += W) {
            F own = load(key_scale + j), size = (F)((U)own & 0x7fff0000u);
            store(s + j, fma(load(s + j), size * scale, select((I)own < 0, first, common)));
          }
        }
        for (int j = 0; !context.centred() && j < chunk; j += W)
          store(s + j, load(s + j) * (load(key_scale + j) * scale));
      }
      if (a.softcap > 0) {
        for (int j = 0; j < chunk; j += W) store(s + j, tanh(load(s + j)) * (a.softcap * log2e));
      }
      if (a.bias.steps) now.add_bias(a.bias, work.token(r / context.group), s);
      int64_t token = work.position + r / context.group;
      int first = now.first_seen(a, token), last = now.end_seen(a, token);
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

  // sums[row] = sums[row] * fade[row] + weighted values.
  template <bool Latent>
  void gather_rows(const Chunk& now, const Ahead& ahead, Lines& lines, int rows, int64_t place) {
    const int64_t dim = context.a.value_dim, most = vectors * W;
    float* out = segment.sums + place * context.value_width;
    for (int64_t i = 0; i < dim;) {
      const bool wide = i + most <= dim;
      if (Latent && i % most == 0) reader.turn_keys(now, i, wide ? most : dim - i);
      for (int r = 0; r < rows; r += 4) {
        with_rows(rows - r, [&](auto n) {
          float* to = out + r * context.value_width;
          if (wide) gather<n.value, vectors, Latent>(now, ahead, lines, r, i, to);
          else gather<n.value, 1, Latent>(now, ahead, lines, r, i, to);
        });
      }
      i += wide ? most : W;
    }
  }

  // The same of words, each of four dimensions of two columns; no more rows.
  template <int Rows>
  void gather_words(const Chunk& now, int64_t shift, const Ahead& ahead, int64_t place) {
    const int64_t words = context.a.value_dim / 4, bytes = words * 4;
    float* out = segment.sums + place * context.value_width;
    for (int64_t l = 0; l < words; l += W) {
      typename Units::Sum sum[Rows][units_per_word] = {};
      for (int pair = now.first / 2; pair * 2 < now.end; pair++) {
        if (!l) reader.fetch(ahead.values[pair * 2 / panel] + pair % (panel / 2) * bytes, bytes);
        F units[units_per_word];
        const char* from = reader.value_words(now, shift, pair) + l * 4;
        Units::split(read<U>(from), (const int4*)nullptr, units);
#pragma GCC unroll 8
        for (int u = 0; u < units_per_word; u++) {
#pragma GCC unroll 4
          for (int i = 0; i < Rows; i++) {
            Unit weight = weights[i * (chunk / per_unit) + pair];
            sum[i][u] = Units::add(sum[i][u], weight, units[u]);
          }
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 8
        for (int u = 0; u < units_per_word; u++) {
          float* to = out + i * context.value_width + u * words + l;
          F found = Units::as_float(sum[i][u]) * weight_scale[i];
          store(to, fma(load(to), fade[i], found));
        }
      }
    }
  }

  template <int Rows, int Vectors, bool Latent>
  void gather(const Chunk& now, const Ahead& ahead, Lines& all, int r, int64_t i, float* out) {
    const int64_t bytes = reader.bytes_of(context.a.value_dim * per_unit);  // of a unit's columns
    typename Units::Sum sum[Rows][Vectors] = {};
    Lines lines = all;
    reader.for_runs(now, Latent, [&](int unit, const Unit* values, int n) __attribute__((always_inline)) {
      const Unit* lanes[Vectors];
      for (int v = 0; v < Vectors; v++) lanes[v] = values + i + v * W;
      auto fetch = [&](int64_t u) __attribute__((always_inline)) {
        if constexpr (Latent) return lines.fetch();
        if (r || i) return;
        u += unit;
        reader.fetch(ahead.values[u * per_unit / panel] + u * per_unit % panel / per_unit * bytes,
                     bytes);
      };
      add_products<Units>(sum, weights + r * (chunk / per_unit) + unit, chunk / per_unit, 1, lanes,
                          reader.value_stride, n, fetch);
    });
    all = lines;
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
