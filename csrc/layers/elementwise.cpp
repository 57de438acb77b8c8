// Norms, activations, argmax and sums of ranks for one instruction set. One pass over memory each.
#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

QUIRE_INLINE float as_float(const float* p) { return *p; }
QUIRE_INLINE float as_float(const bf16* p) { return load_some(p, 1)[0]; }
QUIRE_INLINE float as_float(const f16* p) { return load_some(p, 1)[0]; }

QUIRE_INLINE F load_as(DType dtype, const void* p, int64_t i, int n) {
  if (dtype == DType::float32) return load_n((const float*)p + i, n);
  if (dtype == DType::bfloat16) return load_n((const bf16*)p + i, n);
  return load_n((const f16*)p + i, n);
}

// Over a row: its numbers, and their squares.
struct Sums {
  F plain{}, squares{};

  inline __attribute__((always_inline)) void add(F v) {
    plain += v;
    squares = fma(v, v, squares);
  }
};

template <class T>
QUIRE_INLINE Sums sums_of(const T* x, int64_t width) {
  Sums sums;
  for_vectors(width, [&](int64_t i, int n) __attribute__((always_inline)) {
    sums.add(load_n(x + i, n));
  });
  return sums;
}

// x -> out, both [width], and perhaps the same.
template <class T>
QUIRE_INLINE void normalise_row(const Norm& norm, const T* x, T* out, int64_t width, Sums sums) {
  float mean = 0;
  if (norm.centred) {
    // A second pass: the difference of sums would lose the variance of rows far from 0.
    mean = lanes_sum(sums.plain) / width;
    sums.squares = F{};
    for_vectors(width, [&](int64_t i, int n) __attribute__((always_inline)) {
      F v = load_n(x + i, n) - mean;
      for (int lane = n; lane < W; lane++) v[lane] = 0;  // the zeros that filled the vector
      sums.squares = fma(v, v, sums.squares);
    });
  }
  float factor = 1.0f / __builtin_sqrtf(lanes_sum(sums.squares) / width + norm.eps);
  for_vectors(width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F v = (load_n(x + i, n) - mean) * factor;
    if (norm.weight) v *= load_as(norm.dtype, norm.weight, i, n);
    if (norm.bias) v += load_as(norm.dtype, norm.bias, i, n);
    store_n(out + i, v, n);
  });
}

template <class T>
void norm_row(const NormRows& a, int64_t row) {
  const T* x = (const T*)a.x + row * a.x_stride;
  T* out = (T*)a.out + row * a.out_stride;
  if (!a.sum) return normalise_row(a.norm, x, out, a.width, sums_of(x, a.width));
  T* delta = (T*)a.delta + row * a.delta_stride;
  if (a.delta_norm.used) {
    normalise_row(a.delta_norm, delta, delta, a.width, sums_of(delta, a.width));
  }
  T* sum = (T*)a.sum + row * a.x_stride;
  Sums sums;
  for_vectors(a.width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F added = load_n(x + i, n) + load_n(delta + i, n) * a.delta_scale;
    store_n(sum + i, added * a.total, n);
    sums.add(load_n(sum + i, n));  // as rounded
  });
  if (a.norm.used) normalise_row(a.norm, sum, out, a.width, sums);
}

constexpr float clamp = 7.0f;  // of clamped_swiglu

QUIRE_INLINE F apply(Activation activation, F x, Alphas alphas) {
  switch (activation) {
    case Activation::silu: return silu(x);
    case Activation::clamped_swiglu: return x / (1.0f + exp(-1.702f * x));
    case Activation::relu: return x < 0.0f ? F{} : x;
    case Activation::relu2: return x < 0.0f ? F{} : x * x;
    case Activation::xielu: {
      F low = -maximum(-x, splat(1e-6f));  // at most -1e-6, as its authors have it
      F below = (exp(low) - 1.0f - x) * alphas.below;
      return (x > 0.0f ? alphas.above * x * x : below) + 0.5f * x;
    }
    case Activation::gelu: return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f));
    case Activation::gelu_tanh: {
      F inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
      return 0.5f * x * (1.0f + tanh(inner));
    }
  }
  return x;
}

// What the gate's activation is multiplied by.
template <Activation activation>
QUIRE_INLINE F factor(F up) {
  if (activation != Activation::clamped_swiglu) return up;
  return 1.0f - maximum(-maximum(up, splat(-clamp)), splat(-clamp));
}

// What is taken from a row's numbers; see ``Activate``.
template <class T>
float cut_of(const T* x, int64_t width, float deviations) {
  float mean = lanes_sum(sums_of(x, width).plain) / width;
  F squares{};
  for_vectors(width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F v = load_n(x + i, n) - mean;
    for (int lane = n; lane < W; lane++) v[lane] = 0;  // the zeros that filled the vector
    squares = fma(v, v, squares);
  });
  return mean + __builtin_sqrtf(lanes_sum(squares) / width) * deviations;
}

