#include "kernels.hpp"

#include <algorithm>

namespace quire {
namespace {

// Starting threads takes as long as some hundred thousand products, or as reading so much.
constexpr int64_t attention_from = 1 << 18;    // products
constexpr int64_t elementwise_from = 1 << 17;  // elements
constexpr int64_t products_from = 1 << 16;     // bytes of weights

int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

}  // namespace

void multiply(const Build& build, Workspace<char>& scratch, const Packed& weight, const void* x,
              int64_t x_stride, DType dtype, void* out, DType out_dtype, int64_t rows,
              int threads) {
  if (!rows) return;
  Product p{weight, x, x_stride, out, rows, dtype, out_dtype, nullptr, threads};
  if (weight.panels * weight.lines * line_bytes * (1 + rows / 8) < products_from) p.threads = 1;
  p.scratch = scratch.get(build.product_scratch(p));
  build.product(p);
}

void Kernels::attend(Plan& plan, const Layer& layer, Rows query, Rows key, Rows value, void* out,
                     const Rotation* rotation) {
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
                division.store_first};
  a.query = query;
  a.key = key;
  a.value = value;
  a.out = out;
  if (rotation) a.rotation = *rotation;
  a.threads = division.cost * (a.key_dim + a.value_dim) < attention_from ? 1 : plan.threads();
  a.scratch_bytes = build_->scratch_bytes(a);
  a.scratch = scratch_.get(a.scratch_bytes * a.threads);
  a.parts = parts_.get(a.num_kv_heads * division.part_rows * (a.value_dim + 2));
  a.counters = division.counters.data();
  build_->attend(a);
}

void Kernels::norm(const Norm& norm, const void* x, int64_t x_stride, const void* delta,
                   int64_t delta_stride, void* sum, void* out, int64_t rows, int64_t width,
                   DType dtype, int threads) {
  build_->norm({x, sum, delta, out, rows, width, x_stride, delta_stride, dtype, norm,
                rows * width < elementwise_from ? 1 : threads});
}

void Kernels::activate(const void* x, int64_t x_stride, void* out, int64_t rows, int64_t width,
                       DType dtype, Activation activation, bool gated, int threads) {
  build_->activate({x, out, rows, width, x_stride, dtype, activation, gated,
                    rows * width < elementwise_from / 4 ? 1 : threads});
}

void Kernels::argmax(const void* x, int64_t x_stride, int64_t* out, int64_t rows, int64_t width,
                     DType dtype, int threads) {
  build_->argmax({x, out, rows, width, x_stride, dtype,
                  rows * width < elementwise_from ? 1 : threads});
}

void Kernels::run(const Decoder& decoder, Plan& plan, void* x, void* out,
                  const Rotation* rotation) {
  const DecoderLayer& first = decoder.layers.front();
  DType dtype = first.attention.fixed.dtype;
  int64_t rows = plan.num_tokens(), hidden = first.qkv.inputs, size = size_of(dtype);
  int threads = plan.threads();
  int64_t wide_size = hidden, narrow_size = 0;
  for (const DecoderLayer& layer : decoder.layers) {
    wide_size = std::max({wide_size, layer.qkv.outputs, layer.up.outputs});
    narrow_size = std::max({narrow_size, layer.output.inputs, layer.down.inputs});
  }
  // ``wide``: what qkv and up give, then what output and down give. ``narrow``: what the latter take.
  char* wide = states_.get(rows * (wide_size + narrow_size) * size);
  char* narrow = wide + rows * wide_size * size;
  auto times = [&](const Packed& weight, const void* from, void* to) {
    multiply(*build_, products_, weight, from, weight.inputs, dtype, to, dtype, rows, threads);
  };
  auto add_norm = [&](const Norm& next) {
    norm(next, x, hidden, wide, hidden, x, out, rows, hidden, dtype, threads);
  };
  norm(first.attention_norm, x, hidden, nullptr, 0, nullptr, out, rows, hidden, dtype, threads);
  for (const DecoderLayer& layer : decoder.layers) {
    const Attend& a = layer.attention.fixed;
    int64_t keys = int64_t(a.num_heads) * a.key_dim;
    int64_t values = keys + int64_t(a.num_kv_heads) * a.key_dim, stride = layer.qkv.outputs;
    times(layer.qkv, out, wide);
    attend(plan, layer.attention, {wide, stride}, {wide + keys * size, stride},
           {wide + values * size, stride}, narrow, rotation);
    times(layer.output, narrow, wide);
    add_norm(layer.mlp_norm);
    times(layer.up, out, wide);
    activate(wide, layer.up.outputs, narrow, rows, layer.down.inputs, dtype, layer.activation,
             layer.gated, threads);
    times(layer.down, narrow, wide);
    bool last = &layer == &decoder.layers.back();
    add_norm(last ? decoder.final_norm : (&layer)[1].attention_norm);
  }
}

}  // namespace quire
