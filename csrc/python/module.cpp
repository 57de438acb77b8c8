// The Python module quire.kernels._native: pointers and numbers in, no tensors.
//
// Its caller, quire/kernels/cpu.py, checks types and shapes; here only what memory safety needs and
// the caller cannot see is checked. Tensors stay with the caller, who must keep them alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels.hpp"
#include "masking.hpp"
#include "python/adapters_module.hpp"
#include "python/decoder_module.hpp"
#include "python/products_module.hpp"
#include "python/ranks_module.hpp"
#include "python/recurrence_module.hpp"

namespace nb = nanobind;

#pragma weak omp_pause_resource_all  // OpenMP 5; torch may have brought an older one

namespace quire {
namespace {

Norm make_norm(Address weight, Address bias, int dtype, float eps, bool centred) {
  return {at<void>(weight), at<void>(bias), DType(dtype), eps, centred, true};
}

// From, to, bytes from one block's number to the next in each of them, bytes of a block.
using Pools = std::vector<std::tuple<Address, Address, int64_t, int64_t, int64_t>>;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;
using Pairs = std::vector<std::pair<int64_t, int64_t>>;

// Copy blocks in the order given, in all pools: each thread moves its share of the bytes that the
// pools have in a block, so that all it writes is read by nobody else.
void copy_blocks(const Pools& pools, const Pairs& pairs, int threads) {
  auto copy = [&](int64_t first, int64_t last) {
    for (auto [source, target, source_step, target_step, bytes] : pools) {
      int64_t skip = std::max<int64_t>(first, 0), end = std::min(last, bytes);
      first -= bytes, last -= bytes;
      if (skip >= end) continue;
      const char* from = at<char>(source) + skip;
      char* to = at<char>(target) + skip;
      for (auto [origin, destination] : pairs) {
        if (source == target && origin == destination) continue;
        std::memcpy(to + destination * target_step, from + origin * source_step, end - skip);
      }
    }
  };
  int64_t total = 0;
  for (const auto& pool : pools) total += std::get<4>(pool);
  if (total * int64_t(pairs.size()) < (1 << 18)) return copy(0, total);
#pragma omp parallel num_threads(threads)
  {
    int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
    copy(total * i / n, total * (i + 1) / n);
  }
}

// End the threads that wait for the calling one's parallel regions; its next one starts them again.
void release_threads() {
  if (omp_pause_resource_all) omp_pause_resource_all(omp_pause_soft);
}

std::vector<std::string> usable() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates()) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

std::vector<std::string> builds() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates()) names.push_back(candidate.name);
  return names;
}

std::map<std::string, std::string> refusals() {
  std::map<std::string, std::string> reasons;
  for (const Candidate& candidate : candidates()) {
    if (!candidate.refusal.empty()) reasons[candidate.name] = candidate.refusal;
  }
  return reasons;
}

}  // namespace
}  // namespace quire

