// The Python module quire.kernels._native: pointers and numbers in, no tensors.
//
// Its caller, quire/kernels/cpu.py, checks types and shapes; here only what memory safety needs and
// the caller cannot see is checked. Tensors stay with the caller, who must keep them alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <cstring>
#include <string>
#include <vector>

#include "builds.hpp"
#include "products_module.hpp"
#include "schedule.hpp"
#include "workspace.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

Norm make_norm(Address weight, Address bias, int dtype, float eps, bool centred) {
  return {at<void>(weight), at<void>(bias), DType(dtype), eps, centred, true};
}

// What is the same in every step for one layer.
struct Layer {
  Attend fixed{};
  int lane = 0;
};

// The kernels of one instruction set, with their workspace.
class Kernels {
 public:
  explicit Kernels(const std::string& name) : build_(&usable_build(name)) {}

  std::string name() const { return build_->name; }
  size_t workspace_bytes() const { return scratch_.bytes() + parts_.bytes(); }

  void attend(Plan& plan, const Layer& layer, Address query, int64_t query_stride, Address key,
              int64_t key_stride, Address value, int64_t value_stride, Address out,
              const Rotation* rotation) {
    Attend a = layer.fixed;
    Division wanted{};
    wanted.lane = layer.lane;
    wanted.window = a.window;
    wanted.sinks = a.sinks;
    wanted.num_heads = a.num_heads;
    wanted.num_kv_heads = a.num_kv_heads;
    wanted.tile_from = build_->tile_from(a.dtype, a.kv_dtype);
    Division& division = plan.division(wanted, build_->tile_rows);
    a.num_tokens = plan.num_tokens();
    a.query_starts = plan.query_starts();
    a.context_lens = plan.context_lens();
    a.tables = plan.lane(layer.lane);
    a.block_size = plan.block_size();
    a.schedule = {int64_t(division.items.size()), division.items.data(),
                  int64_t(division.groups.size()), division.groups.data(),
                  division.num_parts, division.part_rows, division.store_first};
    a.query = {at<void>(query), query_stride};
    a.key = {at<void>(key), key_stride};
    a.value = {at<void>(value), value_stride};
    a.out = at<void>(out);
    if (rotation) a.rotation = *rotation;
    // Starting threads takes as long as some hundred thousand products.
    bool small = division.cost * (a.key_dim + a.value_dim) < parallel_from;
    a.threads = small ? 1 : plan.threads();
    a.scratch_bytes = build_->scratch_bytes(a);
    a.scratch = scratch_.get(a.scratch_bytes * a.threads);
    a.parts = parts_.get(division.num_parts * a.num_kv_heads * division.part_rows *
                         (a.value_dim + 2));
    a.counters = division.counters.data();
    build_->attend(a);
  }

  // ``delta`` and ``sum`` 0: norm of x; otherwise of x + delta, which is stored at ``sum``.
  void norm(const Norm& norm, Address x, int64_t x_stride, Address delta, int64_t delta_stride,
            Address sum, Address out, int64_t rows, int64_t width, int dtype, int threads) {
    build_->norm({at<void>(x), at<void>(sum), at<void>(delta), at<void>(out), rows, width, x_stride,
                  delta_stride, DType(dtype), norm, rows * width < elementwise_from ? 1 : threads});
  }

  void activate(Address x, int64_t x_stride, Address out, int64_t rows, int64_t width, int dtype,
                int activation, bool gated, int threads) {
    build_->activate({at<void>(x), at<void>(out), rows, width, x_stride, DType(dtype),
                      Activation(activation), gated,
                      rows * width < elementwise_from / 4 ? 1 : threads});
  }

  void argmax(Address x, int64_t x_stride, Address out, int64_t rows, int64_t width, int dtype,
              int threads) {
    build_->argmax({at<void>(x), at<int64_t>(out), rows, width, x_stride, DType(dtype),
                    rows * width < elementwise_from ? 1 : threads});
  }

 private:
  static constexpr int64_t parallel_from = 1 << 18;
  static constexpr int64_t elementwise_from = 1 << 17;

