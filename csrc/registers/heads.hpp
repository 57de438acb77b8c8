// One head of a query, key or value: read, normalised, turned, stored.
#pragma once

#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {

QUIRE_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// n numbers as floats; ``out`` is filled with zeros to a whole vector.
template <class T>
QUIRE_INLINE void widen(const T* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i));
  if (i < n) store(out + i, load_some(x + i, n - i));
}

// n floats as numbers of type T; reads ``x`` to a whole vector.
template <class T>
QUIRE_INLINE void narrow(const float* x, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i));
  if (i < n) store_some(out + i, load(x + i), n - i);
}

// The same for a type known at run time only. ``at`` counts elements.
static void widen(DType dtype, const void* x, int64_t at, float* out, int64_t n) {
  if (dtype == DType::float32) return widen((const float*)x + at, out, n);
  if (dtype == DType::bfloat16) return widen((const bf16*)x + at, out, n);
  widen((const f16*)x + at, out, n);
}
static void narrow(DType dtype, const float* x, void* out, int64_t at, int64_t n) {
  if (dtype == DType::float32) return narrow(x, (float*)out + at, n);
  if (dtype == DType::bfloat16) return narrow(x, (bf16*)out + at, n);
  narrow(x, (f16*)out + at, n);
}

// A norm's parameters as floats, in memory of the caller: [width] each, whole vectors.
struct WideNorm {
  const float* weight;  // null: none
  const float* bias;
  float eps;
  bool centred;
  bool used;
};

static WideNorm widen(const Norm& norm, int64_t width, float* weight, float* bias) {
  if (norm.weight) widen(norm.dtype, norm.weight, 0, weight, width);
  if (norm.bias) widen(norm.dtype, norm.bias, 0, bias, width);
  return {norm.weight ? weight : nullptr, norm.bias ? bias : nullptr, norm.eps, norm.centred,
          norm.used};
}

// x [n], whole vectors with zeros beyond n, normalised in place.
QUIRE_INLINE void normalise(const WideNorm& norm, float* x, int64_t n) {
  float mean = 0;
  if (norm.centred) {
    F sum{};
    for (int64_t i = 0; i < n; i += W) sum += load(x + i);
    mean = lanes_sum(sum) / n;
  }
  F squares{};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    F v = load(x + i) - mean;
    squares = fma(v, v, squares);
  }
  float variance = lanes_sum(squares);
  for (; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
  float factor = 1.0f / __builtin_sqrtf(variance / n + norm.eps);
  for (int64_t i = 0; i < n; i += W) {
    F v = (load(x + i) - mean) * factor;
    if (norm.weight) v *= load(norm.weight + i);
    if (norm.bias) v += load(norm.bias + i);
    store(x + i, v);
  }
  for (int64_t i = n; i < round_up(n, W); i++) x[i] = 0;
}

// Turn the pairs (i, i + half) of x in place by the angles whose cosines and sines are given.
QUIRE_INLINE void rotate(float* x, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + W <= half; i += W) {
    F a = load(x + i), b = load(x + i + half), c = load(cos + i), s = load(sin + i);
    store(x + i, fma(a, c, -(b * s)));
    store(x + i + half, fma(b, c, a * s));
  }
  for (; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// A row of the cache; the scale by which int8 numbers are to be multiplied.
template <class T>
QUIRE_INLINE float store_row(const float* x, T* out, int64_t n) {
  narrow(x, out, n);
  return 1.0f;
}
QUIRE_INLINE float store_row(const float* x, int8_t* out, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; i++) {
    float a = __builtin_fabsf(x[i]);
    most = a > most || a != a ? a : most;
  }
  float scale = most / 127.0f, step = most > 0 ? scale : 1.0f;
  const F half = splat(12582912.0f);  // 1.5 * 2^23 rounds to nearest even
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i) / step + half - half);
  if (i < n) store_some(out + i, load(x + i) / step + half - half, n - i);
  return scale;
}

}  // namespace quire::QUIRE_ISA
