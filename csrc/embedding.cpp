// Rows of a packed weight as they were: an embedding that shares the head's weight.
#include <algorithm>

#include "products.hpp"
#include "vec.hpp"

namespace quire::QUIRE_ISA {
namespace {

// Of the numbers in a lane of int8, in the order of their inputs.
constexpr int byte_of[4] = {0, 2, 1, 3};

template <class T>
void copied(const Packed& weight, const char* lanes, T* out) {
  constexpr int in_lane = 4 / sizeof(T);
  for (int64_t i = 0; i < weight.inputs; i++) {
    out[i] = ((const T*)(lanes + i / in_lane * line_bytes))[i % in_lane];
  }
}

template <class T>
void scaled(const Packed& weight, const char* lanes, float scale, T* out) {
  for (int64_t first = 0; first < weight.inputs; first += W) {
    float values[W] = {};
    int count = int(std::min<int64_t>(W, weight.inputs - first));
    for (int n = 0; n < count; n++) {
      int64_t i = first + n;
      uint8_t code = lanes[i / 4 * line_bytes + byte_of[i % 4]];
      values[n] = float(code - 128) * scale;
    }
    store_some(out + first, load(values), count);
  }
}

void scaled(const Packed& weight, const char* lanes, float scale, char* out, DType dtype) {
  if (dtype == DType::float32) return scaled(weight, lanes, scale, (float*)out);
  if (dtype == DType::bfloat16) return scaled(weight, lanes, scale, (bf16*)out);
  scaled(weight, lanes, scale, (f16*)out);
}

}  // namespace

void embed(const Embed& e) {
  const Packed& weight = e.weight;
  int64_t row_bytes = weight.inputs * (e.dtype == DType::float32 ? 4 : 2);
  for (int64_t row = 0; row < e.rows; row++) {
    int64_t output = e.outputs[row], panel = output / panel_width, lane = output % panel_width;
    const char* lanes = weight.weights + panel * weight.lines * line_bytes + lane * 4;
    char* out = (char*)e.out + row * row_bytes;
    if (weight.format == Format::int8) {
      scaled(weight, lanes, weight.scales[output], out, e.dtype);
    } else if (weight.format == Format::float32) {
      copied(weight, lanes, (uint32_t*)out);
    } else {
      copied(weight, lanes, (uint16_t*)out);
    }
  }
}

}  // namespace quire::QUIRE_ISA
