// Which tokens each attends to, for one instruction set.
//
// A token's score is a sum over the index's heads, of weights times what of a product is above 0.
// Positions lie in lanes, so that a score is added up in the same order wherever it stands and
// whatever is computed beside it; of equal ones those that stand first are chosen.
#include "layers/indexing.hpp"

#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t at_once = 8;     // tokens whose scores are there at one time
constexpr int64_t of_piece = 256;  // positions; whole vectors
constexpr int heads_together = 8;

// What all threads share, and a thread's own.
struct Room {
  float* queries;  // [at_once, heads, whole width]
  float* scores;   // [at_once, whole longest]
  float* key;      // [whole width]
  float* lanes;    // [whole width, W]: keys of neighbouring positions
  float* norm[2];  // [whole width]
  int64_t bytes;

  Room(const Index& x, int thread, int threads) {
    char* next = x.scratch;
    auto take = [&](int64_t n, int64_t copies, int64_t which) {
      int64_t size = round_up(n * sizeof(float), 64);
      float* piece = (float*)(next + which * size);
      next += copies * size;
      return piece;
    };
    queries = take(at_once * x.heads * whole_width(x), 1, 0);
    scores = take(at_once * whole_longest(x), 1, 0);
    key = take(whole_width(x), threads, thread);
    lanes = take(whole_width(x) * W, threads, thread);
    for (float*& part : norm) part = take(whole_width(x), threads, thread);
    bytes = next - x.scratch;
  }

  static int64_t whole_width(const Index& x) { return round_up(x.width, 2 * W); }
  static int64_t whole_longest(const Index& x) { return round_up(x.longest, of_piece); }
};

// Neighbouring tokens of a sequence.
struct Tokens {
  int64_t sequence, first, last;
  int64_t position;  // of the first

  int64_t count() const { return last - first; }
  // Columns that the last of them sees.
  int64_t seen() const { return position + count(); }
};

// Those from ``first`` on that are of one sequence, before ``last``.
Tokens tokens_from(const Index& x, int64_t first, int64_t last) {
  int64_t s = 0;
  for (int64_t end = x.num_sequences; end - s > 1;) {
    int64_t middle = s + (end - s) / 2;
    (x.query_starts[middle] <= first ? s : end) = middle;
  }
  int64_t end = x.query_starts[s + 1] < last ? x.query_starts[s + 1] : last;
  return {s, first, end, x.context_lens[s] - (x.query_starts[s + 1] - first)};
}

int64_t slot_of(const Index& x, int64_t sequence, int64_t position) {
  const int64_t* table = x.tables.block_tables + sequence * x.tables.width;
  return table[position / x.block_size] * x.block_size + position % x.block_size;
}

int64_t row_of(const Index& x, int64_t slot) {
  return slot / x.block_size * x.block_rows + slot % x.block_size;
}

// A query's head or a key, in ``head``, as they are multiplied.
void turn(const Index& x, int64_t token, float* head) {
  const Rotation& r = x.rotation;
  if (r.cos) rotate(head, r.cos + token * r.half, r.sin + token * r.half, r.half);
  if (is_spread(x.kv_dtype)) spread(head, x.width, x.width & -x.width);
}

template <class KV>
void store_key(const Index& x, const Room& room, const WideNorm& norm, int64_t token) {
  for (int64_t i = 0; i < Room::whole_width(x); i += W) store(room.key + i, F{});
  widen(x.dtype, x.key.data, token * x.key.stride, room.key, x.width);
  if (norm.used) normalise(norm, room.key, x.width);
  turn(x, token, room.key);
  int64_t row = row_of(x, x.tables.slots[token]);
  float scale = store_row(room.key, (KV*)x.keys + row * x.width, x.width);
  if (x.scales) x.scales[row] = scale;
}

void read_queries(const Index& x, const Room& room, int64_t token, int64_t place) {
  const int64_t width = Room::whole_width(x);
  for (int64_t h = 0; h < x.heads; h++) {
    float* head = room.queries + (place * x.heads + h) * width;
    for (int64_t i = 0; i < width; i += W) store(head + i, F{});
    widen(x.dtype, x.query.data, token * x.query.stride + h * x.width, head, x.width);
    turn(x, token, head);
  }
}

// Keys of the positions from ``first`` on, before ``end``, as lanes; their scales.
template <class KV>
F read_lanes(const Index& x, const Room& room, int64_t sequence, int64_t first, int64_t end) {
  const KV* rows[W];
  F scales = splat(1.0f);
  const int n = end - first < W ? end - first : W;
  for (int i = 0; i < W; i++) {
    int64_t row = row_of(x, slot_of(x, sequence, first + (i < n ? i : 0)));
    rows[i] = (const KV*)x.keys + row * x.width;
    if (x.scales) scales[i] = x.scales[row];
  }
  for (int64_t d = 0; d < x.width; d += W) {
    const int64_t left = x.width - d;
    F turned[W];
    for (int i = 0; i < W; i++) turned[i] = left < W ? load_some(rows[i] + d, left) : load(rows[i] + d);
    transpose(turned);
    for (int i = 0; i < W; i++) store(room.lanes + (d + i) * W, turned[i]);
  }
  return scales;
}

