#include "layers/adapter.hpp"

#include <algorithm>

namespace quire {
namespace {

// Bringing threads together takes as long as so many multiplications.
constexpr int64_t adapters_from = 1 << 17;

bool soon_done(const Adapt& work) {
  int64_t total = 0;
  for (int64_t i = 0; i < work.num_runs; i++) {
    const AdaptedRows& run = work.runs[i];
    const LowRank& change = run.products[work.product];
    int64_t each = change.ranks * change.inputs;
    for (int64_t p = 0; p < change.num_parts; p++)
      each += change.parts[p].lines * change.parts[p].outputs;
    total += each * (run.last - run.first);
  }
  return total < adapters_from;
}

}  // namespace

void Adapter::set(int64_t product, LowRank change, std::vector<UpPart> parts) {
  parts_.push_back(std::move(parts));
  change.parts = parts_.back().data();
  change.num_parts = int64_t(parts_.back().size());
  products_.at(product) = change;
  most_ranks_ = std::max(most_ranks_, change.ranks);
  most_inputs_ = std::max(most_inputs_, change.inputs);
}

void AdaptedBatch::add(const Adapter& adapter,
                       const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  int64_t first = int64_t(rows_.size());
  for (auto [row, last] : ranges) {
    while (row < last) rows_.push_back(row++);
  }
  runs_.push_back({first, int64_t(rows_.size()), adapter.products()});
  most_ranks_ = std::max(most_ranks_, adapter.most_ranks());
  most_inputs_ = std::max(most_inputs_, adapter.most_inputs());
}

Adapt AdaptedBatch::prepare(Workspace<float>& memory, int threads, DType dtype) const {
  Adapt work{};
  work.runs = runs_.data();
  work.num_runs = int64_t(runs_.size());
  work.rows = rows_.data();
  work.dtype = dtype;
  work.width = most_ranks_;
  work.wide = (most_inputs_ + adapter_panel - 1) / adapter_panel * adapter_panel;
  int64_t places = int64_t(rows_.size());
  work.wide_rows = memory.get(threads * adapted_at_once * work.wide + places * work.width);
  work.ranks = work.wide_rows + threads * adapted_at_once * work.wide;
  return work;
}

void adapt(const Build& build, Adapt work, int64_t product, const void* x, int64_t x_stride,
           void* out, int64_t out_stride, Team& team) {
  work.product = product;
  work.x = x;
  work.x_stride = x_stride;
  work.out = out;
  work.out_stride = out_stride;
  share(team, soon_done(work), [&](Team& team) { build.adapt(work, team); });
}

}  // namespace quire
