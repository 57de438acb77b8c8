#include "python/products_module.hpp"

#include <nanobind/stl/string.h>

#include "kernels.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

Packed make_packed(int format, bool rounds_rows, int64_t inputs, int64_t outputs, Address weights,
                   Address scales, Address bias) {
  Packed p{};
  p.format = Format(format);
  p.rounds_rows = rounds_rows;
  p.inputs = inputs;
  p.outputs = outputs;
  p.panels = (outputs + 2 * panel_width - 1) / (2 * panel_width) * 2;
  int64_t per_unit = inputs_per_unit(p.format);
  p.units = (inputs + per_unit - 1) / per_unit;
  p.weights = at<char>(weights);
  p.scales = at<float>(scales);
  p.bias = at<float>(bias);
  return p;
}

void set_groups(Packed& p, int64_t inputs, Address scales, Address offsets, Address zeros,
                int factors_kind, Address factors) {
  p.groups = {inputs / inputs_per_unit(p.format), at<f16>(scales), at<f16>(offsets),
              at<uint8_t>(zeros), Factors(factors_kind), at<char>(factors)};
}

void set_smoothing(Packed& p, Address smoothing) { p.smoothing = at<float>(smoothing); }

void spread_rows(Packed& p) { p.spreads_rows = true; }

// Outputs of another weight follow. Both are kept alive by who calls.
void append(Packed& p, const Packed& rest) {
  p.rest = &rest;
  p.outputs += rest.outputs;
}

// The products of one instruction set, with their workspace.
class Products {
 public:
  explicit Products(const std::string& name) : build_(&usable_build(name)) {}

  std::string name() const { return build_->name; }
  size_t workspace_bytes() const { return scratch_.bytes(); }

  void multiply(const Packed& weight, Address x, int64_t x_stride, int dtype, Address out,
                int out_dtype, int64_t rows, int threads) {
    quire::multiply(*build_, scratch_, {weight, at<void>(x), x_stride, at<void>(out), rows,
                                        DType(dtype), DType(out_dtype), nullptr}, threads);
  }

  void embed(const Packed& weight, Address outputs, Address out, int dtype, int64_t rows) {
    build_->embed({weight, at<int64_t>(outputs), at<void>(out), rows, DType(dtype)});
  }

 private:
  const Build* build_;
  Workspace<char> scratch_;
};

}  // namespace

void bind_products(nb::module_& m) {
  nb::class_<Packed>(m, "Packed")
      .def_static("make", &make_packed)
      .def("set_groups", &set_groups)
      .def("set_smoothing", &set_smoothing)
      .def("spread_rows", &spread_rows)
      .def("append", &append);
  nb::class_<Products>(m, "Products")
      .def(nb::init<const std::string&>())
      .def_prop_ro("name", &Products::name)
      .def_prop_ro("workspace_bytes", &Products::workspace_bytes)
      .def("multiply", &Products::multiply, nb::call_guard<nb::gil_scoped_release>())
      .def("embed", &Products::embed, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace quire