NB_MODULE(_native, m) {
  using namespace quire;
  // An engine that is alive when Python ends, as after an uncaught exception, is no leak.
  nb::set_leak_warnings(false);
  candidates();  // early, since threads with small signal stacks would have AMX refused
  nb::class_<Norm>(m, "Norm").def_static("make", &make_norm);
  nb::class_<Rotation>(m, "Rotation")
      .def("__init__", [](Rotation* self, Address cos, Address sin, Address sink_cos,
                          Address sink_sin, Address query_scale, int half) {
        new (self) Rotation{at<float>(cos), at<float>(sin), at<float>(sink_cos),
                            at<float>(sink_sin), at<float>(query_scale), half};
      });
  nb::class_<Layer>(m, "Layer")
      .def("__init__", [](Layer* self, int kv_group, Address keys, Address values, Address key_scales,
                          Address value_scales, int kv_dtype, int dtype, int num_heads,
                          int num_kv_heads, int64_t block_rows, int key_dim, int value_dim,
                          float scale, float softcap, int64_t window, bool chunk, int64_t sinks,
                          Address sink_logits, bool norm_turned, const Norm* query_norm,
                          const Norm* key_norm, const Norm* value_norm, bool shared,
                          bool in_rows) {
        new (self) Layer{};
        self->kv_group = kv_group;
        Attend& a = self->fixed;
        a.keys = at<void>(keys);
        a.values = at<void>(values);
        a.key_scales = at<float>(key_scales);
        a.value_scales = at<float>(value_scales);
        a.kv_dtype = DType(kv_dtype);
        a.dtype = DType(dtype);
        a.num_heads = num_heads;
        a.num_kv_heads = num_kv_heads;
        a.block_rows = block_rows;
        a.key_dim = key_dim;
        a.value_dim = value_dim;
        a.scale = scale;
        a.softcap = softcap;
        a.window = {window, chunk};
        a.sinks = sinks;
        a.sink_logits = at<float>(sink_logits);
        a.norm_turned = norm_turned;
        if (query_norm) a.query_norm = *query_norm;
        if (key_norm) a.key_norm = *key_norm;
        if (value_norm) a.value_norm = *value_norm;
        a.shared = shared;
        a.in_rows = in_rows;
      }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
           nb::arg(), nb::arg())
      .def("centre", [](Layer& self, Address factors, Address query_factors, Address common,
                        Address first, Address shares, Address order, Address cos, Address sin) {
        self.fixed.centring = {at<float>(factors), at<float>(query_factors), at<float>(common),
                               at<float>(first), at<float>(shares), at<int32_t>(order),
                               at<float>(cos), at<float>(sin)};
      });
  nb::class_<Plan>(m, "Plan")
      .def("__init__", [](Plan* self, std::vector<int64_t> query_starts, Address context_lens,
                          int64_t block_size, int threads) {
        new (self) Plan(std::move(query_starts), at<int64_t>(context_lens), block_size, threads);
      })
      .def("add_kv_group", [](Plan& self, Address slots, Address block_tables, int64_t width,
                          Address num_dropped, int64_t num_sink_blocks) {
        self.add_kv_group({at<int64_t>(slots), at<int64_t>(block_tables), width,
                       at<int64_t>(num_dropped), num_sink_blocks, false});
      })
      .def("add_chosen", [](Plan& self, Address slots, Address chosen, int64_t width,
                            Address num_dropped) {
        self.add_kv_group({at<int64_t>(slots), at<int64_t>(chosen), width,
                           at<int64_t>(num_dropped), 0, true});
      })
      .def("set_bias", [](Plan& self, Address before, Address bias, int64_t steps) {
        self.bias = {at<int64_t>(before), at<float>(bias), steps};
      })
      .def("set_state_slots", [](Plan& self, Address slots) {
        self.states.set(self.num_sequences(), at<int64_t>(slots));
      })
      .def("set_drafts", [](Plan& self, Address confirmed, Address drafts) {
        self.states.set_drafts(at<int64_t>(confirmed), at<int64_t>(drafts));
      })
      .def("set_left", [](Plan& self, Address left) { self.states.left = at<int64_t>(left); })
      .def("add_adapted", [](Plan& self, const Adapter& adapter, const Ranges& ranges) {
        self.adapted.add(adapter, ranges);
      });
  bind_adapters(m);
  bind_products(m);
  bind_ranks(m);
  bind_recurrence(m);
  bind_decoder(m);
  nb::class_<Kernels>(m, "Kernels")
      .def(nb::init<const std::string&>())
      .def_prop_ro("name", &Kernels::name)
      .def_prop_ro("workspace_bytes", &Kernels::workspace_bytes)
      .def("attend", [](Kernels& self, Plan& plan, const Layer& layer, Address query,
                        int64_t query_stride, Address key, int64_t key_stride, Address value,
                        int64_t value_stride, Address out, const Rotation* rotation) {
        self.attend(plan, layer, {at<void>(query), query_stride}, {at<void>(key), key_stride},
                    {at<void>(value), value_stride}, at<void>(out), rotation);
      }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::call_guard<nb::gil_scoped_release>())
      .def("choose", [](Kernels& self, const Plan& plan, int kv_group, int64_t heads, int64_t width,
                        int64_t most, const Norm& key_norm, int64_t block_rows, int dtype,
                        int kv_dtype, Address keys, Address scales, const Rotation* rotation,
                        Address query, int64_t query_stride, Address key, int64_t key_stride,
                        Address weights, Address chosen, Address counts, int64_t columns) {
        Index x{};
        x.heads = heads;
        x.width = width;
        x.most = most;
        x.key_norm = key_norm;
        x.block_rows = block_rows;
        x.dtype = DType(dtype);
        x.kv_dtype = DType(kv_dtype);
        x.keys = at<void>(keys);
        x.scales = at<float>(scales);
        if (rotation) x.rotation = *rotation;
        x.query = {at<void>(query), query_stride};
        x.key = {at<void>(key), key_stride};
        x.weights = at<float>(weights);
        x.chosen = at<int64_t>(chosen);
        x.counts = at<int64_t>(counts);
        x.columns = columns;
        self.choose(plan, kv_group, x);
      }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("recur", [](Kernels& self, const Plan& plan, const Recurrence& layer,
                       const StateMemory& memory, Address x, int64_t x_stride, int dtype,
                       Address out) {
        self.recur(plan, layer, memory, {at<void>(x), x_stride}, DType(dtype), at<void>(out));
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("norm", [](Kernels& self, const Norm& norm, Address x, int64_t x_stride, Address delta,
                      int64_t delta_stride, Address sum, Address out, int64_t rows, int64_t width,
                      int dtype, int threads) {
        self.norm(norm, at<void>(x), x_stride, at<void>(delta), delta_stride, at<void>(sum),
                  at<void>(out), rows, width, DType(dtype), threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("activate", [](Kernels& self, Address x, int64_t x_stride, Address out, int64_t rows,
                          int64_t width, int dtype, int activation, bool gated, float factor,
                          float above, float below, float cut, int threads) {
        self.activate(at<void>(x), x_stride, at<void>(out), rows, width, DType(dtype),
                      Activation(activation), gated, factor, {above, below}, cut, threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("gate", [](Kernels& self, Address x, int64_t x_stride, Address gates,
                      int64_t gates_stride, int64_t rows, int64_t width, int64_t each, int dtype,
                      int threads) {
        self.gate({at<void>(x), at<void>(gates), rows, width, each, x_stride, gates_stride,
                   DType(dtype)},
                  threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("predict", [](Kernels& self, const Streams& by, Address streams, Address x, int64_t rows,
                         int64_t width, int dtype, int threads) {
        self.predict({by, at<void>(streams), at<void>(x), rows, width, DType(dtype)}, threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("correct", [](Kernels& self, const Streams& by, Address streams, Address x, int64_t rows,
                         int64_t width, int dtype, int threads) {
        self.correct({by, at<void>(streams), at<void>(x), rows, width, DType(dtype)}, threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("adapt", [](Kernels& self, const std::vector<std::pair<const Adapter*, Ranges>>& adapted,
                       int64_t product, Address x, int64_t x_stride, Address out,
                       int64_t out_stride, int dtype, int threads) {
        AdaptedBatch batch;
        for (const auto& [adapter, ranges] : adapted) batch.add(*adapter, ranges);
        self.adapt(batch, product, at<void>(x), x_stride, at<void>(out), out_stride, DType(dtype),
                   threads);
      })
      .def("argmax", [](Kernels& self, Address x, int64_t x_stride, Address out, int64_t rows,
                        int64_t width, int dtype, int threads) {
        self.argmax(at<void>(x), x_stride, at<int64_t>(out), rows, width, DType(dtype), threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("mix", [](Kernels& self, const Experts& experts, Address x, Address routed, Address out,
                     int64_t rows, int dtype, int threads) {
        self.mix(experts, at<void>(x), at<void>(routed), at<void>(out), rows, DType(dtype),
                 threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("run", [](Kernels& self, const Decoder& decoder, Plan& plan, Address x, Address out,
                     const std::vector<Rotation>& rotations, Address given,
                     int64_t given_stride, Address streams) {
        self.run(decoder, plan, at<void>(x), at<void>(out), rotations,
                 {at<void>(given), given_stride}, at<void>(streams));
      }, nb::call_guard<nb::gil_scoped_release>())
      // numbers: counts, lengths, positions, tokens, then each KV group's tables and num_dropped,
      // then slots of states and drafts, if there are any.
      .def("go_on", [](Kernels& self, const Decoder& decoder, const Packed* embedding,
                       Address table, const Packed& head, int64_t vocabulary, int64_t texts,
                       int64_t given, Address numbers,
                       int64_t block_size, const std::vector<std::pair<int64_t, int64_t>>& kv_groups,
                       bool has_states, const std::vector<Rotation>& rotations, int threads,
                       Address out) {
        const int64_t* at_hand = at<int64_t>(numbers);
        Continuation c{decoder, embedding, at<char>(table), head, vocabulary, texts, at_hand,
                       at_hand + texts, at_hand + 2 * texts, at_hand + 3 * texts, given,
                       block_size, {}, nullptr, nullptr, rotations, threads,
                       at<int64_t>(out)};
        at_hand += 3 * texts + given;
        for (auto [width, sink_blocks] : kv_groups) {
          const int64_t* dropped = at_hand + texts * width;
          c.kv_groups.push_back({nullptr, at_hand, width, dropped, sink_blocks});
          at_hand = dropped + texts;
        }
        if (has_states) {
          c.slots = at_hand;
          c.drafts = at_hand + texts;
        }
        self.go_on(c);
      }, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::call_guard<nb::gil_scoped_release>());
  m.def("copy_blocks", &copy_blocks, nb::call_guard<nb::gil_scoped_release>());
  m.def("mask", [](Address x, int64_t x_stride, Address masks, int64_t words, Address numbers,
                   Address out, int64_t rows, int64_t width, int threads) {
    mask({at<float>(x), x_stride, at<uint32_t>(masks), words, at<int32_t>(numbers),
          at<float>(out), rows, width}, threads);
  }, nb::call_guard<nb::gil_scoped_release>());
  m.def("choose_of_few", [](Address x, int64_t x_stride, Address masks, int64_t words, Address rows,
                            Address temperature, Address uniform, int64_t count, int64_t width,
                            Address chosen, Address peaks, int threads) {
    choose_of_few({at<float>(x), x_stride, at<uint32_t>(masks), words, at<int32_t>(rows),
                   at<double>(temperature), at<double>(uniform), count, width,
                   at<int64_t>(chosen), at<float>(peaks)}, threads);
  }, nb::call_guard<nb::gil_scoped_release>());
  m.def("release_threads", &release_threads, nb::call_guard<nb::gil_scoped_release>());
  m.def("usable", &usable, "Names of the instruction sets that can be chosen here, best first.");
  m.def("builds", &builds, "All that can be chosen on machines of this kind, best first.");
  m.def("refusals", &refusals, "Why the others cannot be chosen, by name.");
}
