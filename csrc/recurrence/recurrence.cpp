// Recurrences for one instruction set: token by token, in float32. A head's columns of values do
// not depend on each other, so that they are divided among threads and vectors, and sums over keys
// have one order.
#include "recurrence/recurrence.hpp"

#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int wide = 4;                       // vectors of columns that are computed together
constexpr int64_t columns_at_once = wide * W;
constexpr int64_t channels_at_once = 256;

// Tokens of a step that are at hand, and memory for what is between the parts of a layer.
struct Window {
  int64_t first, last;  // rows of the batch
  int64_t first_sequence, last_sequence;  // that have some of them
  float* convolved;  // [last - first, channels]
  float* decay;      // [last - first, heads], or [last - first, heads key_dim]
  float* strength;   // [last - first, heads] of what is added
  float* read;       // [last - first, heads value_dim]
  float* own;        // of a thread
};

// The row of a sequence's first draft, or where its tokens end.
QUIRE_INLINE int64_t first_draft(const Recur& r, int64_t s) {
  return r.batch.query_starts[s + 1] - (r.drafts ? r.drafts[s] : 0);
}

// The tokens of a sequence in a window.
struct Chunk {
  int64_t begin, end;  // rows of the batch
  int64_t known;       // from there on they are drafts
  bool fresh;          // the first is the sequence's first
  int64_t slot;

  Chunk(const Recur& r, const Window& w, int64_t s)
      : begin(r.batch.query_starts[s] > w.first ? r.batch.query_starts[s] : w.first),
        end(r.batch.query_starts[s + 1] < w.last ? r.batch.query_starts[s + 1] : w.last),
        known(first_draft(r, s) < end ? first_draft(r, s) : end),
        fresh(r.batch.context_lens[s] == r.batch.query_starts[s + 1] - begin),
        slot(r.batch.slots[s]) {}
};

// --- the convolution --------------------------------------------------------------------------

// What the convolution sees of a token, from channel c on.
template <class T>
QUIRE_INLINE F input(const Recur& r, int64_t row, int64_t c, int64_t n) {
  const T* x = (const T*)r.x + row * r.x_stride;
  if (r.layer.heads) return load_n(x + c, n);
  return load_n(x + c, n) * load_n(x + 2 * r.layer.convolution.channels + c, n);
}

// Channels [first, first + count), token by token, so that what the next one sees again is near.
template <class T>
QUIRE_INLINE void convolve_channels(const Recur& r, const Window& w, const Chunk& chunk,
                                    int64_t first, int64_t count) {
  const Convolution& conv = r.layer.convolution;
  int64_t kept = conv.kernel - 1, channels = conv.channels;
  float* rows = r.memory.rows.of(chunk.slot);
  // The input ``number`` tokens after the oldest that is kept.
  auto seen = [&](int64_t number, int64_t c, int64_t n) __attribute__((always_inline)) {
    if (number >= kept) return input<T>(r, chunk.begin + number - kept, c, n);
    return chunk.fresh ? F{} : load_n(rows + number * channels + c, n);
  };
  // Of the inputs before row ``end``, those that the next token sees. What is read lies behind what
  // is written.
  auto keep = [&](float* to, int64_t end) __attribute__((always_inline)) {
    for (int64_t k = 0; k < kept; k++) {
      for_vectors(count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        int64_t c = first + i;
        store_n(to + k * channels + c, seen(k + end - chunk.begin, c, n), n);
      });
    }
  };
  for (int64_t row = chunk.begin; row < chunk.end; row++) {
    for_vectors(count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      int64_t c = first + i;
      __builtin_prefetch((const T*)r.x + (row + 2) * r.x_stride + c);
      F sum = conv.bias ? load_n(conv.bias + c, n) : F{};
      for (int64_t k = 0; k < conv.kernel; k++) {
        sum = fma(load_n(conv.weight + k * channels + c, n), seen(row - chunk.begin + k, c, n), sum);
      }
      if (r.layer.heads) {
        store_n(w.convolved + (row - w.first) * channels + c, silu(sum), n);
      } else if (r.out) {
        F after = load_n((const T*)r.x + row * r.x_stride + channels + c, n);
        store_n((T*)r.out + row * channels + c, after * sum, n);
      }
    });
    if (int64_t left = r.batch.left_after(row); left >= 0) keep(r.memory.rows.of(left), row + 1);
  }
  if (chunk.known > chunk.begin) keep(rows, chunk.known);
}

