// What the module passes to the code of one instruction set: plain values and pointers.
#pragma once

#include <cstdint>

#include "team.hpp"

namespace quire {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// A code of four bits. Alone it has a byte; in a pool two share one.
struct int4 {
  uint8_t code;
};

enum class DType : int { float32 = 0, bfloat16 = 1, float16 = 2, int8 = 3, int4 = 4 };

// Bytes of a number that is computed with.
QUIRE_INLINE int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

// Rows of heads in a tensor [T, heads, D] whose last two dimensions are contiguous.
struct Rows {
  const void* data;
  int64_t stride;  // elements from one token to the next
};

struct Norm {
  const void* weight;  // [width]; null: none
  const void* bias;    // [width]; null: none
  DType dtype;  // of weight and bias
  float eps;
  bool centred;
  bool used;  // otherwise there is none
};

struct Rotation {
  const float* cos;  // [T, half]; null: none
  const float* sin;       // all are of that shape
  const float* sink_cos;  // null: as cos
  const float* sink_sin;
  const float* query_scale;  // [T], times queries; null: 1
  int half;
};

// What keys of a pool of 4 bits are less before they are rounded: the nearer of two centres. One is
// what keys have in common, turned as the middle of the key's chunk of columns is, since rotation
// comes between; the other is the key at position 0, which in trained models is unlike all others.
// A scale that is negative says that it was the other.
struct Centring {
  const float* factors;        // [Hkv, D]: then keys are multiplied by them; null: no centres
  const float* query_factors;  // [Hkv, D]: their inverses
  const float* common;         // [Hkv, D], before rotation
  const float* first;          // [Hkv, D]
  // [Hkv, D, D in whole 16]: by how much of what is lost of a number others are made larger
  const float* shares;
  const int32_t* order;  // [Hkv, D]: of numbers, those that count most first
  const float* cos;            // [chunks, half]; null: keys are not turned
  const float* sin;
};
constexpr int64_t centred_columns = 64;  // of a chunk

// One piece of attention work: some tokens over some of the columns that they see, for some KV
// heads. Columns are numbered through: first the sinks, then the window. The tokens are neighbours
// of a sequence, or of several that read these columns from the same blocks.
struct Item {
  int32_t sequence;  // of the first token
  int32_t first_head, heads;  // KV heads
  int32_t first_token, last_token;  // places in the order of tokens
  int32_t first_column, last_column;
  int32_t first_group, groups;  // to which it contributes; 0: its results are all there is
  int32_t segments;  // that its columns are of, each a part
  int32_t part;  // place of its first row among the rows of all parts
};

// Tokens whose results come in parts, to be merged in the order of their columns: from ``sources``,
// the places of their first rows.
struct Group {
  int32_t first_token, last_token;
  int32_t first_source, last_source;
};

// How a step's attention is divided, for all layers with one window.
struct Schedule {
  int64_t num_items;
  const Item* items;  // costliest first
  const Group* groups;
  const int32_t* sources;
  const int32_t* order;  // rows of the batch; sequences that share blocks are neighbours
  int64_t part_rows;  // rows (token x query head of a KV head) of all parts
  // New keys must all be stored before any are read; otherwise each item stores its own.
  bool store_first;
  bool soon_done;  // by one thread
};

// What a token sees of those before it, but for sinks: all, the last so many, or those of its chunk,
// which begins at a multiple of its length.
struct Window {
  int64_t length;  // 0: none
  bool chunk;
};

// The oldest that a token at a position sees.
QUIRE_INLINE int64_t oldest_seen(Window window, int64_t position) {
  if (window.chunk) return position / window.length * window.length;
  return position - window.length + 1 > 0 ? position - window.length + 1 : 0;
}

// The columns that some neighbouring tokens of a sequence see, the first and last of them at given
// positions: the sinks that are beyond a window, then the positions from ``start`` on. A key may be
// in both, for different tokens.
struct Columns {
  int64_t sinks, start, count;
};

QUIRE_INLINE Columns columns_seen(int64_t first, int64_t last, Window window, int64_t sinks) {
  if (!window.length) return {0, 0, last + 1};
  int64_t start = oldest_seen(window, first), beyond = oldest_seen(window, last);
  int64_t shown = sinks < beyond ? sinks : beyond;
  return {shown, start, shown + last + 1 - start};
}

// Softmax is summed by segments of columns, and the segments one after the other, whoever computes
// them: so the order of sums depends on positions only. Those of the sinks come first.
constexpr int64_t segment_columns = 256;

QUIRE_INLINE int64_t sink_segments(const Columns& c) {
  return (c.sinks + segment_columns - 1) / segment_columns;
}
// Which of the segments that are seen a column belongs to.
QUIRE_INLINE int64_t segment_of(const Columns& c, int64_t column) {
  if (column < c.sinks) return column / segment_columns;
  int64_t position = column - c.sinks + c.start;
  return sink_segments(c) + position / segment_columns - c.start / segment_columns;
}
// Its first column that is seen.
QUIRE_INLINE int64_t segment_start(const Columns& c, int64_t number) {
  int64_t of_window = number - sink_segments(c);
  if (of_window < 0) return number * segment_columns;
  if (of_window == 0) return c.sinks;
  return (c.start / segment_columns + of_window) * segment_columns - c.start + c.sinks;
}

// Of a row of a part: its maximum, its sum, and the sums of values, of whole vectors.
QUIRE_INLINE constexpr int64_t part_floats(int64_t value_dim) {
  return (value_dim + 15) / 16 * 16 + 2;
}

struct Tables {
  const int64_t* slots;         // [T]
  const int64_t* block_tables;  // [S, width]
  int64_t width;
  const int64_t* num_dropped;  // [S]
  int64_t num_sink_blocks;
  bool by_column;  // a sequence's row has the slot of each column in place of blocks
};

// What is added to scores by where a key stands: to those of token t in columns from
// before[t][k - 1] on, or from 0, up to before[t][k]: bias[t][k]. Scores are powers of two.
struct ColumnBias {
  const int64_t* before;  // [T, steps], ascending
  const float* bias;      // [T, steps], at most 0, perhaps -inf
  int64_t steps;          // 0: nothing is added
};

// A pool's tile, of a block and a head, has N keys of D numbers and N values of Dv; a block has those
// of its heads, one after another. Blocks' numbers may be places in a memory that other layers share,
// so a block has more rows than there are from one number to the next. If N is a
// multiple of 16 and a key is of whole words of four bytes, they lie as they are multiplied: keys
// as [N / 16, words, 16], the same word of 16 neighbours side by side, and values of two or one
// bytes as [N / 2, Dv, 2]. Otherwise, and values of four bytes always, they lie in rows; so do keys
// of which some are chosen one by one.
// Numbers of 8 and 4 bits are of keys and values that were spread (registers/heads.hpp). Those of 4
// bits lie in halves of words, from the low end on, so that all words are split alike: a key's word
// has eight neighbours, the even ones in its lower half; and a value's half l is of the dimensions
// l, l + Dv / 4, l + Dv / 2 and l + 3 Dv / 4, so its rows and pairs are of Dv / 4 halves.
//
// Of keys that are centred the first 32 numbers have a fifth bit each: number 8 c + 2 k is bit 4 k + c
// in the lower half of the key's scale, number 8 c + 2 k + 1 in that of the value's, whose upper
// halves are the scales.
//
// Where there are no values, they are the last Dv numbers of the keys, as in latent attention; D and
// Dv are even then.
struct Attend {
  // the batch
  int64_t num_tokens, num_sequences;
  const int64_t* query_starts;  // [S + 1]
  const int64_t* context_lens;  // [S]
  Tables tables;
  ColumnBias bias;
  int64_t block_size;
  Schedule schedule;
  // the layer
  int num_heads, num_kv_heads, key_dim, value_dim;
  int64_t block_rows;  // of keys, values and scales, from one block's number to the next
  bool in_rows;  // keys and values, whatever their sizes
  float scale, softcap;  // softcap 0: none
  Window window;
  int64_t sinks;  // of windows that are no chunks
  const float* sink_logits;  // [H], of a key that all see and that has no value; null: none
  Norm query_norm, key_norm, value_norm;
  bool norm_turned;  // norms of queries and keys are of what is turned, else of what will be
  bool shared;  // layers with other norms of queries attend to the same keys
  Rotation rotation;
  // the tensors
  DType dtype, kv_dtype;
  // [T, H, D], [T, Hkv, D], [T, Hkv, Dv]; keys and values null: those that another layer has stored
  Rows query, key, value;
  void* out;               // [T, H, Dv], contiguous
  void* keys;              // blocks of Hkv tiles
  void* values;            // blocks of Hkv tiles; null: see above
  float* key_scales;       // [B, Hkv, N]; only with int8 and int4
  float* value_scales;     // [B, Hkv, N]; the keys' own where there are no values
  Centring centring;
  // memory
  char* scratch;  // team x scratch_bytes(attend)
  int64_t scratch_bytes;
  float* parts;       // [Hkv, part_rows, part_floats(value_dim)]
  int32_t* counters;  // [num_groups, Hkv], each the number of parts to come
};

struct NormRows {
  const void* x;  // [rows, width]
  void* sum;      // [rows, width] by x_stride: x + delta, stored first; null: norm of x
  void* delta;    // [rows, width], perhaps normalised in place; null: nothing is added
  void* out;      // [rows, width], may be where x is
  int64_t rows, width;
  int64_t x_stride, delta_stride, out_stride;  // elements from one row to the next
  DType dtype;
  Norm norm;
  Norm delta_norm{};  // first, of delta
  float delta_scale = 1.0f;  // then
  float total = 1.0f;        // times the sum
};

enum class Activation : int {
  silu = 0, gelu = 1, gelu_tanh = 2, relu = 3, clamped_swiglu = 4, relu2 = 5, xielu = 6
};

// Of xielu: the curvature of what is above 0, and the height of what is below.
struct Alphas {
  float above, below;
};

struct Activate {
  const void* x;  // [rows, width]; gated: [rows, 2 width]
  void* out;      // [rows, width], contiguous
  int64_t rows, width;  // of out
  int64_t x_stride;
  DType dtype;
  Activation activation;
  bool gated;
  float factor = 1.0f;  // of what is activated, before
  Alphas alphas{};
  const void* given = nullptr;  // [rows, width] by given_stride, times what is activated; null: none
  int64_t given_stride = 0;
  // Of a row, before: its numbers, or gates, less their mean and so many standard deviations, and
  // none below 0. NaN: as they are.
  float cut = __builtin_nanf("");
};

struct Gate {
  void* x;            // [rows, width], times the sigmoid of
  const void* gates;  // [rows, width / each]
  int64_t rows, width, each;  // neighbouring numbers of x that have one gate
  int64_t x_stride, gates_stride;
  DType dtype;
};

struct Argmax {
  const void* x;  // [rows, width]
  int64_t* out;   // [rows]
  int64_t rows, width, x_stride;
  DType dtype;
};

// The experts of a mixture that rows go to, and what each of them counts.
// How a mixture's experts are chosen, by the scores that rows give them.
struct Routing {
  int chosen;         // by each row
  bool renormalise;   // so that the weights of the chosen add up to 1
  bool sigmoid;       // scores are sigmoids of the router's numbers, not their softmax
  const float* bias;  // [experts]: added to scores for the choice alone; null: none
  float scale;        // times all weights
  int groups, groups_chosen;  // of neighbours, by their best; the others' experts do not count
  int best;  // one or two of a group
  bool before;  // weights are times what experts are given, not what they give
  // Above 0, an expert's weight is its share among those whose numbers are no further below its own
  // than twice this, by the larger of both; without those that were chosen before it.
  float nearness;
  const float* factors;  // [experts], times the weights of each; null: none
};

constexpr int most_expert_groups = 64;

struct Route {
  float* logits;   // [rows, experts]; may be overwritten
  int64_t stride;  // elements from one row to the next
  int64_t rows, experts;
  Routing routing;
  int32_t* expert;    // [rows, chosen], likeliest first
  float* weight;      // [rows, chosen]
};

// Rows for their experts, times weights, which become 1.
struct Weigh {
  const void* x;          // [rows, width]
  const int32_t* places;  // [rows, chosen]: which row of ``out`` is whose
  float* weights;         // [rows, chosen]
  void* out;              // [rows chosen, width]
  int64_t rows, width;
  int chosen;
  DType dtype;
};

// What rows are given by their experts, and perhaps by an MLP that all go through.
struct Combine {
  const float* parts;     // [rows chosen, width]
  const int32_t* places;  // [rows, chosen]: whose parts are whose
  const float* weights;   // [rows, chosen]
  const void* shared;     // [rows, width]; null: none
  const float* gates;     // by gate_stride: logits of what ``shared`` counts; null: all
  int64_t gate_stride;
  void* out;  // [rows, width]
  int64_t rows, width;
  int chosen;
  DType dtype;  // of shared and out
};

// What several ranks have, to be added in their order.
struct Sum {
  const void* const* parts;  // [count], each [size]
  int count;
  void* out;  // [size], none of the parts
  int64_t size;
  DType dtype;  // of parts and out
};

// A decoder whose layers see one of several streams (AltUp; Baykal et al., 2023). Before a layer all
// are predicted, each from all as they are; after it they are corrected by what it made of the one.
// What they are mixed by hangs on tanh(router x / sqrt(mean(x^2) + eps)), x being the one.
struct Streams {
  int count, active;          // at most ``most_streams``
  const float* router;        // [count, width]
  const float* coefficients;  // predicting: [count, count, count], of the first from the second;
                              // correcting: [count, count]
  const float* scale;         // [width], times the one once it is corrected; null: 1
  float eps;
};

constexpr int most_streams = 8;

struct StreamRows {
  Streams by;
  void* streams;  // [rows, count, width]
  void* x;        // [rows, width]: the one
  int64_t rows, width;
  DType dtype;
};

struct Product;  // products.hpp
struct Grouped;
struct Index;  // indexing.hpp
struct Embed;
struct Adapt;  // adapters.hpp
struct Recurrence;  // recurrence.hpp
struct Recur;

// The code of one instruction set.
struct Build {
  const char* name;
  // Query rows from which a tile of them is multiplied at once; the rows of such a tile.
  int (*tile_from)(DType query, DType kv);
  int tile_rows;
  int64_t (*scratch_bytes)(const Attend&);
  void (*attend)(const Attend&, Team&);
  void (*norm)(const NormRows&, Team&);
  void (*activate)(const Activate&, Team&);
  void (*gate)(const Gate&, Team&);
  void (*predict)(const StreamRows&, Team&);  // streams, and x of them
  void (*correct)(const StreamRows&, Team&);  // streams by x, and then x of them
  void (*add_to_others)(const StreamRows&, Team&);  // x, to all streams but the first
  void (*argmax)(const Argmax&, Team&);
  void (*add_up)(const Sum&, int64_t first, int64_t last);  // some of the numbers
  int64_t (*product_scratch)(const Product&, int threads);
  void (*product)(const Product&, Team&);
  int64_t (*grouped_scratch)(const Grouped&, int threads);
  void (*grouped_product)(const Grouped&, Team&);
  void (*embed)(const Embed&);
  void (*route)(const Route&, Team&);
  void (*weigh)(const Weigh&, Team&);
  void (*combine)(const Combine&, Team&);
  void (*adapt)(const Adapt&, Team&);
  int64_t (*recur_scratch)(const Recurrence&, int64_t tokens, int64_t confirmed, int threads);
  void (*recur)(const Recur&, Team&);
  int64_t (*index_scratch)(const Index&, int threads);
  void (*choose)(const Index&, Team&);
};

}  // namespace quire
