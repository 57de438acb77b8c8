#include "kernels.hpp"

#include <omp.h>

#include <algorithm>

namespace quire {
namespace {

// Bringing threads together takes as long as some hundred thousand products, or as reading so much.
constexpr int64_t attention_from = 1 << 18;    // products
constexpr int64_t elementwise_from = 1 << 17;  // elements
constexpr int64_t products_from = 1 << 16;     // bytes of weights

int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

bool soon_done(const Product& p) {
  return p.weight.bytes() * (1 + p.rows / 8) < products_from;
}

// Let so many threads do something together, in a parallel region if they are several.
template <class Body>
void together(int threads, const Body& body) {
  int64_t taken = 0;
  if (threads == 1) {
    Team team{0, 1, &taken};
    return body(team);
  }
#pragma omp parallel num_threads(threads)
  {
    Team team{omp_get_thread_num(), omp_get_num_threads(), &taken};
    body(team);
  }
}

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
  wanted.tile_from = build_->tile_from(a.dtype, a.kv_dtype);
  Division& division = plan.division(wanted, build_->tile_rows);
  a.num_tokens = plan.num_tokens();
  a.query_starts = plan.query_starts();
  a.context_lens = plan.context_lens();
  a.tables = plan.kv_group(layer.kv_group);
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

void Kernels::norm(const Norm& norm, const void* x, int64_t x_stride, const void* delta,
                   int64_t delta_stride, void* sum, void* out, int64_t rows, int64_t width,
                   DType dtype, int threads) {
  NormRows n{x, sum, delta, out, rows, width, x_stride, delta_stride, dtype, norm};
  together(rows * width < elementwise_from ? 1 : threads,
           [&](Team& team) { build_->norm(n, team); });
}

void Kernels::activate(const void* x, int64_t x_stride, void* out, int64_t rows, int64_t width,
                       DType dtype, Activation activation, bool gated, int threads) {
  Activate a{x, out, rows, width, x_stride, dtype, activation, gated};
  together(rows * width < elementwise_from / 4 ? 1 : threads,
           [&](Team& team) { build_->activate(a, team); });
}

void Kernels::argmax(const void* x, int64_t x_stride, int64_t* out, int64_t rows, int64_t width,
                     DType dtype, int threads) {
  Argmax a{x, out, rows, width, x_stride, dtype};
  together(rows * width < elementwise_from ? 1 : threads,
           [&](Team& team) { build_->argmax(a, team); });
}

void Kernels::run(const Decoder& decoder, Plan& plan, void* x, void* out,
                  const Rotation* rotation) {
  Pass pass = begin(decoder, plan, x, out, rotation);
  together(plan.threads(), [&](Team& team) { go_through(pass, team); });
}

// All memory that any layer needs is taken here, before threads come together.
Pass Kernels::begin(const Decoder& decoder, Plan& plan, void* x, void* out,
                    const Rotation* rotation) {
  const DecoderLayer& first = decoder.layers.front();
  Pass pass{decoder, {}, x, out, nullptr, nullptr, first.attention.fixed.dtype,
            plan.num_tokens(), first.qkv.inputs};
  int64_t wide_size = pass.hidden, narrow_size = 0, scratch = 0;
  for (const DecoderLayer& layer : decoder.layers) {
    wide_size = std::max({wide_size, layer.qkv.outputs, layer.up.outputs});
    narrow_size = std::max({narrow_size, layer.output.inputs, layer.down.inputs});
    for (const Packed* weight : {&layer.qkv, &layer.output, &layer.up, &layer.down}) {
      scratch = std::max(scratch, build_->product_scratch(pass.product(*weight, x, out),
                                                           plan.threads()));
    }
  }
  int64_t size = size_of(pass.dtype);
  pass.wide = states_.get(pass.rows * (wide_size + narrow_size) * size);
  pass.narrow = pass.wide + pass.rows * wide_size * size;
  pass.scratch = products_.get(scratch);
  for (const DecoderLayer& layer : decoder.layers) {
    Attend a = prepare(plan, layer.attention, rotation);
    int64_t keys = int64_t(a.num_heads) * a.key_dim;
    int64_t values = keys + int64_t(a.num_kv_heads) * a.key_dim, stride = layer.qkv.outputs;
    a.query = {pass.wide, stride};
    a.key = {pass.wide + keys * size, stride};
    a.value = {pass.wide + values * size, stride};
    a.out = pass.narrow;
    pass.attention.push_back(a);
  }
  // A later layer may have needed more than an earlier one was given.
  for (Attend& a : pass.attention) {
    a.scratch = scratch_.get(0);
    a.parts = parts_.get(0);
  }
  return pass;
}

void Kernels::go_through(const Pass& pass, Team& team) const {
  auto times = [&](const Packed& weight, const void* from, void* to) {
    Product p = pass.product(weight, from, to);
    share(team, soon_done(p), [&](Team& team) { build_->product(p, team); });
  };
  auto normalise = [&](const Norm& norm, const void* delta) {
    NormRows n{pass.x,    delta ? pass.x : nullptr, delta,      pass.out, pass.rows, pass.hidden,
               pass.hidden, pass.hidden,             pass.dtype, norm};
    build_->norm(n, team);
  };
  auto layer = pass.decoder.layers.begin();
  normalise(layer->attention_norm, nullptr);
  for (const Attend& a : pass.attention) {
    times(layer->qkv, pass.out, pass.wide);
    share(team, a.schedule.soon_done, [&](Team& team) { build_->attend(a, team); });
    times(layer->output, pass.narrow, pass.wide);
    normalise(layer->mlp_norm, pass.wide);
    times(layer->up, pass.out, pass.wide);
    build_->activate({pass.wide, pass.narrow, pass.rows, layer->down.inputs, layer->up.outputs,
                      pass.dtype, layer->activation, layer->gated}, team);
    times(layer->down, pass.narrow, pass.wide);
    bool last = ++layer == pass.decoder.layers.end();
    normalise(last ? pass.decoder.final_norm : layer->attention_norm, pass.wide);
  }
}

}  // namespace quire
