// Rows of a packed weight as they were: an embedding that shares the head's weight.
#include <algorithm>

#include "products/groups.hpp"
#include "products/products.hpp"
#include "registers/heads.hpp"
#include "registers/vec.hpp"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
void copied(const Packed& weight, const char* lanes, T* out) {
  constexpr int in_lane = 4 / sizeof(T);
  for (int64_t i = 0; i < weight.inputs; i++) {
    out[i] = ((const T*)(lanes + i / in_lane * line_bytes))[i % in_lane];
  }
}

// The code of an input in an output's lanes, less half of all codes.
template <Format format>
float code(const char* lanes, int64_t input) {
  constexpr int per_line = inputs_per_line(format), above = high_bits(format);
  constexpr int low = bits_of(format) - above;
  int64_t unit = input / inputs_per_unit(format);
  int i = int(input % inputs_per_unit(format)), j = i % per_line;
  lanes += unit * lines_per_unit(format) * line_bytes;
  uint32_t line = read<uint32_t>(lanes + i / per_line * line_bytes);
  uint32_t code = line >> (low * (j / 2) + 16 * (j % 2)) & ((1u << low) - 1);
  if constexpr (above > 0) {
    uint32_t high = read<uint32_t>(lanes + low_lines(format) * line_bytes);
    code |= (high >> (above * (i / 2) + 16 * (i % 2)) & ((1u << above) - 1)) << low;
  }
  if constexpr (format == Format::float4) {
    constexpr float sizes[] = {0, 1, 2, 3, 4, 6, 8, 12};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
  }
  return float(int(code) - (1 << (bits_of(format) - 1)));
}

// What is done with an output's codes in a group.
struct Form {
  float scale, shift, offset;

  Form(const Packed& weight, int64_t output, int64_t group) {
    int lane = output % panel_width;
    Group all(weight, output / panel_width, group, lane / W * W);
    scale = all.scale[lane % W], shift = all.shift[lane % W], offset = all.offset[lane % W];
  }
  explicit Form(float scale) : scale(scale), shift(0), offset(0) {}
};

template <Format format, class T>
void scaled(const Packed& weight, int64_t output, const char* lanes, T* out) {
  constexpr bool grouped = in_groups(format);
  int64_t size = grouped ? weight.groups.units * inputs_per_unit(format) : weight.inputs;
  for (int64_t first = 0, g = 0; first < weight.inputs; first += size, g++) {
    Form form = grouped ? Form(weight, output, g) : Form(weight.scales[output]);
    for (int64_t i = first; i < first + size; i += spread_run) {
      float run[spread_run] = {};
      int64_t count = std::min<int64_t>(spread_run, first + size - i);
      for (int64_t n = 0; n < count; n++) run[n] = code<format>(lanes, i + n);
      for (int64_t n = 0; n < count; n += W)
        store(run + n, fma(load(run + n) + form.shift, splat(form.scale), splat(form.offset)));
      if (weight.spreads_rows) spread(run, spread_run, spread_run);
      for (int64_t n = 0; n < count; n += W) {
        F values = load(run + n);
        if (weight.smoothing) values *= load_n(weight.smoothing + i + n, count - n);
        store_n(out + i + n, values, count - n);
      }
    }
  }
}

template <Format format>
void scaled(const Packed& weight, int64_t output, const char* lanes, char* out, DType dtype) {
  if (dtype == DType::float32) return scaled<format>(weight, output, lanes, (float*)out);
  if (dtype == DType::bfloat16) return scaled<format>(weight, output, lanes, (bf16*)out);
  scaled<format>(weight, output, lanes, (f16*)out);
}

}  // namespace

void embed(const Embed& e) {
  const Packed& w = e.weight;
  int64_t row_bytes = w.inputs * (e.dtype == DType::float32 ? 4 : 2);
  for (int64_t row = 0; row < e.rows; row++) {
    int64_t output = e.outputs[row], panel = output / panel_width, lane = output % panel_width;
    const char* lanes = w.weights + panel * w.panel_bytes() + lane * 4;
    char* out = (char*)e.out + row * row_bytes;
    switch (w.format) {
      case Format::float32: copied(w, lanes, (uint32_t*)out); break;
      case Format::bfloat16:
      case Format::float16: copied(w, lanes, (uint16_t*)out); break;
      case Format::int8: scaled<Format::int8>(w, output, lanes, out, e.dtype); break;
      case Format::grouped_int8: scaled<Format::grouped_int8>(w, output, lanes, out, e.dtype); break;
      case Format::int4: scaled<Format::int4>(w, output, lanes, out, e.dtype); break;
      case Format::int5: scaled<Format::int5>(w, output, lanes, out, e.dtype); break;
      case Format::int6: scaled<Format::int6>(w, output, lanes, out, e.dtype); break;
      case Format::float4: scaled<Format::float4>(w, output, lanes, out, e.dtype); break;
    }
  }
}

}  // namespace quire::QUIRE_ISA
