// Streams of which layers see one: what a layer makes of it tells what becomes of the others.
#include <type_traits>

#include "registers/heads.hpp"

namespace quire::QUIRE_ISA {
namespace {

// A row's [count], by which streams are mixed.
template <class T>
void modes_of(const Streams& by, const T* x, int64_t width, float* modes) {
  F squares{}, products[most_streams]{};
  for_vectors(width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F v = load_n(x + i, n);
    squares = fma(v, v, squares);
    for (int k = 0; k < by.count; k++)
      products[k] = fma(v, load_n(by.router + k * width + i, n), products[k]);
  });
  float factor = 1.0f / __builtin_sqrtf(lanes_sum(squares) / width + by.eps);
  for (int k = 0; k < by.count; k++) modes[k] = tanh(splat(lanes_sum(products[k]) * factor))[0];
}

QUIRE_INLINE float product(const float* coefficients, const float* modes, int count) {
  float sum = 0;
  for (int k = 0; k < count; k++) sum += coefficients[k] * modes[k];
  return sum;
}

template <class T>
void predict_row(const StreamRows& a, int64_t row) {
  const Streams& by = a.by;
  const int count = by.count;
  T* streams = (T*)a.streams + row * count * a.width;
  T* x = (T*)a.x + row * a.width;
  float modes[most_streams], factors[most_streams][most_streams];
  modes_of(by, streams + by.active * a.width, a.width, modes);
  for (int to = 0; to < count; to++) {
    for (int from = 0; from < count; from++)
      factors[to][from] = product(by.coefficients + (to * count + from) * count, modes, count);
  }
  for_vectors(a.width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F before[most_streams];
    for (int k = 0; k < count; k++) before[k] = load_n(streams + k * a.width + i, n);
    for (int to = 0; to < count; to++) {
      F sum{};
      for (int from = 0; from < count; from++)
        sum = fma(before[from], splat(factors[to][from]), sum);
      store_n(streams + to * a.width + i, before[to] + sum, n);
    }
    store_n(x + i, load_n(streams + by.active * a.width + i, n), n);
  });
}

template <class T>
void correct_row(const StreamRows& a, int64_t row) {
  const Streams& by = a.by;
  const int count = by.count;
  T* streams = (T*)a.streams + row * count * a.width;
  T* x = (T*)a.x + row * a.width;
  float modes[most_streams], factors[most_streams];
  modes_of(by, x, a.width, modes);
  for (int to = 0; to < count; to++)
    factors[to] = 1.0f + product(by.coefficients + to * count, modes, count);
  for_vectors(a.width, [&](int64_t i, int n) __attribute__((always_inline)) {
    F news = load_n(x + i, n) - load_n(streams + by.active * a.width + i, n);
    for (int to = 0; to < count; to++) {
      T* stream = streams + to * a.width + i;
      store_n(stream, fma(news, splat(factors[to]), load_n(stream, n)), n);
    }
    F one = load_n(streams + by.active * a.width + i, n);
    if (by.scale) one *= load_n(by.scale + i, n);
    store_n(x + i, one, n);
  });
}

template <class T>
void add_row_to_others(const StreamRows& a, int64_t row) {
  T* streams = (T*)a.streams + row * a.by.count * a.width;
  const T* x = (const T*)a.x + row * a.width;
  for (int to = 1; to < a.by.count; to++) {
    T* stream = streams + to * a.width;
    for_vectors(a.width, [&](int64_t i, int n) __attribute__((always_inline)) {
      store_n(stream + i, load_n(stream + i, n) + load_n(x + i, n), n);
    });
  }
}

template <class Row>
void each_row(const StreamRows& a, Team& team, Row row) {
  team.deal(a.rows, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      switch (a.dtype) {
        case DType::float32: row((float*)nullptr, i); break;
        case DType::bfloat16: row((bf16*)nullptr, i); break;
        default: row((f16*)nullptr, i);
      }
    }
  });
}

template <class T>
using Number = std::remove_pointer_t<T>;

}  // namespace

void predict(const StreamRows& a, Team& team) {
  each_row(a, team, [&](auto kind, int64_t row) { predict_row<Number<decltype(kind)>>(a, row); });
}

void correct(const StreamRows& a, Team& team) {
  each_row(a, team, [&](auto kind, int64_t row) { correct_row<Number<decltype(kind)>>(a, row); });
}

void add_to_others(const StreamRows& a, Team& team) {
  each_row(a, team, [&](auto kind, int64_t row) {
    add_row_to_others<Number<decltype(kind)>>(a, row);
  });
}

}  // namespace quire::QUIRE_ISA