template <class T, Activation activation>
void activate_rows(const Activate& a, Team& team) {
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const T* x = (const T*)a.x + row * a.x_stride;
      T* out = (T*)a.out + row * a.width;
      const T* given = a.given ? (const T*)a.given + row * a.given_stride : nullptr;
      const bool cuts = a.cut == a.cut;
      const float cut = cuts ? cut_of(x, a.width, a.cut) : 0.0f;
      for_vectors(a.width, [&](int64_t i, int n) __attribute__((always_inline)) {
        F v = load_n(x + i, n);
        if (cuts) v = maximum(v - cut, F{});
        v *= a.factor;
        if (activation == Activation::clamped_swiglu) v = -maximum(-v, splat(-clamp));
        v = apply(activation, v, a.alphas);
        if (a.gated) v *= factor<activation>(load_n(x + a.width + i, n));
        if (given) v *= load_n(given + i, n);
        store_n(out + i, v, n);
      });
    }
  });
}

template <class T>
void activate_as(const Activate& a, Team& team) {
  switch (a.activation) {
    case Activation::silu: return activate_rows<T, Activation::silu>(a, team);
    case Activation::gelu: return activate_rows<T, Activation::gelu>(a, team);
    case Activation::gelu_tanh: return activate_rows<T, Activation::gelu_tanh>(a, team);
    case Activation::relu: return activate_rows<T, Activation::relu>(a, team);
    case Activation::relu2: return activate_rows<T, Activation::relu2>(a, team);
    case Activation::clamped_swiglu:
      return activate_rows<T, Activation::clamped_swiglu>(a, team);
    case Activation::xielu: return activate_rows<T, Activation::xielu>(a, team);
  }
}

template <class T>
void gate_rows(const Gate& g, Team& team) {
  team.deal(g.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      T* x = (T*)g.x + row * g.x_stride;
      const T* gates = (const T*)g.gates + row * g.gates_stride;
      if (g.each == 1) {
        for_vectors(g.width, [&](int64_t i, int n) __attribute__((always_inline)) {
          store_n(x + i, load_n(x + i, n) * sigmoid(load_n(gates + i, n)), n);
        });
        continue;
      }
      for (int64_t j = 0; j < g.width / g.each; j++, x += g.each) {
        F gate = sigmoid(splat(load_n(gates + j, 1)[0]));
        for_vectors(g.each, [&](int64_t i, int n) __attribute__((always_inline)) {
          store_n(x + i, load_n(x + i, n) * gate, n);
        });
      }
    }
  });
}

// The first of the largest; a NaN counts as larger than all, as in torch.
template <class T>
int64_t argmax_row(const T* x, int64_t n) {
  constexpr int64_t run = 64 * W;
  float best = -__builtin_inff();
  int64_t found = 0;
  for (int64_t start = 0; start < n; start += run) {
    int64_t end = start + run < n ? start + run : n;
    F most = splat(best);
    I strange{};
    int64_t i = start;
    for (; i + W <= end; i += W) {
      F v = load(x + i);
      strange |= v != v;
      most = maximum(v, most);
    }
    bool look = i < end;
    for (int lane = 0; lane < W; lane++) look |= strange[lane] || most[lane] > best;
    if (!look) continue;
    for (i = start; i < end; i++) {
      float v = as_float(x + i);
      if (v != v) return i;
      if (v > best) {
        best = v;
        found = i;
      }
    }
  }
  return found;
}

template <class T>
void argmax_rows(const Argmax& a, Team& team) {
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      a.out[row] = argmax_row((const T*)a.x + row * a.x_stride, a.width);
    }
  });
}

template <class T>
void add_parts(const Sum& s, int64_t first, int64_t last) {
  for_vectors(last - first, [&](int64_t i, int n) __attribute__((always_inline)) {
    F sum = load_n((const T*)s.parts[0] + first + i, n);
    for (int part = 1; part < s.count; part++) {
      sum += load_n((const T*)s.parts[part] + first + i, n);
    }
    store_n((T*)s.out + first + i, sum, n);
  });
}

}  // namespace

void norm_rows(const NormRows& a, Team& team) {
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      switch (a.dtype) {
        case DType::float32: norm_row<float>(a, row); break;
        case DType::bfloat16: norm_row<bf16>(a, row); break;
        default: norm_row<f16>(a, row);
      }
    }
  });
}

void activate(const Activate& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return activate_as<float>(a, team);
    case DType::bfloat16: return activate_as<bf16>(a, team);
    default: return activate_as<f16>(a, team);
  }
}

void gate(const Gate& g, Team& team) {
  switch (g.dtype) {
    case DType::float32: return gate_rows<float>(g, team);
    case DType::bfloat16: return gate_rows<bf16>(g, team);
    default: return gate_rows<f16>(g, team);
  }
}

void argmax(const Argmax& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return argmax_rows<float>(a, team);
    case DType::bfloat16: return argmax_rows<bf16>(a, team);
    default: return argmax_rows<f16>(a, team);
  }
}

void add_up(const Sum& s, int64_t first, int64_t last) {
  switch (s.dtype) {
    case DType::float32: return add_parts<float>(s, first, last);
    case DType::bfloat16: return add_parts<bf16>(s, first, last);
    default: return add_parts<f16>(s, first, last);
  }
}

}  // namespace quire::QUIRE_ISA
