// Which experts rows go to, and what they bring back, for one instruction set.
#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t columns_at_once = 64;

// The experts, or groups of them, from ``first`` to ``last`` that are worth most, the first of
// equals; of a row with NaN, any. ``found`` are in ``out`` already; how many are then.
template <class Worth>
int choose(const Worth& worth, int64_t first, int64_t last, int chosen, int32_t* out,
           int found = 0) {
  for (int32_t e = int32_t(first); e < last; e++) {
    int place = found < chosen ? found++ : chosen;
    while (place > 0 && worth(e) > worth(out[place - 1])) {
      if (place < chosen) out[place] = out[place - 1];
      place--;
    }
    if (place < chosen) out[place] = e;
  }
  return found;
}

// The same of the best groups' experts: those whose best, or two best together, are worth most.
template <class Worth>
void choose_in_groups(const Worth& worth, const Route& a, int32_t* out) {
  const Routing& how = a.routing;
  const int64_t size = a.experts / how.groups;
  float best[most_expert_groups];
  int32_t groups[most_expert_groups];
  for (int group = 0; group < how.groups; group++) {
    int32_t two[2];
    int found = choose(worth, group * size, (group + 1) * size, how.best, two);
    best[group] = worth(two[0]) + (found > 1 ? worth(two[1]) : 0.0f);
  }
  auto of_group = [&](int32_t group) { return best[group]; };
  int num = choose(of_group, 0, how.groups, how.groups_chosen, groups);
  uint64_t among = 0;
  for (int i = 0; i < num; i++) among |= uint64_t(1) << groups[i];
  int found = 0;
  for (int group = 0; group < how.groups; group++)  // of equal experts the first is chosen
    if (among >> group & 1)
      found = choose(worth, group * size, (group + 1) * size, how.chosen, out, found);
}

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
void weigh_by_softmax(const Route& a, const float* logits, const int32_t* chosen, float* out) {
  const Routing& how = a.routing;
  for (int i = 0; i < how.chosen; i++) out[i] = logits[chosen[i]];
  float most = out[0];
  float sum = how.renormalise ? likelihoods(out, how.chosen, most)
                              : likelihoods(logits, a.experts, most);
  for (int i = 0; i < how.chosen; i += W) {
    int64_t n = how.chosen - i;
    store_n(out + i, exp(load_n(out + i, n) - most) / sum * how.scale, n);
  }
}

// The share of each that is chosen among those near it.
void weigh_by_nearness(const Route& a, const float* logits, const int32_t* chosen, float* out) {
  const Routing& how = a.routing;
  for (int i = 0; i < how.chosen; i++) {
    const float most = logits[chosen[i]];
    float sum = 0;
    for (int32_t e = 0; e < a.experts; e++) {
      bool earlier = false;
      for (int k = 0; k < i; k++) earlier |= chosen[k] == e;
      float size = __builtin_fabsf(logits[e]), most_of_both = size > most ? size : most;
      if (earlier || (most - logits[e]) / most_of_both > 2 * how.nearness) continue;
      sum += exp(splat(logits[e] - most))[0];
    }
    out[i] = how.scale / sum;
  }
}

// A row whose choice is not that of its largest numbers, or whose weights are not their softmax: by
// scores, which are written over the numbers.
void route_by_scores(const Route& a, float* scores, int32_t* chosen, float* out) {
  const Routing& how = a.routing;
  float most = scores[0], sum = 0;
  for (int64_t e = 1; e < a.experts; e++) most = scores[e] > most ? scores[e] : most;
  float all = how.sigmoid ? 1.0f : likelihoods(scores, a.experts, most);
  for (int64_t e = 0; e < a.experts; e += W) {
    int64_t n = a.experts - e;
    F x = load_n(scores + e, n);
    store_n(scores + e, how.sigmoid ? 1.0f / (1.0f + exp(-x)) : exp(x - most) / all, n);
  }
  auto worth = [&](int32_t e) { return scores[e] + (how.bias ? how.bias[e] : 0.0f); };
  if (how.groups_chosen < how.groups) choose_in_groups(worth, a, chosen);
  else choose(worth, 0, a.experts, how.chosen, chosen);
  for (int i = 0; i < how.chosen; i++) sum += out[i] = scores[chosen[i]];
  float factor = how.renormalise ? how.scale / (sum + 1e-20f) : how.scale;
  for (int i = 0; i < how.chosen; i++) out[i] *= factor;
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
void weigh_as(const Weigh& a, Team& team) {
  team.deal(a.rows * a.chosen, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const T* x = (const T*)a.x + i / a.chosen * a.width;
      T* out = (T*)a.out + a.places[i] * a.width;
      for (int64_t c = 0; c < a.width; c += W)
        store_n(out + c, load_n(x + c, a.width - c) * a.weights[i], a.width - c);
      a.weights[i] = 1.0f;
    }
  });
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
  const Routing& how = a.routing;
  const bool by_scores = how.sigmoid || how.bias || how.groups_chosen < how.groups;
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      float* logits = a.logits + row * a.stride;
      int32_t* chosen = a.expert + row * how.chosen;
      float* weights = a.weight + row * how.chosen;
      if (by_scores) {
        route_by_scores(a, logits, chosen, weights);
      } else {
        choose([&](int32_t e) { return logits[e]; }, 0, a.experts, how.chosen, chosen);
        if (how.nearness > 0) weigh_by_nearness(a, logits, chosen, weights);
        else weigh_by_softmax(a, logits, chosen, weights);
      }
      for (int i = 0; how.factors && i < how.chosen; i++) weights[i] *= how.factors[chosen[i]];
    }
  });
}

void weigh(const Weigh& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return weigh_as<float>(a, team);
    case DType::bfloat16: return weigh_as<bf16>(a, team);
    default: return weigh_as<f16>(a, team);
  }
}

void combine(const Combine& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return combine_as<float>(a, team);
    case DType::bfloat16: return combine_as<bf16>(a, team);
    default: return combine_as<f16>(a, team);
  }
}

}  // namespace quire::QUIRE_ISA
