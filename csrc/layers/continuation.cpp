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

// What a pass computes of a text.
int64_t rows_of(const Continuation& c, int64_t text, int64_t pass) {
  if (!pass) return c.lengths[text];
  return c.slots ? c.drafts[text] + pass : 1;
}

// Where the token at a position is kept.
int64_t slot_of(const Tables& tables, int64_t text, int64_t position, int64_t block_size) {
  int64_t place = position / block_size - tables.num_dropped[text];
  return tables.block_tables[text * tables.width + place] * block_size + position % block_size;
}

// The most rows that a pass computes.
int64_t most_rows(const Continuation& c) {
  int64_t most = c.num_given;
  for (int64_t pass = 1; pass < c.counts[0]; pass++) {
    int64_t rows = 0;
    for (int64_t i = 0; i < c.texts && c.counts[i] > pass; i++) rows += rows_of(c, i, pass);
    most = std::max(most, rows);
  }
  return most;
}

}  // namespace

void Kernels::go_on(const Continuation& c) {
  const DType dtype = c.decoder.dtype;
  constexpr int64_t line = 64;
  std::vector<int64_t> starts, tokens(c.given, c.given + c.num_given), contexts(c.texts);
  std::vector<int64_t> drafts(c.texts), found(c.texts);
  const std::vector<int64_t> none_confirmed(c.texts);
  // Of each text, what a pass after the first computes: its drafts.
  std::vector<std::vector<int64_t>> known(c.texts);
  const int64_t* end = c.given;
  for (int64_t i = 0; i < c.texts; i++) {
    end += c.lengths[i];
    if (c.slots) known[i].assign(end - c.drafts[i], end);
  }
  const int64_t width = c.decoder.hidden * size_of(dtype), bytes = most_rows(c) * width;
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
    starts.assign(1, 0);
    for (int64_t i = 0; i < texts; i++) starts.push_back(starts.back() + rows_of(c, i, pass));
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
    if (c.slots) {
      for (int64_t i = 0; i < texts; i++) drafts[i] = c.drafts[i] + pass;
      plan.states.set(texts, c.slots);
      plan.states.set_drafts(none_confirmed.data(), drafts.data());
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
    argmax(logits, c.head.outputs, found.data(), texts, c.vocabulary, DType::float32, c.threads);
    tokens.clear();
    for (int64_t i = 0; i < texts; i++) {
      bool is_number = std::isfinite(logits[i * c.head.outputs + found[i]]);
      c.out[pass * c.texts + i] = is_number ? found[i] : -1;
      if (!c.slots) known[i].clear();
      known[i].push_back(found[i]);
      if (c.counts[i] == pass + 1) continue;
      tokens.insert(tokens.end(), known[i].begin(), known[i].end());
    }
    row += rows;
  }
}

}  // namespace quire
