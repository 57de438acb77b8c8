#include "layers/decoder.hpp"

#include <cstring>

namespace quire {
namespace {

// Bringing threads together takes as long as reading so many bytes of weights.
constexpr int64_t products_from = 1 << 16;

// As long as rewriting so many numbers of states.
constexpr int64_t states_from = 1 << 16;

}  // namespace

bool soon_done(const Recur& r) {
  const Recurrence& layer = r.layer;
  int64_t each = layer.convolution.channels + layer.outputs() * layer.key_dim;
  const RecurredRows& before = r.confirmed;
  int64_t tokens = r.batch.query_starts[r.batch.sequences] + before.query_starts[before.sequences];
  return tokens * each < states_from;
}

bool soon_done(const Product& p) {
  return p.weight.bytes() * (1 + p.rows / 8) < products_from;
}

const Packed* first_product(const Part& part) {
  if (auto* attention = std::get_if<SelfAttention>(&part)) return &attention->qkv;
  if (auto* attention = std::get_if<LatentAttention>(&part)) return &attention->inputs;
  if (auto* recurrence = std::get_if<SelfRecurrence>(&part)) return &recurrence->inputs;
  if (auto* mlp = std::get_if<Mlp>(&part)) return &mlp->up;
  if (auto* mlp = std::get_if<GivenMlp>(&part)) return &mlp->up;
  if (auto* laurel = std::get_if<Laurel>(&part)) return &laurel->left;
  return nullptr;
}

void Walk::go() {
  const Decoder& decoder = pass_.decoder;
  layer_ = decoder.layers.data();
  if (decoder.ranks) sums_ = decoder.ranks->sums();
  const void* from = nullptr;
  for (const DecoderLayer& layer : decoder.layers) {
    layer_ = &layer;
    bool last = &layer == &decoder.layers.back();
    if (&layer == decoder.layers.data() || layer.has_streams()) from = entered();
    const Norm none{};
    const Norm& next = last                     ? decoder.final_norm
                       : layer_[1].has_streams() ? none
                                                 : layer_[1].before();
    if (is_there(layer.mixer)) {
      second_ = false;
      go_through(layer.mixer, from);
      if (!add_up()) return;
      if (layer.parallel) {
        // Before x is what the mixer makes of it. Adding leaves what is given where it is.
        if (layer.mlp_norms.before.used) from = given(layer.mlp_norms.before);
        add(layer.mixer_norms, Norm{});
      } else {
        from = add(layer.mixer_norms, is_there(layer.mlp) ? layer.mlp_norms.before : next);
      }
    }
    if (is_there(layer.mlp)) {
      second_ = true;
      go_through(layer.mlp, from);
      if (!add_up()) return;
      if (layer.corrected.count) add_to_streams();
      else from = add(layer.mlp_norms, next);
    }
  }
  if (decoder.ranks && team_.index == 0) decoder.ranks->have_done(sums_);
}

void* Walk::delta() const {
  return pass_.placed ? pass_.decoder.ranks->place(sums_) : pass_.wide;
}

bool Walk::add_up() {
  Ranks* ranks = pass_.decoder.ranks;
  if (!ranks) return true;
  int64_t size = pass_.rows * pass_.hidden;
  if (!pass_.placed) return ranks->add_up(sums_, pass_.wide, size, pass_.dtype, team_);
  return ranks->add_placed(sums_++, pass_.wide, size, pass_.dtype, team_);
}

void Walk::times(Projection projection, const Packed& weight, const void* from, void* to,
                 const Packed* next) {
  Product p = pass_.product(weight, from, to);
  p.next = next;
  share(team_, soon_done(p), [&](Team& team) { build_.product(p, team); });
  if (!pass_.adapting.num_runs) return;
  int64_t number = (layer_ - pass_.decoder.layers.data()) * projections + int(projection);
  adapt(build_, pass_.adapting, number, from, weight.inputs, to, weight.outputs, team_);
}

StreamRows Walk::rows_of(const Streams& streams, void* x) const {
  return {streams, pass_.streams, x, pass_.rows, pass_.hidden, pass_.dtype};
}

const void* Walk::entered() {
  const Streams& predicted = layer_->predicted;
  const Streams& corrected = layer_->corrected;
  if (predicted.count) build_.predict(rows_of(predicted, pass_.x), team_);
  if (corrected.count) build_.correct(rows_of(corrected, pass_.x), team_);
  return given(layer_->before());
}

void Walk::add_to_streams() {
  const Norm& norm = layer_->mlp_norms.output;
  if (norm.used) {
    build_.norm({pass_.wide, nullptr, nullptr, pass_.wide, pass_.rows, pass_.hidden, pass_.hidden,
                 pass_.hidden, pass_.hidden, pass_.dtype, norm}, team_);
  }
  build_.add_to_others(rows_of(layer_->corrected, pass_.wide), team_);
}

const void* Walk::given(const Norm& norm) {
  if (!norm.used) return pass_.x;
  build_.norm({pass_.x, nullptr, nullptr, pass_.out, pass_.rows, pass_.hidden, pass_.hidden,
               pass_.hidden, pass_.hidden, pass_.dtype, norm}, team_);
  return pass_.out;
}

const void* Walk::add(const Norms& norms, const Norm& next) {
  bool after = norms.after.used;
  build_.norm({pass_.x, pass_.x, pass_.wide, after ? pass_.x : pass_.out, pass_.rows, pass_.hidden,
               pass_.hidden, pass_.hidden, pass_.hidden, pass_.dtype, after ? norms.after : next,
               norms.output, norms.scale, norms.total}, team_);
  if (after) return given(next);
  return next.used ? pass_.out : pass_.x;
}

const Packed* Walk::following() const {
  if (!second_ && is_there(layer_->mlp)) return first_product(layer_->mlp);
  if (layer_ == &pass_.decoder.layers.back()) return nullptr;
  return first_product(is_there(layer_[1].mixer) ? layer_[1].mixer : layer_[1].mlp);
}

void Walk::go_through(const Part& part, const void* from) {
  std::visit([&](const auto& known) { go_through(known, from); }, part);
}

void Walk::go_through(const SelfAttention& attention, const void* from) {
  const Attend& prepared = std::get<Attend>(at_hand());
  times(second_ ? Projection::up : Projection::qkv, attention.qkv, from, pass_.wide, nullptr);
  normalise_heads(attention.query_norm, prepared.query, attention.query_width());
  normalise_heads(attention.key_norm, prepared.key, attention.key_width());
  share(team_, prepared.schedule.soon_done, [&](Team& team) { build_.attend(prepared, team); });
  if (attention.gates) {
    int64_t width = attention.output.inputs;
    const char* gates = pass_.wide + attention.query_width() * size_of(pass_.dtype);
    build_.gate({pass_.narrow, gates, pass_.rows, width, width / attention.gates, width,
                 prepared.query.stride, pass_.dtype},
                team_);
  }
  times(second_ ? Projection::down : Projection::output, attention.output, pass_.narrow, delta(),
        following());
}

void Walk::go_through(const SelfRecurrence& recurrence, const void* from) {
  const Recur& prepared = std::get<Recur>(at_hand());
  times(second_ ? Projection::up : Projection::qkv, recurrence.inputs, from, pass_.wide, nullptr);
  if (recurrence.gates) widen(recurrence, static_cast<char*>(const_cast<void*>(prepared.x)));
  share(team_, soon_done(prepared), [&](Team& team) { build_.recur(prepared, team); });
  times(second_ ? Projection::down : Projection::output, recurrence.output, pass_.narrow, delta(),
        following());
}

void Walk::widen(const SelfRecurrence& recurrence, char* to) {
  const Recurrence& layer = recurrence.recurrence;
  const int64_t size = size_of(pass_.dtype), stride = recurrence.inputs.outputs;
  const int64_t mixed = layer.convolution.channels, columns = layer.columns();
  const int64_t narrow_steps = mixed + layer.heads;
  const int64_t strengths = mixed + recurrence.gates->outputs;
  team_.deal(pass_.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const char* x = pass_.wide + row * stride * size;
      char* out = to + row * columns * size;
      std::memcpy(out, x, mixed * size);
      std::memcpy(out + strengths * size, x + mixed * size, layer.heads * size);
    }
  });
  auto make = [&](const Packed& weight, int64_t from, int64_t at) {
    Product p = pass_.product(weight, pass_.wide + from * size, to + at * size);
    p.x_stride = stride;
    p.out_stride = columns;
    share(team_, soon_done(p), [&](Team& team) { build_.product(p, team); });
  };
  make(*recurrence.gates, narrow_steps + recurrence.steps->inputs, mixed);
  make(*recurrence.steps, narrow_steps, strengths + layer.heads);
}

