// An adapter as the module keeps it, and what its rows need of a step.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "builds.hpp"
#include "layers/adapters.hpp"
#include "workspace.hpp"

namespace quire {

constexpr int projections = 4;  // of a layer: qkv, output, up and down, in this order

// All that one adapter adds to a decoder's products. The matrices stay with its maker.
class Adapter {
 public:
  explicit Adapter(int64_t layers) : products_(layers * projections) {}

  void set(int64_t product, LowRank change, std::vector<UpPart> parts);

  const LowRank* products() const { return products_.data(); }
  int64_t most_ranks() const { return most_ranks_; }
  int64_t most_inputs() const { return most_inputs_; }

 private:
  std::vector<LowRank> products_;
  std::deque<std::vector<UpPart>> parts_;
  int64_t most_ranks_ = 0, most_inputs_ = 0;
};

// The rows of a step that adapters change.
class AdaptedBatch {
 public:
  void add(const Adapter& adapter, const std::vector<std::pair<int64_t, int64_t>>& ranges);

  bool empty() const { return runs_.empty(); }
  // The work for one product. Memory is taken here, before threads come together.
  Adapt prepare(Workspace<float>& memory, int threads, DType dtype) const;

 private:
  std::vector<AdaptedRows> runs_;
  std::vector<int64_t> rows_;
  int64_t most_ranks_ = 0, most_inputs_ = 0;
};

// Let threads that came together add what adapters do to a product of x.
void adapt(const Build& build, Adapt work, int64_t product, const void* x, int64_t x_stride,
           void* out, int64_t out_stride, Team& team);

}  // namespace quire
