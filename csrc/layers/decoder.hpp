// A decoder's layers, and how the threads of a step go through them.
#pragma once

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "builds.hpp"
#include "layers/adapter.hpp"
#include "layers/experts.hpp"
#include "products/products.hpp"
#include "ranks/ranks.hpp"
#include "recurrence/recurrence.hpp"

namespace quire {

// What is the same in every step for one layer's attention.
struct Layer {
  Attend fixed{};
  int kv_group = 0;
};

// Products take [T, inputs] and give [T, outputs].
// Without values, keys are values too, before they are normalised and turned; with queries alone,
// these attend to what an earlier layer has stored.
struct SelfAttention {
  Packed qkv;  // d -> H D + Hkv D + Hkv Dv: queries, keys, values
  Layer layer;
  Packed output;  // H Dv -> d
  Norm query_norm;  // of all heads together, H D; of each alone as ``layer`` says
  Norm key_norm;    // Hkv D
  int rotation;  // which of the step's; -1: none
  int64_t gates;  // which qkv gives behind queries, of as many neighbours of what is attended each

  int64_t query_width() const { return int64_t(layer.fixed.num_heads) * layer.fixed.key_dim; }
  int64_t key_width() const { return int64_t(layer.fixed.num_kv_heads) * layer.fixed.key_dim; }
  // What is given before keys, and with them.
  int64_t before_keys() const { return query_width() + gates; }
  bool has_keys() const { return qkv.outputs > before_keys(); }
  bool has_values() const { return qkv.outputs > before_keys() + key_width(); }
};

// Attention over latents (MLA; DeepSeek-AI, "DeepSeek-V2", 2024): what is kept of a token is one
// vector, of which keys and values of all heads could be made. Queries are taken to the latents in
// their place, and what they find is taken to values.
//
// A head's query has R numbers that are turned by positions, then N that are not.
struct LatentAttention {
  Packed inputs;  // d -> what queries are made of, or these themselves; R turned numbers; a latent
  Norm query_norm;                // of what queries are made of
  std::optional<Packed> queries;  // -> H (R + N)
  Norm latent_norm;
  std::vector<Packed> keys;  // by head: N -> L
  Layer layer;               // its keys are R turned numbers and a latent of L
  std::vector<Packed> values;  // by head: L -> V
  Packed output;               // H V -> d
  int rotation;                // which of the step's; -1: none

  int64_t heads() const { return int64_t(keys.size()); }
  int64_t key_width() const { return layer.fixed.key_dim; }
  int64_t latent_width() const { return layer.fixed.value_dim; }
  int64_t turned_width() const { return key_width() - latent_width(); }
  int64_t head_width() const { return turned_width() + keys.front().inputs; }
  int64_t value_width() const { return values.front().outputs; }
  // In front of a token's key.
  int64_t before_key() const { return inputs.outputs - key_width(); }
  // Numbers of a token that are there at once beside what ``inputs`` gives: queries as they attend,
  // whose place values take; and what is found, whose place queries take before.
  int64_t first_place() const { return heads() * std::max(key_width(), value_width()); }
  int64_t second_place() const { return heads() * std::max(latent_width(), head_width()); }
};

// A state that every token rewrites, by slot.
//
// With ``gates`` and ``steps``, these are made of fewer numbers, which ``inputs`` gives behind what
// is mixed and strengths: those of steps, then those of gates.
struct SelfRecurrence {
  Packed inputs;  // d -> what recurrences take
  Recurrence recurrence;
  StateMemory memory;
  Packed output;
  std::optional<Packed> gates, steps;

  // Numbers of a token that are there at once beside what ``inputs`` gives: what recurrences give,
  // and what they take, if that is not the same.
  int64_t places() const { return output.inputs + (gates ? recurrence.columns() : 0); }
};

struct Mlp {
  Packed up;    // d -> F; gated: 2 F
  Packed down;  // F -> d
  Activation activation;
  bool gated;
  float factor;  // of what is activated, before
  Alphas alphas;
  float cut;  // see ``Activate``
};

// down(activation(up(x)) * given), of columns of what the step gives all layers.
struct GivenMlp {
  Packed up;    // d -> F
  Packed down;  // F -> d
  Activation activation;
  int64_t first;  // column
};

// x + norm(right(left(x))), of few numbers in between.
struct Laurel {
  Packed left;   // d -> R
  Packed right;  // R -> d
  Norm norm;
};

// Around a part of a layer: x becomes after(total * (x + scale * output(part(before(x))))).
struct Norms {
  Norm before{}, output{}, after{};
  float scale = 1.0f;
  float total = 1.0f;
};

using Part = std::variant<std::monostate, SelfAttention, LatentAttention, SelfRecurrence, Mlp,
                          GivenMlp, Laurel, Experts>;

QUIRE_INLINE bool is_there(const Part& part) { return part.index() != 0; }
// The product that takes x; null: there is no one such.
const Packed* first_product(const Part& part);

// What mixes tokens, then an MLP; either may be absent. ``parallel``: both of the same x, and what
// they give is added to it. Then neither has a norm after, the mixer has one before; an MLP that has
// none is given the same.
struct DecoderLayer {
  Part mixer;
  Norms mixer_norms;
  Part mlp;
  Norms mlp_norms;
  bool parallel;
  // Of which the layer sees one: predicted before it; or corrected, by what earlier layers made of
  // the one, before this one's output is added to all but the first. ``count`` 0: no such.
  Streams predicted{}, corrected{};