template <class T>
void convolve(const Recur& r, const Window& w, Team& team) {
  int64_t channels = r.layer.convolution.channels;
  int64_t blocks = (channels + channels_at_once - 1) / channels_at_once;
  team.take((w.last_sequence - w.first_sequence) * blocks, [&](int64_t piece) {
    Chunk chunk(r, w, w.first_sequence + piece / blocks);
    if (chunk.begin >= chunk.end) return;
    int64_t first = piece % blocks * channels_at_once, left = channels - first;
    convolve_channels<T>(r, w, chunk, first, left < channels_at_once ? left : channels_at_once);
  });
}

// --- decays, and keys and queries of length one -----------------------------------------------

// x [n] times what makes its length ``length``, in place.
QUIRE_INLINE void normalise(float* x, int64_t n, float length) {
  F squares{};
  for_vectors(n, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    F v = load_n(x + i, count);
    squares = fma(v, v, squares);
  });
  float factor = length / __builtin_sqrtf(lanes_sum(squares) + 1e-6f);
  for_vectors(n, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    store_n(x + i, load_n(x + i, count) * factor, count);
  });
}

template <class T>
QUIRE_INLINE void prepare_row(const Recurrence& layer, const T* x, float* mixed, float* decay,
                              float* strength) {
  const T* strengths = x + layer.convolution.channels + layer.outputs();
  const T* steps = strengths + (layer.delta ? layer.heads : 0);
  int64_t each = layer.decays() / layer.heads, keys = layer.key_heads * layer.key_dim;
  for_vectors(layer.decays(), [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    F step = softplus(fma(load_n(steps + i, n), layer.factor, load_n(layer.bias + i, n)));
    step = minimum(maximum(step, splat(layer.least)), splat(layer.most));
    if (!layer.delta) store_n(strength + i, step, n);
    F rate{};
    for (int lane = 0; lane < n; lane++) rate[lane] = layer.decay[(i + lane) / each];
    store_n(decay + i, exp(step * rate), n);
  });
  if (!layer.delta) return;
  for_vectors(layer.heads, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    store_n(strength + i, sigmoid(load_n(strengths + i, n)), n);
  });
  float length = 1.0f / __builtin_sqrtf(float(layer.key_dim));
  for (int64_t i = 0; i < keys; i += layer.key_dim) {
    normalise(mixed + i, layer.key_dim, length);
    normalise(mixed + keys + i, layer.key_dim, 1.0f);
  }
}

template <class T>
void prepare(const Recur& r, const Window& w, Team& team) {
  team.deal(w.last - w.first, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      prepare_row(r.layer, (const T*)r.x + (w.first + row) * r.x_stride,
                  w.convolved + row * r.layer.convolution.channels, w.decay + row * r.layer.decays(),
                  w.strength + row * r.layer.heads);
    }
  });
}

// --- the recurrence ---------------------------------------------------------------------------

// Some columns of a head's values.
struct Columns {
  const Recurrence& layer;
  int64_t head, first;
  int count;
  float* state;  // [key_dim, count]
  int64_t stride;  // floats from one key's numbers to the next one's
};

// ``count`` numbers as vectors, and back.
QUIRE_INLINE void load_columns(const float* p, int count, F (&v)[wide]) {
  for (int i = 0; i < wide; i++) {
    int n = count - i * W;
    v[i] = n >= W ? load(p + i * W) : n > 0 ? load_some(p + i * W, n) : F{};
  }
}
QUIRE_INLINE void store_columns(float* p, int count, const F (&v)[wide]) {
  for (int i = 0; i < wide; i++) {
    int n = count - i * W;
    if (n >= W) store(p + i * W, v[i]);
    else if (n > 0) store_some(p + i * W, v[i], n);
  }
}

