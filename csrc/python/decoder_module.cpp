#include "python/decoder_module.hpp"

#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "layers/decoder.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

Norm or_none(const Norm* norm) { return norm ? *norm : Norm{}; }

Norms make_norms(const Norm* before, const Norm* output, const Norm* after, float scale,
                 float total) {
  return {or_none(before), or_none(output), or_none(after), scale, total};
}

SelfAttention make_attention(const Packed& qkv, const Layer& layer, const Packed& output,
                             const Norm* query_norm, const Norm* key_norm, int rotation,
                             int64_t gates) {
  return {qkv, layer, output, or_none(query_norm), or_none(key_norm), rotation, gates};
}

LatentAttention make_latents(const Packed& inputs, const Norm* query_norm, const Packed* queries,
                             const Norm& latent_norm, std::vector<Packed> keys, const Layer& layer,
                             std::vector<Packed> values, const Packed& output, int rotation) {
  LatentAttention made{inputs, or_none(query_norm), {}, latent_norm, std::move(keys),
                       layer,  std::move(values),   output, rotation};
  if (queries) made.queries = *queries;
  return made;
}

SelfRecurrence make_recurrence(const Packed& inputs, const Recurrence& recurrence,
                               const StateMemory& memory, const Packed& output,
                               const Packed* gates, const Packed* steps) {
  SelfRecurrence made{inputs, recurrence, memory, output, {}, {}};
  if (gates && steps) made.gates = *gates, made.steps = *steps;
  return made;
}

Mlp make_mlp(const Packed& up, const Packed& down, int activation, bool gated, float factor,
             float above, float below, float cut) {
  return {up, down, Activation(activation), gated, factor, {above, below}, cut};
}

GivenMlp make_given(const Packed& up, const Packed& down, int activation, int64_t first) {
  return {up, down, Activation(activation), first};
}

Laurel make_laurel(const Packed& left, const Packed& right, const Norm& norm) {
  return {left, right, norm};
}

Streams make_streams(int count, int active, uintptr_t router, uintptr_t coefficients,
                     uintptr_t scale, float eps) {
  if (count < 1 || count > most_streams || active < 0 || active >= count)
    throw std::invalid_argument("streams are 1 to 8");
  return {count, active, (const float*)router, (const float*)coefficients, (const float*)scale,
          eps};
}

Routing make_routing(int chosen, bool renormalise, bool sigmoid, uintptr_t bias, float scale,
                     int groups, int groups_chosen, int best, bool before, float nearness,
                     uintptr_t factors) {
  return {chosen, renormalise, sigmoid, (const float*)bias, scale, groups, groups_chosen, best,
          before, nearness, (const float*)factors};
}

Experts make_experts(const Packed& router, std::vector<Packed> up, std::vector<Packed> down,
                     int activation, bool gated, const Routing& routing,
                     const Packed* shared_up, const Packed* shared_down) {
  Experts e{router, std::move(up), std::move(down), Activation(activation), gated, routing, {}, {}};
  if (shared_up && shared_down) e.shared_up = *shared_up, e.shared_down = *shared_down;
  return e;
}

void add_layer(Decoder& decoder, const Norms& mixer_norms, const Norms& mlp_norms,
               bool parallel) {
  decoder.layers.push_back({{}, mixer_norms, {}, mlp_norms, parallel});
}

using GivenPart =
    std::variant<SelfAttention, LatentAttention, SelfRecurrence, Mlp, GivenMlp, Laurel, Experts>;

// Of the last layer.
void set_mixer(Decoder& decoder, const GivenPart& part) {
  std::visit([&](const auto& known) { decoder.layers.back().mixer = known; }, part);
}
void set_mlp(Decoder& decoder, const GivenPart& part) {
  std::visit([&](const auto& known) { decoder.layers.back().mlp = known; }, part);
}

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<Norms>(m, "Norms")
      .def_static("make", &make_norms, nb::arg().none(), nb::arg().none(), nb::arg().none(),
                  nb::arg(), nb::arg());
  nb::class_<SelfAttention>(m, "SelfAttention")
      .def_static("make", &make_attention, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
                  nb::arg().none(), nb::arg(), nb::arg());
  nb::class_<LatentAttention>(m, "LatentAttention")
      .def_static("make", &make_latents, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
                  nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  nb::class_<SelfRecurrence>(m, "SelfRecurrence")
      .def_static("make", &make_recurrence, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
                  nb::arg().none(), nb::arg().none());
  nb::class_<Mlp>(m, "Mlp").def_static("make", &make_mlp);
  nb::class_<GivenMlp>(m, "GivenMlp").def_static("make", &make_given);
  nb::class_<Laurel>(m, "Laurel").def_static("make", &make_laurel);
  nb::class_<Streams>(m, "Streams").def_static("make", &make_streams);
  nb::class_<Routing>(m, "Routing").def_static("make", &make_routing);
  nb::class_<Experts>(m, "Experts")
      .def_static("make", &make_experts, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
                  nb::arg(), nb::arg().none(), nb::arg().none());
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__", [](Decoder* self, int dtype, int64_t hidden) {
        new (self) Decoder{DType(dtype), hidden, {}};
      })
      .def("add_layer", &add_layer)
      .def("set_mixer", &set_mixer)
      .def("set_mlp", &set_mlp)
      .def("predict", [](Decoder& self, const Streams& s) { self.layers.back().predicted = s; })
      .def("correct", [](Decoder& self, const Streams& s) { self.layers.back().corrected = s; })
      .def("add_up_over", [](Decoder& self, Ranks& ranks) { self.ranks = &ranks; },
           nb::keep_alive<1, 2>())
      .def("end", [](Decoder& self, const Norm& norm) { self.final_norm = norm; });
}

}  // namespace quire
