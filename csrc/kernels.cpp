#include "kernels.hpp"

#include <algorithm>

#include "ranks/together.hpp"

namespace quire {
namespace {

// Bringing threads together takes as long as some hundred thousand products, or as reading so much.
constexpr int64_t attention_from = 1 << 18;    // products
constexpr int64_t elementwise_from = 1 << 17;  // elements

}  // namespace

void multiply(const Build& build, Workspace<char>& scratch, Product p, int threads) {
  if (!p.rows) return;
  p.scratch = scratch.get(build.product_scratch(p, threads));
  together(soon_done(p) ? 1 : threads, [&](Team& team) { build.product(p, team); });
}

Attend Kernels::prepare(Plan& plan, const Layer& layer, const Rotation* rotation) {
  Attend a = layer.fixed;
  Division wanted{};
  wanted.kv_group = layer.kv_group;
  wanted.window = a.window;
  wanted.sinks = a.sinks;
  wanted.num_heads = a.num_heads;
  wanted.num_kv_heads = a.num_kv_heads;
  wanted.tile_from = a.values ? build_->tile_from(a.dtype, a.kv_dtype) : build_->tile_rows;
  Division& division = plan.division(wanted, build_->tile_rows);
  a.num_tokens = plan.num_tokens();
  a.num_sequences = plan.num_sequences();
  a.query_starts = plan.query_starts();
  a.context_lens = plan.context_lens();
  a.tables = plan.kv_group(layer.kv_group);
  a.bias = plan.bias;
  a.block_size = plan.block_size();
  a.schedule = {int64_t(division.items.size()), division.items.data(), division.groups.data(),
                division.sources.data(), division.order.data(), division.part_rows,
                division.store_first,
                division.cost * (a.key_dim + a.value_dim) < attention_from};
  if (rotation) a.rotation = *rotation;
  a.scratch_bytes = build_->scratch_bytes(a);
  a.scratch = scratch_.get(a.scratch_bytes * plan.threads());
  a.parts = parts_.get(a.num_kv_heads * division.part_rows * part_floats(a.value_dim));
  a.counters = division.counters.data();
  return a;
}

void Kernels::attend(Plan& plan, const Layer& layer, Rows query, Rows key, Rows value, void* out,
                     const Rotation* rotation) {
  Attend a = prepare(plan, layer, rotation);
  a.query = query;
  a.key = key;
  a.value = value;
  a.out = out;
  together(a.schedule.soon_done ? 1 : plan.threads(),
           [&](Team& team) { build_->attend(a, team); });
}

void Kernels::choose(const Plan& plan, int kv_group, Index x) {
  if (!plan.num_tokens()) return;
  x.num_tokens = plan.num_tokens();
  x.num_sequences = plan.num_sequences();
  x.query_starts = plan.query_starts();
  x.context_lens = plan.context_lens();
  x.tables = plan.kv_group(kv_group);
  x.block_size = plan.block_size();
  x.longest = *std::max_element(x.context_lens, x.context_lens + x.num_sequences);
  x.scratch = indexing_.get(build_->index_scratch(x, plan.threads()));
  together(plan.threads(), [&](Team& team) { build_->choose(x, team); });
}

Recur Kernels::prepare(const Plan& plan, const Recurrence& layer, const StateMemory& memory) {
  const SequenceStates& states = plan.states;
  int64_t sequences = int64_t(states.confirmed_slots.size());
  char* scratch = recurring_.get(build_->recur_scratch(
      layer, plan.num_tokens(), states.confirmed_starts.back(), plan.threads()));
  return {layer, memory,
          {plan.num_sequences(), plan.query_starts(), plan.context_lens(), states.slots,
           states.left},
          {sequences, states.confirmed_starts.data(), states.confirmed_contexts.data(),
           states.confirmed_slots.data(), nullptr},
          states.drafts, nullptr, 0, nullptr, DType::float32, scratch};
}

void Kernels::recur(const Plan& plan, const Recurrence& layer, const StateMemory& memory, Rows x,
                    DType dtype, void* out) {
  if (!plan.num_tokens()) return;
  Recur r = prepare(plan, layer, memory);
  r.x = x.data;
  r.x_stride = x.stride;
  r.out = out;
  r.dtype = dtype;
  together(soon_done(r) ? 1 : plan.threads(), [&](Team& team) { build_->recur(r, team); });
}

void Kernels::norm(const Norm& norm, const void* x, int64_t x_stride, void* delta,
                   int64_t delta_stride, void* sum, void* out, int64_t rows, int64_t width,
                   DType dtype, int threads) {
  NormRows n{x, sum, delta, out, rows, width, x_stride, delta_stride, width, dtype, norm};
  together(rows * width < elementwise_from ? 1 : threads,
           [&](Team& team) { build_->norm(n, team); });
}

void Kernels::activate(const void* x, int64_t x_stride, void* out, int64_t rows, int64_t width,
                       DType dtype, Activation activation, bool gated, float factor, Alphas alphas,
                       float cut, int threads) {
  Activate a{x, out, rows, width, x_stride, dtype, activation, gated, factor, alphas, nullptr, 0,
             cut};
  together(rows * width < elementwise_from / 4 ? 1 : threads,
           [&](Team& team) { build_->activate(a, team); });
}

void Kernels::gate(const Gate& gate, int threads) {
  together(gate.rows * gate.width < elementwise_from / 4 ? 1 : threads,
           [&](Team& team) { build_->gate(gate, team); });
}

void Kernels::predict(const StreamRows& rows, int threads) {
  together(rows.rows * rows.width < elementwise_from / 4 ? 1 : threads,
           [&](Team& team) { build_->predict(rows, team); });
}

void Kernels::correct(const StreamRows& rows, int threads) {
  together(rows.rows * rows.width < elementwise_from / 4 ? 1 : threads,
           [&](Team& team) { build_->correct(rows, team); });
}

void Kernels::argmax(const void* x, int64_t x_stride, int64_t* out, int64_t rows, int64_t width,
                     DType dtype, int threads) {
  Argmax a{x, out, rows, width, x_stride, dtype};
  together(rows * width < elementwise_from ? 1 : threads,
           [&](Team& team) { build_->argmax(a, team); });
}

void Kernels::mix(const Experts& experts, const void* x, const void* routed, void* out,
                  int64_t rows, DType dtype, int threads) {
  if (!rows) return;
  Mixture mixture(*build_, experts, dtype, rows, threads);
  mixture.place(products_.get(mixture.bytes()));
  together(threads, [&](Team& team) {
    mixture.run(*build_, static_cast<const char*>(x), static_cast<const char*>(routed),
                static_cast<char*>(out), rows, team);
  });
}

void Kernels::adapt(const AdaptedBatch& batch, int64_t product, const void* x, int64_t x_stride,
                    void* out, int64_t out_stride, DType dtype, int threads) {
  Adapt work = batch.prepare(adapting_, threads, dtype);
  together(threads, [&](Team& team) {
    quire::adapt(*build_, work, product, x, x_stride, out, out_stride, team);
  });
}

void Kernels::run(const Decoder& decoder, Plan& plan, void* x, void* out,
                  const std::vector<Rotation>& rotations, Rows given, void* streams) {
  Pass pass = begin(decoder, plan, x, out, rotations);
  pass.given = given;
  pass.streams = streams;
  if (decoder.ranks) decoder.ranks->check();
  together(plan.threads(), [&](Team& team) { Walk(*build_, pass, team).go(); });
  if (decoder.ranks) decoder.ranks->check();
}

// All memory that any layer needs is taken here, before threads come together.
Pass Kernels::begin(const Decoder& decoder, Plan& plan, void* x, void* out,
                    const std::vector<Rotation>& rotations) {
  Pass pass{decoder, {}, x, out, nullptr, nullptr, decoder.dtype, plan.num_tokens(),
            decoder.hidden};
  int64_t wide_size = pass.hidden, narrow_size = 0, scratch = 0;
  auto measure = [&](const Part& part) {
    std::vector<const Packed*> weights;
    if (auto* attention = std::get_if<SelfAttention>(&part)) {
      weights = {&attention->qkv, &attention->output};
    } else if (auto* latents = std::get_if<LatentAttention>(&part)) {
      weights = {&latents->inputs, &latents->output};
      if (latents->queries) weights.push_back(&*latents->queries);
      narrow_size = std::max(narrow_size, latents->first_place() + latents->second_place());
      for (const auto* of_heads : {&latents->keys, &latents->values})
        scratch = std::max(scratch,
                           plan.threads() * pass.head_scratch(*build_, of_heads->front()));
    } else if (auto* recurrence = std::get_if<SelfRecurrence>(&part)) {
      weights = {&recurrence->inputs, &recurrence->output};
      if (recurrence->gates) weights.insert(weights.end(), {&*recurrence->gates, &*recurrence->steps});
      narrow_size = std::max(narrow_size, recurrence->places());
    } else if (auto* mlp = std::get_if<Mlp>(&part)) {
      weights = {&mlp->up, &mlp->down};
    } else if (auto* mlp = std::get_if<GivenMlp>(&part)) {
      weights = {&mlp->up, &mlp->down};
    } else if (auto* laurel = std::get_if<Laurel>(&part)) {
      weights = {&laurel->left, &laurel->right};
    } else if (auto* experts = std::get_if<Experts>(&part)) {
      Mixture mixture(*build_, *experts, pass.dtype, pass.rows, plan.threads());
      scratch = std::max(scratch, mixture.bytes());
    }
    for (const Packed* weight : weights) {
      wide_size = std::max(wide_size, weight->outputs);
      narrow_size = std::max(narrow_size, weight->inputs);
      scratch = std::max(scratch, build_->product_scratch(pass.product(*weight, x, out),
                                                           plan.threads()));
    }
  };
  for (const DecoderLayer& layer : decoder.layers) measure(layer.mixer), measure(layer.mlp);
  int64_t size = size_of(pass.dtype);
  pass.wide = states_.get(pass.rows * (wide_size + narrow_size) * size);
  pass.narrow = pass.wide + pass.rows * wide_size * size;
  pass.scratch = products_.get(scratch);
  pass.placed = decoder.ranks && decoder.ranks->fits(pass.rows * pass.hidden * size);
  if (!plan.adapted.empty()) {
    pass.adapting = plan.adapted.prepare(adapting_, plan.threads(), pass.dtype);
  }
  for (const DecoderLayer& layer : decoder.layers) {
    pass.prepared.push_back(prepare(layer.mixer, pass, plan, rotations));
    pass.prepared.push_back(prepare(layer.mlp, pass, plan, rotations));
  }
  // A later layer may have needed more than an earlier one was given.
  for (Prepared& prepared : pass.prepared) {
    if (auto* a = std::get_if<Attend>(&prepared)) {
      a->scratch = scratch_.get(0);
      a->parts = parts_.get(0);
    } else if (auto* r = std::get_if<Recur>(&prepared)) {
      r->scratch = recurring_.get(0);
    }
  }
  return pass;
}

Prepared Kernels::prepare(const Part& part, const Pass& pass, Plan& plan,
                          const std::vector<Rotation>& rotations) {
  int64_t size = size_of(pass.dtype);
  if (auto* attention = std::get_if<SelfAttention>(&part)) {
    bool turned = attention->rotation >= 0;
    Attend a =
        prepare(plan, attention->layer, turned ? &rotations.at(attention->rotation) : nullptr);
    int64_t stride = attention->qkv.outputs;
    char* keys = pass.wide + attention->before_keys() * size;
    a.query = {pass.wide, stride};
    if (attention->has_keys()) {
      a.key = {keys, stride};
      a.value = {attention->has_values() ? keys + attention->key_width() * size : keys, stride};
    }
    a.out = pass.narrow;
    return a;
  }
  if (auto* latents = std::get_if<LatentAttention>(&part)) {
    bool turned = latents->rotation >= 0;
    Attend a = prepare(plan, latents->layer, turned ? &rotations.at(latents->rotation) : nullptr);
    a.query = {pass.narrow, latents->heads() * latents->key_width()};
    a.key = {pass.wide + latents->before_key() * size, latents->inputs.outputs};
    a.out = pass.narrow + pass.rows * latents->first_place() * size;
    return a;
  }
  if (auto* recurrence = std::get_if<SelfRecurrence>(&part)) {
    Recur r = prepare(plan, recurrence->recurrence, recurrence->memory);
    r.x = pass.wide;
    r.x_stride = recurrence->inputs.outputs;
    if (recurrence->gates) {
      r.x = pass.narrow + pass.rows * recurrence->output.inputs * size;
      r.x_stride = recurrence->recurrence.columns();
    }
    r.out = pass.narrow;
    r.dtype = pass.dtype;
    return r;
  }
  if (auto* experts = std::get_if<Experts>(&part)) {
    Mixture mixture(*build_, *experts, pass.dtype, pass.rows, plan.threads());
    mixture.place(pass.scratch);
    return mixture;
  }
  return {};
}

}  // namespace quire