void Walk::go_through(const Mlp& mlp, const void* from) {
  times(Projection::up, mlp.up, from, pass_.wide, &mlp.down);
  build_.activate({pass_.wide, pass_.narrow, pass_.rows, mlp.down.inputs, mlp.up.outputs,
                   pass_.dtype, mlp.activation, mlp.gated, mlp.factor, mlp.alphas, nullptr, 0, mlp.cut},
                  team_);
  times(Projection::down, mlp.down, pass_.narrow, delta(), following());
}

void Walk::go_through(const GivenMlp& mlp, const void* from) {
  times(Projection::up, mlp.up, from, pass_.wide, &mlp.down);
  auto* given = static_cast<const char*>(pass_.given.data) + mlp.first * size_of(pass_.dtype);
  build_.activate({pass_.wide, pass_.narrow, pass_.rows, mlp.down.inputs, mlp.up.outputs,
                   pass_.dtype, mlp.activation, false, 1.0f, {}, given, pass_.given.stride}, team_);
  times(Projection::down, mlp.down, pass_.narrow, delta(), following());
}

void Walk::go_through(const Laurel& laurel, const void* from) {
  times(Projection::up, laurel.left, from, pass_.narrow, &laurel.right);
  times(Projection::down, laurel.right, pass_.narrow, pass_.wide, following());
  build_.norm({from, pass_.wide, pass_.wide, nullptr, pass_.rows, pass_.hidden, pass_.hidden,
               pass_.hidden, pass_.hidden, pass_.dtype, Norm{}, laurel.norm}, team_);
}

void Walk::go_through(const Experts&, const void* from) {
  auto* to = static_cast<char*>(delta());
  const Mixture& mixture = std::get<Mixture>(at_hand());
  auto* x = static_cast<const char*>(from);
  mixture.run(build_, x, x, to, pass_.rows, team_);
}

void Walk::normalise_heads(const Norm& norm, const Rows& heads, int64_t width) {
  if (!norm.used) return;
  build_.norm({heads.data, nullptr, nullptr, const_cast<void*>(heads.data), pass_.rows, width,
               heads.stride, 0, heads.stride, pass_.dtype, norm}, team_);
}

}  // namespace quire