// What some heads add to the scores of positions in lanes.
template <int Heads>
QUIRE_INLINE F add_heads(const Index& x, const float* query, const float* weights,
                         const float* lanes, F scales, F total) {
  const int64_t width = Room::whole_width(x);
  F sums[Heads] = {};
  for (int64_t d = 0; d < x.width; d++) {
    const F keys = load(lanes + d * W);
#pragma GCC unroll 8
    for (int h = 0; h < Heads; h++) sums[h] = fma(keys, query[h * width + d], sums[h]);
  }
#pragma GCC unroll 8
  for (int h = 0; h < Heads; h++) total = fma(maximum(sums[h] * scales, F{}), weights[h], total);
  return total;
}

template <class KV>
void score(const Index& x, const Room& room, const Tokens& tokens, int64_t place, int64_t first) {
  const int64_t width = Room::whole_width(x), seen = tokens.seen();
  const int64_t end = first + of_piece < seen ? first + of_piece : seen;
  for (int64_t column = first; column < end; column += W) {
    const F scales = read_lanes<KV>(x, room, tokens.sequence, column, end);
    for (int64_t i = 0; i < tokens.count(); i++) {
      const float* query = room.queries + (place + i) * x.heads * width;
      const float* weights = x.weights + (tokens.first + i) * x.heads;
      F total{};
      int64_t h = 0;
      for (; h + heads_together <= x.heads; h += heads_together)
        total = add_heads<heads_together>(x, query + h * width, weights + h, room.lanes, scales,
                                          total);
      for (; h < x.heads; h++)
        total = add_heads<1>(x, query + h * width, weights + h, room.lanes, scales, total);
      store(room.scores + (place + i) * Room::whole_longest(x) + column, total);
    }
  }
}

// A number that is larger the larger a score is.
QUIRE_INLINE uint32_t rank_of(float score) {
  uint32_t word = __builtin_bit_cast(uint32_t, score + 0.0f);  // of zeros there is but one
  return word & 0x80000000u ? ~word : word | 0x80000000u;
}

// The k-th largest of n ranks, and how many of those that equal it are among the k: by bytes, from
// the highest on.
struct Threshold {
  uint32_t rank = 0;
  int64_t equal;

  Threshold(const float* scores, int64_t n, int64_t k) : equal(k) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      int64_t counts[256] = {};
      const uint32_t known = shift == 24 ? 0 : ~uint32_t(0) << (shift + 8);
      for (int64_t i = 0; i < n; i++) {
        uint32_t own = rank_of(scores[i]);
        if ((own & known) == rank) counts[own >> shift & 255]++;
      }
      int byte = 255;
      while (counts[byte] < equal) equal -= counts[byte--];
      rank |= uint32_t(byte) << shift;
    }
  }
};

void choose_of(const Index& x, const float* scores, int64_t sequence, int64_t token, int64_t seen) {
  int64_t* chosen = x.chosen + token * x.columns;
  const int64_t count = seen < x.most ? seen : x.most;
  x.counts[token] = count;
  if (seen <= x.most) {
    for (int64_t i = 0; i < count; i++) chosen[i] = slot_of(x, sequence, i);
    return;
  }
  Threshold least(scores, seen, count);
  int64_t equal = least.equal;
  for (int64_t i = 0; i < seen; i++) {
    uint32_t own = rank_of(scores[i]);
    if (own > least.rank || (own == least.rank && equal-- > 0)) *chosen++ = slot_of(x, sequence, i);
  }
}

template <class KV>
void run(const Index& x, Team& team) {
  Room room(x, team.index, team.size);
  const WideNorm norm = widen(x.key_norm, x.width, room.norm[0], room.norm[1]);
  team.take(x.num_tokens, [&](int64_t token) { store_key<KV>(x, room, norm, token); });
  for (int64_t first = 0; first < x.num_tokens; first += at_once) {
    const int64_t last = first + at_once < x.num_tokens ? first + at_once : x.num_tokens;
    Tokens runs[at_once];
    int64_t count = 0, pieces = 0, ends[at_once];
    for (int64_t token = first; token < last; token = runs[count++].last) {
      runs[count] = tokens_from(x, token, last);
      const int64_t seen = runs[count].seen();
      if (seen > x.most) pieces += (seen + of_piece - 1) / of_piece;
      ends[count] = pieces;
    }
    team.take(pieces ? last - first : 0,
              [&](int64_t i) { read_queries(x, room, first + i, i); });
    team.take(pieces, [&](int64_t piece) {
      int r = 0;
      while (piece >= ends[r]) r++;
      const int64_t before = r ? ends[r - 1] : 0;
      score<KV>(x, room, runs[r], runs[r].first - first, (piece - before) * of_piece);
    });
    team.take(last - first, [&](int64_t i) {
      const Tokens own = tokens_from(x, first + i, first + i + 1);
      choose_of(x, room.scores + i * Room::whole_longest(x), own.sequence, first + i, own.seen());
    });
  }
}

}  // namespace

int64_t index_scratch(const Index& x, int threads) {
  Index own = x;
  own.scratch = nullptr;
  return Room(own, 0, threads).bytes;
}

void choose(const Index& x, Team& team) {
  switch (x.kv_dtype) {
    case DType::float32: return run<float>(x, team);
    case DType::bfloat16: return run<bf16>(x, team);
    case DType::float16: return run<f16>(x, team);
    default: return run<int8_t>(x, team);
  }
}

}  // namespace quire::QUIRE_ISA
