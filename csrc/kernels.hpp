// The operations of one instruction set, with the memory that they need between calls.
#pragma once

#include <string>
#include <vector>

#include "builds.hpp"
#include "layers/continuation.hpp"
#include "layers/decoder.hpp"
#include "layers/experts.hpp"
#include "layers/indexing.hpp"
#include "products/products.hpp"
#include "recurrence/recurrence.hpp"
#include "schedule.hpp"
#include "workspace.hpp"

namespace quire {

// Multiply rows with a packed weight by so many threads. ``p`` lacks scratch.
void multiply(const Build& build, Workspace<char>& scratch, Product p, int threads);

class Kernels {
 public:
  explicit Kernels(const std::string& name) : build_(&usable_build(name)) {}

  std::string name() const { return build_->name; }
  size_t workspace_bytes() const {
    return scratch_.bytes() + parts_.bytes() + products_.bytes() + states_.bytes() +
           adapting_.bytes() + continued_.bytes() + recurring_.bytes() + indexing_.bytes();
  }

  // query [T, H, D], key [T, Hkv, D], value [T, Hkv, Dv] -> out [T, H, Dv], contiguous.
  void attend(Plan& plan, const Layer& layer, Rows query, Rows key, Rows value, void* out,
              const Rotation* rotation);
  // Store the new keys of an index, and choose what each token attends to. ``x`` lacks the batch and
  // its memory.
  void choose(const Plan& plan, int kv_group, Index x);
  // x [T, columns] -> out [T, outputs], contiguous; takes the states in ``memory`` on.
  void recur(const Plan& plan, const Recurrence& layer, const StateMemory& memory, Rows x,
             DType dtype, void* out);
  // x, delta, sum (by x_stride) and out (contiguous) are [rows, width]. ``delta`` and ``sum`` null:
  // norm of x; otherwise of x + delta, which is stored at ``sum``, and is all that is done where
  // there is no norm.
  void norm(const Norm& norm, const void* x, int64_t x_stride, void* delta,
            int64_t delta_stride, void* sum, void* out, int64_t rows, int64_t width, DType dtype,
            int threads);
  // x [rows, width], gated: [rows, 2 width] -> out [rows, width], contiguous.
  void activate(const void* x, int64_t x_stride, void* out, int64_t rows, int64_t width,
                DType dtype, Activation activation, bool gated, float factor, Alphas alphas,
                float cut, int threads);
  // x [rows, width] becomes x * sigmoid(gates).
  void gate(const Gate& gate, int threads);
  // See ``Build``.
  void predict(const StreamRows& rows, int threads);
  void correct(const StreamRows& rows, int threads);
  // x [rows, width] -> out [rows].
  void argmax(const void* x, int64_t x_stride, int64_t* out, int64_t rows, int64_t width,
              DType dtype, int threads);
  // x [rows, d] -> out [rows, d], through the experts of each row, which the router chooses by
  // ``routed`` [rows, d]; all are contiguous.
  void mix(const Experts& experts, const void* x, const void* routed, void* out, int64_t rows,
           DType dtype, int threads);
  // Add to out [rows, outputs] of a product, of x [rows, inputs], what adapters do.
  void adapt(const AdaptedBatch& batch, int64_t product, const void* x, int64_t x_stride, void* out,
             int64_t out_stride, DType dtype, int threads);
  // All layers, one after the other: x [rows, hidden] becomes what they give, and out its final
  // norm, if there is one. Both are contiguous. Layers have their rotations by number. ``given``:
  // numbers of each row, for all layers. ``streams``: what layers give, where they have streams.
  void run(const Decoder& decoder, Plan& plan, void* x, void* out,
           const std::vector<Rotation>& rotations, Rows given, void* streams = nullptr);
  // The same again and again, each time with the tokens that came of the time before.
  void go_on(const Continuation& continuation);

 private:
  // A layer's attention but for its tensors.
  Attend prepare(Plan& plan, const Layer& layer, const Rotation* rotation);
  // A layer's recurrence, likewise.
  Recur prepare(const Plan& plan, const Recurrence& layer, const StateMemory& memory);
  Prepared prepare(const Part& part, const Pass& pass, Plan& plan,
                   const std::vector<Rotation>& rotations);
  Pass begin(const Decoder& decoder, Plan& plan, void* x, void* out,
             const std::vector<Rotation>& rotations);

  const Build* build_;
  Workspace<char> scratch_;
  Workspace<float> parts_;
  Workspace<char> products_;
  Workspace<char> states_;
  Workspace<float> adapting_;
  Workspace<char> continued_;
  Workspace<char> recurring_;
  Workspace<char> indexing_;
};

}  // namespace quire
