#include "layers/decoder.hpp"

namespace quire {
namespace {

// Bringing threads together takes as long as reading so many bytes of weights.
constexpr int64_t products_from = 1 << 16;

}  // namespace

bool soon_done(const Product& p) {
  return p.weight.bytes() * (1 + p.rows / 8) < products_from;
}

void Walk::go() {
  const Decoder& decoder = pass_.decoder;
  layer_ = decoder.layers.data();
  if (decoder.ranks) sums_ = decoder.ranks->sums();
  const void* from = given(layer_->attention_norms.before);
  for (const Attend& prepared : pass_.attention) {
    const DecoderLayer& layer = *layer_;
    attend(layer.attention, prepared, from);
    if (!add_up()) return;
    if (layer.parallel) {
      // Before x is what the attention makes of it. Adding leaves what is given where it is.
      if (layer.mlp_norms.before.used) from = given(layer.mlp_norms.before);
      add(layer.attention_norms, Norm{});
    } else {
      from = add(layer.attention_norms, layer.mlp_norms.before);
    }
    std::visit([&](const auto& mlp) { go_through(mlp, from); }, layer.mlp);
    if (!add_up()) return;
    bool last = &layer == &decoder.layers.back();
    from = add(layer.mlp_norms, last ? decoder.final_norm : layer_[1].attention_norms.before);
    layer_++;
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
               norms.output, layer_->residual_scale}, team_);
  if (after) return given(next);
  return next.used ? pass_.out : pass_.x;
}

void Walk::attend(const SelfAttention& attention, const Attend& prepared, const void* from) {
  times(Projection::qkv, attention.qkv, from, pass_.wide, nullptr);
  normalise_heads(attention.query_norm, prepared.query, attention.query_width());
  normalise_heads(attention.key_norm, prepared.key, attention.key_width());
  share(team_, prepared.schedule.soon_done, [&](Team& team) { build_.attend(prepared, team); });
  auto* mlp = std::get_if<Mlp>(&layer_->mlp);
  times(Projection::output, attention.output, pass_.narrow, delta(), mlp ? &mlp->up : nullptr);
}

void Walk::go_through(const Mlp& mlp, const void* from) {
  times(Projection::up, mlp.up, from, pass_.wide, &mlp.down);
  build_.activate({pass_.wide, pass_.narrow, pass_.rows, mlp.down.inputs, mlp.up.outputs,
                   pass_.dtype, mlp.activation, mlp.gated}, team_);
  bool last = layer_ == &pass_.decoder.layers.back();
  times(Projection::down, mlp.down, pass_.narrow, delta(),
        last ? nullptr : &layer_[1].attention.qkv);
}

void Walk::go_through(const Experts&, const void* from) {
  const Mixture& mixture = *pass_.mixtures[layer_ - pass_.decoder.layers.data()];
  auto* to = static_cast<char*>(delta());
  mixture.run(build_, static_cast<const char*>(from), to, pass_.rows, team_);
}

void Walk::normalise_heads(const Norm& norm, const Rows& heads, int64_t width) {
  if (!norm.used) return;
  build_.norm({heads.data, nullptr, nullptr, const_cast<void*>(heads.data), pass_.rows, width,
               heads.stride, 0, heads.stride, pass_.dtype, norm}, team_);
}

}  // namespace quire