  bool has_streams() const { return predicted.count || corrected.count; }
  const Norm& before() const { return (is_there(mixer) ? mixer_norms : mlp_norms).before; }
};

struct Decoder {
  DType dtype;
  int64_t hidden;
  std::vector<DecoderLayer> layers;
  Norm final_norm{};
  Ranks* ranks = nullptr;  // over whom attention's and MLPs' outputs are added up
};

// What a step makes of a part.
using Prepared = std::variant<std::monostate, Attend, Recur, Mixture>;

// One way through a decoder's layers.
struct Pass {
  const Decoder& decoder;
  std::vector<Prepared> prepared;  // by layer, its mixer and its MLP
  void* x;    // [rows, hidden]
  void* out;  // [rows, hidden]
  char* wide;    // what qkv and up give, then what output and down give
  char* narrow;  // what output and down take
  DType dtype;
  int64_t rows, hidden;
  char* scratch = nullptr;  // of products
  Adapt adapting{};  // of no rows, where nobody has an adapter
  bool placed = false;  // what output and down give has room among the ranks' parts
  Rows given{};  // of each row, for all layers
  void* streams = nullptr;  // [rows, streams, hidden]

  Product product(const Packed& weight, const void* from, void* to) const {
    return {weight, from, weight.inputs, to, rows, dtype, dtype, scratch};
  }
  // Of a head, for some of the rows at a time, by one thread.
  static constexpr int64_t rows_of_head = 64;
  int64_t head_scratch(const Build& build, const Packed& weight) const {
    Product p = product(weight, nullptr, nullptr);
    p.rows = std::min(rows, rows_of_head);
    return (build.product_scratch(p, 1) + 63) / 64 * 64;
  }
};

// A product that is done before threads could have come together.
bool soon_done(const Product& p);
bool soon_done(const Recur& r);

// A pass as one thread of its team goes it.
class Walk {
 public:
  Walk(const Build& build, const Pass& pass, Team& team)
      : build_(build), pass_(pass), team_(team) {}

  void go();

 private:
  enum class Projection { qkv, output, up, down };

  // Where output and down are to put what they give.
  void* delta() const;
  // Of what they gave: the sum over ranks, to ``wide``. False: a rank has failed.
  bool add_up();
  // A product with the weight that is this projection of the layer at hand, and before that with
  // ``next``, which is null where much else is read in between.
  void times(Projection projection, const Packed& weight, const void* from, void* to,
             const Packed* next);
  // x as the layer at hand takes it, where it is: of its streams, normalised.
  const void* entered();
  StreamRows rows_of(const Streams& streams, void* x) const;
  // x normalised, for the next part to take: where it is.
  const void* given(const Norm& norm);
  // What the layer at hand gave is added to its streams.
  void add_to_streams();
  // What a part gave, in ``wide``, is added to x. The next part is given the sum, normalised.
  const void* add(const Norms& norms, const Norm& next);
  // Through the part at hand. A layer's second part has the projections of an MLP.
  void go_through(const Part& part, const void* from);
  void go_through(const std::monostate&, const void*) {}
  void go_through(const SelfAttention& attention, const void* from);
  void go_through(const LatentAttention& attention, const void* from);
  void go_through(const SelfRecurrence& recurrence, const void* from);
  // What recurrences take, of what ``inputs`` gave.
  void widen(const SelfRecurrence& recurrence, char* to);
  void go_through(const Mlp& mlp, const void* from);
  void go_through(const GivenMlp& mlp, const void* from);
  void go_through(const Laurel& laurel, const void* from);
  void go_through(const Experts& experts, const void* from);
  const Prepared& at_hand() const {
    return pass_.prepared[2 * (layer_ - pass_.decoder.layers.data()) + second_];
  }
  // The product after those of the part at hand.
  const Packed* following() const;
  void normalise_heads(const Norm& norm, const Rows& heads, int64_t width);
  // Rows of each head times its own weight: from columns ``width`` apart, to columns as far apart.
  struct Columns {
    char* data;
    int64_t stride, width;
  };
  void times_by_head(const std::vector<Packed>& weights, const Columns& from, const Columns& to,
                     int64_t copied);

  const Build& build_;
  const Pass& pass_;
  Team& team_;
  const DecoderLayer* layer_ = nullptr;  // at hand
  bool second_ = false;                  // so is its MLP
  uint32_t sums_ = 0;  // over ranks
};

}  // namespace quire
