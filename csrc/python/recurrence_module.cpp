#include "python/recurrence_module.hpp"

#include <nanobind/stl/pair.h>

#include "recurrence/recurrence.hpp"
#include "workspace.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

Recurrence make_convolution(Address weight, Address bias, int64_t channels, int64_t kernel) {
  Recurrence r{};
  r.convolution = {at<float>(weight), at<float>(bias), channels, kernel};
  return r;
}

void set_heads(Recurrence& r, int64_t heads, int64_t key_heads, int64_t key_dim, int64_t value_dim,
               bool delta, bool by_channel, bool tiled, Address decay, Address bias, Address skip, float factor,
               float least, float most) {
  r.heads = heads;
  r.key_heads = key_heads;
  r.key_dim = key_dim;
  r.value_dim = value_dim;
  r.delta = delta;
  r.by_channel = by_channel;
  r.tiled = tiled;
  r.decay = at<float>(decay);
  r.bias = at<float>(bias);
  r.skip = at<float>(skip);
  r.factor = factor;
  r.least = least;
  r.most = most;
}

void set_gate(Recurrence& r, Address norm, int64_t width, float eps, float factor, bool first,
              bool sigmoid) {
  r.gate = {at<float>(norm), width, eps, factor, first, sigmoid};
}

using Slots = std::pair<Address, int64_t>;

InSlots in_slots(Slots slots) { return {at<float>(slots.first), slots.second}; }

StateMemory make_memory(Slots rows, Slots state, Slots inputs) {
  return {in_slots(rows), in_slots(state), in_slots(inputs)};
}

}  // namespace

void bind_recurrence(nb::module_& m) {
  nb::class_<StateMemory>(m, "StateMemory").def_static("make", &make_memory);
  nb::class_<Recurrence>(m, "Recurrence")
      .def_static("make", &make_convolution)
      .def("set_heads", &set_heads)
      .def("set_gate", &set_gate);
}

}  // namespace quire
