#include "layers/continuation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace quire {
namespace {

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
  const DType dtype = c.decoder.dtype;
  constexpr int64_t line = 64;
  std::vector<int64_t> starts{0}, tokens(c.given, c.given + c.num_given), contexts(c.texts);
  for (int64_t i = 0; i < c.texts; i++) starts.push_back(starts.back() + c.lengths[i]);
  const int64_t width = c.decoder.hidden * size_of(dtype), bytes = c.num_given * width;
  const int64_t states = (bytes + line - 1) / line * line;
  char* x = continued_.get(2 * states + c.texts * c.head.outputs * 4);
  char* normed = x + states;
  auto* logits = reinterpret_cast<float*>(normed + states);
  char* last = c.decoder.final_norm.used ? normed : x;  // states of which logits are made
  std::vector<std::vector<int64_t>> slots(c.kv_groups.size());
  int64_t row = 0;  // of the rotations
  for (int64_t pass = 0; pass < c.counts[0]; pass++) {
    int64_t texts = 0;
    while (texts < c.texts && c.counts[texts] > pass) texts++;
    for (int64_t i = 0; i < texts && pass; i++) starts[i + 1] = i + 1;
    starts.resize(texts + 1);
    const int64_t rows = starts.back();
    for (int64_t i = 0; i < texts; i++) contexts[i] = c.positions[i] + pass + 1;
    Plan plan(starts, contexts.data(), c.block_size, c.threads);
    for (size_t g = 0; g < c.kv_groups.size(); g++) {
      Tables tables = c.kv_groups[g];
      slots[g].clear();
      for (int64_t i = 0; i < texts; i++) {
        for (int64_t left = starts[i + 1] - starts[i]; left; left--) {
          slots[g].push_back(slot_of(tables, i, contexts[i] - left, c.block_size));
        }
      }
      tables.slots = slots[g].data();
      plan.add_kv_group(tables);
    }
    std::vector<Rotation> rotations = c.rotations;
    for (Rotation& r : rotations) {
      r = {rows_from(r.cos, row, r.half), rows_from(r.sin, row, r.half),
           rows_from(r.sink_cos, row, r.half), rows_from(r.sink_sin, row, r.half),
           rows_from(r.query_scale, row, 1), r.half};
    }
    if (c.embedding) build_->embed({*c.embedding, tokens.data(), x, rows, dtype});
    for (int64_t i = 0; i < rows && c.table; i++) {
      std::memcpy(x + i * width, c.table + tokens[i] * width, width);
    }
    run(c.decoder, plan, x, normed, rotations, {});
    for (int64_t i = 0; i < texts && rows > texts; i++) {
      std::memmove(last + i * width, last + (starts[i + 1] - 1) * width, width);
    }
    multiply(*build_, products_, {c.head, last, c.decoder.hidden, logits, texts, dtype,
                                  DType::float32, nullptr}, c.threads);
    argmax(logits, c.head.outputs, tokens.data(), texts, c.vocabulary, DType::float32, c.threads);
    for (int64_t i = 0; i < texts; i++) {
      bool is_number = std::isfinite(logits[i * c.head.outputs + tokens[i]]);
      c.out[pass * c.texts + i] = is_number ? tokens[i] : -1;
    }
    row += rows;
  }
}

}  // namespace quire
