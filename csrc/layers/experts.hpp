// Mixtures of experts: MLPs of which each row goes through few.
#pragma once

#include <optional>
#include <vector>

#include "builds.hpp"
#include "products/products.hpp"

namespace quire {

struct Experts {
  Packed router;  // d -> a number for each expert; and one more if the shared MLP has a gate
  std::vector<Packed> up, down;  // by expert: d -> F or 2 F, F -> d; each list of one form
  Activation activation;
  bool gated;
  Routing routing;
  std::optional<Packed> shared_up, shared_down;  // of an MLP that all rows go through

  int64_t size() const { return int64_t(up.size()); }
  bool shared_gate() const { return router.outputs > size(); }
};

// Rows through a mixture, and memory for what is between.
struct Mixture {
  const Experts& experts;
  DType dtype;
  int64_t most;  // rows at a time
  int threads;
  // Memory of bytes(), for ``most`` rows.
  float* logits = nullptr;     // [rows, router's outputs]
  int32_t* expert = nullptr;   // [rows, chosen]
  float* weight = nullptr;     // [rows, chosen]
  int32_t* sources = nullptr;  // [rows chosen], in the order of experts
  int32_t* places = nullptr;   // [rows, chosen]: where in that order
  int32_t* starts = nullptr;   // [experts + 1]
  Share* shares = nullptr;     // [experts]
  int64_t* num_shares = nullptr;
  char *wide = nullptr, *narrow = nullptr;  // what up gives, and what down takes
  char* given = nullptr;       // [rows chosen, d]: for experts; null: rows are
  float* parts = nullptr;      // [rows chosen, d]
  char* shared = nullptr;      // [rows, d]
  char* scratch = nullptr;     // of products

  Mixture(const Build& build, const Experts& experts, DType dtype, int64_t rows, int threads);

  int64_t bytes() const { return bytes_; }
  void place(char* memory);
  // x [rows, d] -> out [rows, d], by all threads of a team; the router is given ``routed``
  // [rows, d]. All are contiguous.
  void run(const Build& build, const char* x, const char* routed, char* out, int64_t rows,
           Team& team) const;

 private:
  int64_t width() const { return experts.router.inputs; }
  void run_some(const Build& build, const char* x, const char* routed, char* out, int64_t rows,
                Team& team) const;
  void sort(int64_t rows) const;
  Product product(const Packed& weight, const void* from, void* to, int64_t rows,
                  DType out_dtype) const;
  Grouped grouped(const std::vector<Packed>& weights, const void* from, void* to, int64_t rows,
                  int64_t count, DType out_dtype) const;

  int64_t bytes_ = 0;
};

}  // namespace quire
