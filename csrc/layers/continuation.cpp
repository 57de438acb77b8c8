#include "layers/continuation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace quire {
namespace {

int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

const float* rows_from(const float* table, int64_t row, int half) {
  return table ? table + row * half : nullptr;
}

// Where the token at a position is kept.
int64_t slot_of(const Tables& tables, int64_t text, int64_t position, int64_t block_size) {
  int64_t place = position / block_size - tables.num_dropped[text];
  return tables.block_tables[text * tables.width + place] * block_size + position % block_size;
}

}  // namespace

void Kernels::go_on(const Continuation& c) {
  const SelfAttention& first = c.decoder.layers.front().attention;
  const DType dtype = first.layer.fixed.dtype;
  constexpr int64_t line = 64;
  const int64_t width = first.qkv.inputs * size_of(dtype), bytes = c.texts * width;
  const int64_t states = (bytes + line - 1) / line * line;
  char* x = continued_.get(2 * states + c.texts * c.head.outputs * 4);
  char* normed = x + states;
  auto* logits = reinterpret_cast<float*>(normed + states);
  const void* given = c.decoder.final_norm.used ? normed : x;
  std::vector<int64_t> tokens(c.last, c.last + c.texts), contexts(c.texts), starts{0};
  std::vector<std::vector<int64_t>> slots(c.kv_groups.size(), std::vector<int64_t>(c.texts));
  int64_t row = 0;  // of the rotations
  for (int64_t i = 0; i < c.texts; i++) starts.push_back(i + 1);
  for (int64_t pass = 0; pass < c.counts[0]; pass++) {
    int64_t rows = 0;
    while (rows < c.texts && c.counts[rows] > pass) rows++;
    starts.resize(rows + 1);
    for (int64_t i = 0; i < rows; i++) contexts[i] = c.positions[i] + pass + 1;
    Plan plan(starts, contexts.data(), c.block_size, c.threads);
    for (size_t g = 0; g < c.kv_groups.size(); g++) {
      Tables tables = c.kv_groups[g];
      for (int64_t i = 0; i < rows; i++) {
        slots[g][i] = slot_of(tables, i, contexts[i] - 1, c.block_size);
      }
      tables.slots = slots[g].data();
      plan.add_kv_group(tables);
    }
    std::vector<Rotation> rotations = c.rotations;
    for (Rotation& r : rotations) {
      r = {rows_from(r.cos, row, r.half), rows_from(r.sin, row, r.half),
           rows_from(r.sink_cos, row, r.half), rows_from(r.sink_sin, row, r.half), r.half};
    }
    if (c.embedding) build_->embed({*c.embedding, tokens.data(), x, rows, dtype});
    for (int64_t i = 0; i < rows && c.table; i++) {
      std::memcpy(x + i * width, c.table + tokens[i] * width, width);
    }
    run(c.decoder, plan, x, normed, rotations);
    multiply(*build_, products_, {c.head, given, first.qkv.inputs, logits, rows, dtype,
                                  DType::float32, nullptr}, c.threads);
    argmax(logits, c.head.outputs, tokens.data(), rows, c.vocabulary, DType::float32, c.threads);
    for (int64_t i = 0; i < rows; i++) {
      bool is_number = std::isfinite(logits[i * c.head.outputs + tokens[i]]);
      c.out[pass * c.texts + i] = is_number ? tokens[i] : -1;
    }
    row += rows;
  }
}

}  // namespace quire
