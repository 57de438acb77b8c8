#include "python/ranks_module.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ranks/ranks.hpp"
#include "workspace.hpp"

namespace nb = nanobind;

namespace quire {
namespace {

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// The rest of the process goes on while this one waits, and so can end the wait.
template <class Call>
auto without_lock(const Call& call) {
  nb::gil_scoped_release release;
  return call();
}

nb::object hear(Ranks& ranks, double timeout) {
  auto message = without_lock([&] { return ranks.hear(timeout); });
  return message ? nb::object(as_bytes(*message)) : nb::none();
}

nb::list answers(Ranks& ranks, double timeout) {
  nb::list all;
  for (const std::string& answer : without_lock([&] { return ranks.answers(timeout); }))
    all.append(as_bytes(answer));
  return all;
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const RankFailure& failure) {
      nb::object error = nb::module_::import_("quire.core.errors").attr("RankError");
      PyErr_SetString(error.ptr(), failure.what());
    }
  });
  nb::class_<Ranks>(m, "Ranks")
      .def("__init__", [](Ranks* self, int file, int rank, int size, double timeout,
                          const std::string& instruction_set) {
        new (self) Ranks(file, rank, size, timeout, usable_build(instruction_set));
      })
      .def_static("memory_bytes", &Ranks::memory_bytes)
      .def_ro_static("most", &Ranks::most)
      .def("add_up", [](Ranks& self, Address x, int64_t size, int dtype, int threads) {
        self.add_up(at<void>(x), size, DType(dtype), threads);
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("gather", [](Ranks& self, Address x, int64_t bytes, Address out) {
        self.gather(at<void>(x), bytes, at<void>(out));
      }, nb::call_guard<nb::gil_scoped_release>())
      .def("tell", [](Ranks& self, nb::bytes message) {
        without_lock([&] { self.tell(message.c_str(), message.size()); });
      })
      .def("hear", &hear)
      .def("answer", [](Ranks& self, nb::bytes message) {
        without_lock([&] { self.answer(message.c_str(), message.size()); });
      })
      .def("answers", &answers)
      .def("abort", &Ranks::abort, nb::call_guard<nb::gil_scoped_release>())
      .def("failure", &Ranks::failure);
}

}  // namespace quire
