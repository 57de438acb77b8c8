#include "python/adapters_module.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "layers/adapter.hpp"
#include "workspace.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

using Parts =
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, Address, Address, Address>>;

void set_product(Adapter& self, int64_t product, int64_t inputs, int64_t ranks, int64_t lines,
                 Address down, Address scales, const Parts& given) {
  std::vector<UpPart> parts;
  for (auto [first_output, outputs, first_rank, rank_lines, panels, gains, shifts] : given)
    parts.push_back({first_output, outputs, first_rank, rank_lines, at<void>(panels),
                     at<float>(gains), at<float>(shifts)});
  self.set(product, {inputs, ranks, lines, at<void>(down), at<float>(scales), nullptr, 0},
           std::move(parts));
}

}  // namespace

void bind_adapters(nb::module_& m) {
  nb::class_<Adapter>(m, "Adapter")
      .def(nb::init<int64_t>())
      .def("set", &set_product);
}

}  // namespace quire