// What the keys find in the state that decays: sums of even keys, and of odd ones.
template <bool by_channel>
QUIRE_INLINE void look_up(const Columns& c, const float* key, const float* decay, F (&found)[wide]) {
  F odd[wide] = {};
  for (int i = 0; i < wide; i++) found[i] = F{};
  int64_t k = 0;
  for (; k + 2 <= c.layer.key_dim; k += 2) {
    const float* rows = c.state + k * c.stride;
    F first = splat(by_channel ? key[k] * decay[k] : key[k]);
    F second = splat(by_channel ? key[k + 1] * decay[k + 1] : key[k + 1]);
    for (int i = 0; i < wide; i++) {
      found[i] = fma(load(rows + i * W), first, found[i]);
      odd[i] = fma(load(rows + c.stride + i * W), second, odd[i]);
    }
  }
  for (int i = 0; i < wide && k < c.layer.key_dim; i++) {
    F last = splat(by_channel ? key[k] * decay[k] : key[k]);
    found[i] = fma(load(c.state + k * c.stride + i * W), last, found[i]);
  }
  for (int i = 0; i < wide; i++) found[i] = (found[i] + odd[i]) * (by_channel ? 1.0f : *decay);
}

// The state decays, and has key times ``added`` added to it; what the queries then find.
template <bool by_channel>
QUIRE_INLINE void rewrite(const Columns& c, const float* query, const float* key,
                          const float* decay, const F (&added)[wide], F (&found)[wide]) {
  for (int i = 0; i < wide; i++) found[i] = F{};
  for (int64_t k = 0; k < c.layer.key_dim; k++) {
    float* row = c.state + k * c.stride;
    F kept = splat(by_channel ? decay[k] : *decay), own = splat(key[k]), asked = splat(query[k]);
    for (int i = 0; i < wide; i++) {
      F v = fma(own, added[i], load(row + i * W) * kept);
      store(row + i * W, v);
      found[i] = fma(asked, v, found[i]);
    }
  }
}

template <bool delta, bool by_channel>
void run_as(const Recur& r, const Window& w, int64_t first, int64_t last, const Columns& c) {
  const Recurrence& layer = r.layer;
  int64_t outputs = layer.outputs(), channels = layer.convolution.channels;
  int64_t keys = layer.key_heads * layer.key_dim, at = c.head * layer.value_dim + c.first;
  int64_t key_head =
      layer.tiled ? c.head % layer.key_heads : c.head / (layer.heads / layer.key_heads);
  int64_t decay_at = c.head * (by_channel ? layer.key_dim : 1);
  for (int64_t row = first - w.first; row < last - w.first; row++) {
    const float* query = w.convolved + row * channels + key_head * layer.key_dim;
    const float* key = query + keys;
    const float* decay = w.decay + row * layer.decays() + decay_at;
    F value[wide], added[wide], out[wide];
    load_columns(w.convolved + row * channels + 2 * keys + at, c.count, value);
    if (delta) look_up<by_channel>(c, key, decay, added);
    for (int i = 0; i < wide; i++) {
      added[i] = (delta ? value[i] - added[i] : value[i]) * w.strength[row * layer.heads + c.head];
    }
    rewrite<by_channel>(c, query, key, decay, added, out);
    if (layer.skip) {
      for (int i = 0; i < wide; i++) out[i] = fma(value[i], layer.skip[c.head], out[i]);
    }
    store_columns(w.read + row * outputs + at, c.count, out);
  }
}

// From row ``first`` to ``last``.
void run(const Recur& r, const Window& w, int64_t first, int64_t last, const Columns& c) {
  if (!r.layer.delta) run_as<false, false>(r, w, first, last, c);
  else if (r.layer.by_channel) run_as<true, true>(r, w, first, last, c);
  else run_as<true, false>(r, w, first, last, c);
}

// A thread's memory, in floats.
int64_t own_floats(const Recurrence& layer) { return layer.key_dim * columns_at_once; }

// Of the parts of a layer, in floats for each token.
int64_t between(const Recurrence& layer) {
  return layer.convolution.channels + layer.decays() + layer.heads + layer.outputs();
}