  const Build* build_;
  Workspace<char> scratch_;
  Workspace<float> parts_;
};

// Copy blocks in the order given: each thread moves its share of the bytes of every block.
void copy_blocks(Address source, Address target, int64_t block_bytes,
                 const std::vector<std::pair<int64_t, int64_t>>& pairs, int threads) {
  const char* from = at<char>(source);
  char* to = at<char>(target);
  auto copy = [&](int64_t first, int64_t last) {
    for (auto [origin, destination] : pairs) {
      if (from == to && origin == destination) continue;
      std::memcpy(to + destination * block_bytes + first, from + origin * block_bytes + first,
                  last - first);
    }
  };
  if (block_bytes * int64_t(pairs.size()) < (1 << 18)) return copy(0, block_bytes);
#pragma omp parallel num_threads(threads)
  {
    int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
    copy(block_bytes * i / n, block_bytes * (i + 1) / n);
  }
}

std::vector<std::string> usable() {
  std::vector<std::string> names;
  for (const Build* const* build = usable_builds(); *build; build++) names.push_back((*build)->name);
  return names;
}

}  // namespace
}  // namespace quire

NB_MODULE(_native, m) {
  using namespace quire;
  nb::class_<Norm>(m, "Norm").def_static("make", &make_norm);
  nb::class_<Rotation>(m, "Rotation")
      .def("__init__", [](Rotation* self, Address cos, Address sin, Address sink_cos,
                          Address sink_sin, int half) {
        new (self) Rotation{at<float>(cos), at<float>(sin), at<float>(sink_cos),
                            at<float>(sink_sin), half};
      });
  nb::class_<Layer>(m, "Layer")
      .def("__init__", [](Layer* self, int lane, Address keys, Address values, Address key_scales,
                          Address value_scales, int kv_dtype, int dtype, int num_heads,
                          int num_kv_heads, int key_dim, int value_dim, float scale, float softcap,
                          int64_t window, int64_t sinks, const Norm* query_norm,
                          const Norm* key_norm) {
        new (self) Layer{};
        self->lane = lane;
        Attend& a = self->fixed;
        a.keys = at<void>(keys);
        a.values = at<void>(values);
        a.key_scales = at<float>(key_scales);
        a.value_scales = at<float>(value_scales);
        a.kv_dtype = DType(kv_dtype);
        a.dtype = DType(dtype);
        a.num_heads = num_heads;
        a.num_kv_heads = num_kv_heads;
        a.key_dim = key_dim;
        a.value_dim = value_dim;
        a.scale = scale;
        a.softcap = softcap;
        a.window = window;
        a.sinks = sinks;
        if (query_norm) a.query_norm = *query_norm;
        if (key_norm) a.key_norm = *key_norm;
      }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none(), nb::arg().none());
  nb::class_<Plan>(m, "Plan")
      .def("__init__", [](Plan* self, std::vector<int64_t> query_starts, Address context_lens,
                          int64_t block_size, int threads) {
        new (self) Plan(std::move(query_starts), at<int64_t>(context_lens), block_size, threads);
      })
      .def("add_lane", [](Plan& self, Address slots, Address block_tables, int64_t width,
                          Address num_dropped, int64_t num_sink_blocks) {
        self.add_lane({at<int64_t>(slots), at<int64_t>(block_tables), width,
                       at<int64_t>(num_dropped), num_sink_blocks});
      });
  nb::class_<Kernels>(m, "Kernels")
      .def(nb::init<const std::string&>())
      .def_prop_ro("name", &Kernels::name)
      .def_prop_ro("workspace_bytes", &Kernels::workspace_bytes)
      .def("attend", &Kernels::attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("norm", &Kernels::norm, nb::call_guard<nb::gil_scoped_release>())
      .def("activate", &Kernels::activate, nb::call_guard<nb::gil_scoped_release>())
      .def("argmax", &Kernels::argmax, nb::call_guard<nb::gil_scoped_release>());
  m.def("copy_blocks", &copy_blocks, nb::call_guard<nb::gil_scoped_release>());
  m.def("usable", &usable, "Names of the instruction sets that can be chosen here, best first.");
  bind_products(m);
}
