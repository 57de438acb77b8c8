// The Python module quire.capabilities.speculation._native: texts as array("I") in, drafts out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "archive.hpp"
#include "guess.hpp"
#include "prediction.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace quire::drafting {
namespace {

// The tokens of a buffer, which cannot change its size meanwhile.
class Tokens {
 public:
  explicit Tokens(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_ND)) throw nb::python_error();
    if (view_.itemsize != sizeof(uint32_t) || view_.ndim != 1) {
      PyBuffer_Release(&view_);
      throw std::invalid_argument("tokens must be in an array of four bytes each");
    }
  }
  Tokens(const Tokens&) = delete;
  ~Tokens() { PyBuffer_Release(&view_); }

  const uint32_t* data() const { return static_cast<const uint32_t*>(view_.buf); }
  size_t size() const { return size_t(view_.len) / sizeof(uint32_t); }

 private:
  Py_buffer view_;
};

// (tokens, chances, length of the match, expected right ones), or None.
nb::object told(const Guess& guess) {
  if (!guess.count) return nb::none();
  nb::list tokens, chances;
  for (int i = 0; i < guess.count; i++) {
    tokens.append(guess.tokens[i]);
    chances.append(guess.chances[i]);
  }
  return nb::make_tuple(tokens, chances, guess.length, guess.expected);
}

std::vector<int> checked(std::vector<int> orders) {
  bool good = !orders.empty() && orders.front() >= 1 && orders.back() <= longest_match &&
              std::is_sorted(orders.begin(), orders.end());
  if (!good) throw std::invalid_argument("orders must ascend from 1 or more to 64 or less");
  return orders;
}

Name name_of(const nb::bytes& bytes) {
  Name name;
  if (bytes.size() != name.size()) throw std::invalid_argument("a name has 16 bytes");
  std::memcpy(name.data(), bytes.c_str(), name.size());
  return name;
}

Rule rule_of(int walked, int voters, int longest, double factor, double least) {
  if (voters < 1 || voters > most_voters) throw std::invalid_argument("voters: from 1 to 16");
  if (longest < 1 || longest > longest_match) throw std::invalid_argument("longest: from 1 to 64");
  return {walked, voters, longest, factor, least};
}

}  // namespace
}  // namespace quire::drafting

NB_MODULE(_native, m) {
  using namespace quire::drafting;
  nb::set_leak_warnings(false);  // an engine that is alive when Python ends is no leak
  nb::class_<Rule>(m, "Rule")
      .def("__init__", [](Rule* self, int walked, int voters, int longest, double factor,
                          double least) {
        new (self) Rule(rule_of(walked, voters, longest, factor, least));
      });
  nb::class_<Text>(m, "Text")
      .def("__init__", [](Text* self, std::vector<int> orders, size_t room) {
        new (self) Text(checked(std::move(orders)), room);
      })
      .def("become",
           [](Text& self, nb::handle array) {
             Tokens tokens(array);
             self.become(tokens.data(), tokens.size());
           })
      .def("guess",
           [](Text& self, nb::handle array, const Rule& rule, int most) {
             Tokens tokens(array);
             self.extend(tokens.data(), tokens.size());
             return told(self.guess(rule, most));
           })
      .def("copy", [](const Text& self) { return std::make_shared<Text>(self); })
      .def("__len__", &Text::size)
      .def_prop_ro("num_bytes", &Text::bytes);
  nb::class_<Archive>(m, "Archive")
      .def("__init__",
           [](Archive* self, std::vector<int> orders, size_t bytes, uint64_t most_texts,
              uint32_t first_page) {
             new (self) Archive(checked(std::move(orders)), bytes, most_texts, first_page);
           },
           nb::arg("orders"), nb::arg("num_bytes"), nb::arg("most_texts"),
           nb::arg("first_page") = 1)
      .def_prop_ro("num_bytes", &Archive::bytes);
  nb::class_<Volume>(m, "Volume")
      .def("__init__", [](Volume* self, std::shared_ptr<Archive> archive, const nb::bytes& name,
                          size_t first) {
        new (self) Volume(std::move(archive), name_of(name), first);
      })
      .def("guess",
           [](Volume& self, nb::handle array, const Rule& rule, int most) {
             Tokens tokens(array);
             self.write(tokens.data(), tokens.size());
             return told(self.guess(tokens.data(), tokens.size(), rule, most));
           })
      .def("end", [](Volume& self, nb::handle array, size_t most) {
        Tokens tokens(array);
        self.write(tokens.data(), std::min(tokens.size(), self.written() + most));
      });
  nb::class_<Follower>(m, "Follower")
      .def(nb::init<std::shared_ptr<const Text>>())
      .def("guess", [](Follower& self, nb::handle array, size_t first, int most) {
        Tokens tokens(array);
        if (first > tokens.size()) throw std::invalid_argument("an output begins in its text");
        return told(self.guess(tokens.data() + first, tokens.size() - first, most));
      });
}