void run_columns(const Recur& r, const Window& w, const Chunk& chunk, int64_t head, int64_t block) {
  const Recurrence& layer = r.layer;
  int64_t first = block * columns_at_once, left = layer.value_dim - first;
  int64_t at = head * layer.key_dim * layer.value_dim + first;
  float* state = r.memory.state.of(chunk.slot) + at;
  Columns c{layer, head, first, int(left < columns_at_once ? left : columns_at_once), state,
            layer.value_dim};
  // A single token rewrites the state where it is.
  bool single = chunk.end == chunk.begin + 1 && chunk.known == chunk.end && !chunk.fresh &&
                r.batch.left_after(chunk.begin) < 0;
  if (single && c.count == columns_at_once) return run(r, w, chunk.begin, chunk.end, c);
  c.state = w.own;
  c.stride = columns_at_once;
  for (int64_t k = 0; k < layer.key_dim; k++) {
    F v[wide] = {};
    if (!chunk.fresh) load_columns(state + k * layer.value_dim, c.count, v);
    store_columns(w.own + k * columns_at_once, columns_at_once, v);
  }
  auto leave = [&](float* to) {
    for (int64_t k = 0; k < layer.key_dim; k++) {
      F v[wide];
      load_columns(w.own + k * columns_at_once, columns_at_once, v);
      store_columns(to + k * layer.value_dim, c.count, v);
    }
  };
  int64_t row = chunk.begin;
  while (row < chunk.known) {
    int64_t from = row++;
    while (row < chunk.known && r.batch.left_after(row - 1) < 0) row++;
    run(r, w, from, row, c);
    if (int64_t left = r.batch.left_after(row - 1); left >= 0) leave(r.memory.state.of(left) + at);
  }
  if (chunk.known > chunk.begin) leave(state);
  run(r, w, chunk.known, chunk.end, c);
}

// --- the gate ---------------------------------------------------------------------------------

// [width] outputs that are normalised together: in place, then to out.
template <class T>
QUIRE_INLINE void gate_group(const OutputGate& how, const float* norm, float* read, const T* gates,
                             T* out) {
  F squares{};
  auto gate = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    F v = load_n(gates + i, n) * how.factor;
    return how.sigmoid ? sigmoid(v) : silu(v);
  };
  for_vectors(how.width, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    F v = load_n(read + i, n);
    if (how.first) store_n(read + i, v *= gate(i, n), n);
    squares = fma(v, v, squares);
  });
  float factor = norm ? 1.0f / __builtin_sqrtf(lanes_sum(squares) / how.width + how.eps) : 1.0f;
  for_vectors(how.width, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    F v = load_n(read + i, n) * factor;
    if (norm) v *= load_n(norm + i, n);
    if (!how.first) v *= gate(i, n);
    store_n(out + i, v, n);
  });
}

template <class T>
void gate(const Recur& r, const Window& w, Team& team) {
  int64_t outputs = r.layer.outputs();
  team.deal(w.last - w.first, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const T* x = (const T*)r.x + (w.first + row) * r.x_stride + r.layer.convolution.channels;
      T* out = (T*)r.out + (w.first + row) * outputs;
      const OutputGate& how = r.layer.gate;
      for (int64_t i = 0; i < outputs; i += how.width) {
        const float* norm = how.norm ? how.norm + i : nullptr;
        gate_group(how, norm, w.read + row * outputs + i, x + i, out + i);
      }
    }
  });
}

template <class T>
void recur_as(const Recur& r, const Window& w, Team& team) {
  convolve<T>(r, w, team);
  if (!r.layer.heads) return;
  prepare<T>(r, w, team);
  int64_t blocks = (r.layer.value_dim + columns_at_once - 1) / columns_at_once;
  int64_t each = r.layer.heads * blocks;
  team.take((w.last_sequence - w.first_sequence) * each, [&](int64_t piece) {
    Chunk chunk(r, w, w.first_sequence + piece / each);
    if (chunk.begin < chunk.end) run_columns(r, w, chunk, piece % each / blocks, piece % blocks);
  });
  if (r.out) gate<T>(r, w, team);
}

// --- drafts -----------------------------------------------------------------------------------

