// Which experts rows go to, and what they bring back, for one instruction set.
#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t columns_at_once = 64;

// The likeliest experts, the first of equals; of a row with NaN, any.
void choose(const float* logits, int64_t experts, int chosen, int32_t* out) {
  for (int32_t e = 0; e < experts; e++) {
    int place = e < chosen ? e : chosen;
    while (place > 0 && logits[e] > logits[out[place - 1]]) {
      if (place < chosen) out[place] = out[place - 1];
      place--;
    }
    if (place < chosen) out[place] = e;
  }
}

template <class T>
QUIRE_INLINE F load_n(const T* p, int64_t n) { return n >= W ? load(p) : load_some(p, int(n)); }
template <class T>
QUIRE_INLINE void store_n(T* p, F v, int64_t n) { n >= W ? store(p, v) : store_some(p, v, int(n)); }

// The sum of exp(x - most).
float likelihoods(const float* x, int64_t n, float most) {
  F sum{};
  for (int64_t i = 0; i < n; i += W) {
    F v = exp(load_n(x + i, n - i) - most);
    for (int64_t lane = n - i; lane < W; lane++) v[lane] = 0;
    sum += v;
  }
  return lanes_sum(sum);
}

// Their softmax, over all experts or over the chosen ones.
void weigh(const Route& a, const float* logits, const int32_t* chosen, float* out) {
  for (int i = 0; i < a.chosen; i++) out[i] = logits[chosen[i]];
  float most = out[0];
  float sum = a.renormalise ? likelihoods(out, a.chosen, most)
                            : likelihoods(logits, a.experts, most);
  for (int i = 0; i < a.chosen; i += W) {
    int64_t n = a.chosen - i;
    store_n(out + i, exp(load_n(out + i, n) - most) / sum, n);
  }
}

// Some columns of a row: its experts' results in the order in which it chose them.
template <class T>
void combine_some(const Combine& a, int64_t row, int64_t first, int64_t last) {
  const int32_t* places = a.places + row * a.chosen;
  const float* weights = a.weights + row * a.chosen;
  const T* shared = a.shared ? (const T*)a.shared + row * a.width : nullptr;
  float share = a.gates ? 1.0f / (1.0f + exp(splat(-a.gates[row * a.gate_stride]))[0]) : 1.0f;
  for (int64_t i = first; i < last; i += W) {
    int64_t n = last - i;
    F sum{};
    for (int r = 0; r < a.chosen; r++)
      sum = fma(load_n(a.parts + places[r] * a.width + i, n), splat(weights[r]), sum);
    if (shared) sum = fma(load_n(shared + i, n), splat(share), sum);
    store_n((T*)a.out + row * a.width + i, sum, n);
  }
}

template <class T>
void combine_as(const Combine& a, Team& team) {
  int64_t across = (a.width + columns_at_once - 1) / columns_at_once;
  team.deal(a.rows * across, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      int64_t column = i % across * columns_at_once;
      int64_t end = column + columns_at_once < a.width ? column + columns_at_once : a.width;
      combine_some<T>(a, i / across, column, end);
    }
  });
}

}  // namespace

void route(const Route& a, Team& team) {
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const float* logits = a.logits + row * a.stride;
      int32_t* chosen = a.expert + row * a.chosen;
      choose(logits, a.experts, a.chosen, chosen);
      weigh(a, logits, chosen, a.weight + row * a.chosen);
    }
  });
}

void combine(const Combine& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return combine_as<float>(a, team);
    case DType::bfloat16: return combine_as<bf16>(a, team);
    default: return combine_as<f16>(a, team);
  }
}

}  // namespace quire::QUIRE_ISA