// Keep what came in for this step's drafts: the next step takes in those that turn out right.
template <class T>
void keep_drafts(const Recur& r, Team& team) {
  int64_t columns = r.layer.columns();
  team.deal(r.batch.sequences, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; s++) {
      float* kept = r.memory.inputs.of(r.batch.slots[s]);
      for (int64_t row = first_draft(r, s); row < r.batch.query_starts[s + 1]; row++) {
        const T* x = (const T*)r.x + row * r.x_stride;
        for_vectors(columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          store_n(kept + i, load_n(x + i, n), n);
        });
        kept += columns;
      }
    }
  });
}

// What came in for the drafts that turned out right, one after another.
void gather_confirmed(const Recur& r, float* x, Team& team) {
  int64_t columns = r.layer.columns();
  team.deal(r.confirmed.sequences, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; s++) {
      int64_t row = r.confirmed.query_starts[s];
      int64_t count = (r.confirmed.query_starts[s + 1] - row) * columns;
      const float* kept = r.memory.inputs.of(r.confirmed.slots[s]);
      for (int64_t i = 0; i < count; i++) x[row * columns + i] = kept[i];
    }
  });
}

void recur_rows(const Recur& r, Team& team);

int64_t tokens_of(const RecurredRows& rows) {
  return rows.sequences ? rows.query_starts[rows.sequences] : 0;
}

}  // namespace

int64_t recur_scratch(const Recurrence& layer, int64_t tokens, int64_t confirmed, int threads) {
  int64_t rows = tokens > confirmed ? tokens : confirmed;
  if (rows > recurred_at_once) rows = recurred_at_once;
  int64_t floats = round_up(confirmed * layer.columns(), 16);
  if (layer.heads) floats += round_up(rows * between(layer), 16) + threads * own_floats(layer);
  return floats * int64_t(sizeof(float));
}

void recur(const Recur& r, Team& team) {
  Recur now = r;
  if (r.confirmed.sequences) {
    auto* x = (float*)r.scratch;
    gather_confirmed(r, x, team);
    now.scratch = (char*)(x + round_up(tokens_of(r.confirmed) * r.layer.columns(), 16));
    Recur before = now;
    before.batch = r.confirmed;
    before.drafts = nullptr;
    before.x = x;
    before.x_stride = r.layer.columns();
    before.out = nullptr;
    before.dtype = DType::float32;
    recur_rows(before, team);
  }
  recur_rows(now, team);
  if (!r.drafts || !r.memory.inputs.step) return;
  switch (r.dtype) {
    case DType::float32: return keep_drafts<float>(r, team);
    case DType::bfloat16: return keep_drafts<bf16>(r, team);
    default: keep_drafts<f16>(r, team);
  }
}

namespace {

void recur_rows(const Recur& r, Team& team) {
  const int64_t* starts = r.batch.query_starts;
  int64_t tokens = tokens_of(r.batch);
  int64_t rows = tokens < recurred_at_once ? tokens : recurred_at_once;
  Window w{};
  if (r.layer.heads) {  // or there is nothing in between
    w.convolved = (float*)r.scratch;
    w.decay = w.convolved + rows * r.layer.convolution.channels;
    w.strength = w.decay + rows * r.layer.decays();
    w.read = w.strength + rows * r.layer.heads;
    w.own = w.convolved + round_up(rows * between(r.layer), 16) + team.index * own_floats(r.layer);
  }
  for (w.first = 0; w.first < tokens; w.first = w.last) {
    w.last = w.first + rows < tokens ? w.first + rows : tokens;
    while (starts[w.first_sequence + 1] <= w.first) w.first_sequence++;
    w.last_sequence = w.first_sequence;
    while (w.last_sequence < r.batch.sequences && starts[w.last_sequence] < w.last) {
      w.last_sequence++;
    }
    // Drafts stay together, since no state is left between them.
    int64_t known = first_draft(r, w.last_sequence - 1);
    if (known > w.first && known < w.last && starts[w.last_sequence] > w.last) w.last = known;
    switch (r.dtype) {
      case DType::float32: recur_as<float>(r, w, team); break;
      case DType::bfloat16: recur_as<bf16>(r, w, team); break;
      default: recur_as<f16>(r, w, team);
    }
  }
}

}  // namespace

}  // namespace quire::QUIRE_ISA
