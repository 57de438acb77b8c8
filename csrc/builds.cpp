#include "builds.hpp"

#include <stdexcept>

#include "processor.hpp"

namespace quire {

// QUIRE_BUILDS is COMPILED(name) for each build that there is (CMakeLists.txt).
#define COMPILED(name) namespace name { extern const Build build; }
QUIRE_BUILDS
#undef COMPILED

namespace {

const Build* compiled(const std::string& name) {
#define COMPILED(of) if (name == of::build.name) return &of::build;
  QUIRE_BUILDS
#undef COMPILED
  return nullptr;
}

// ``by``: what QUIRE_ISAS must be for all of them.
std::vector<Candidate> find_candidates(const std::vector<InstructionSet>& sets, const char* by) {
  std::vector<Candidate> found;
  for (const auto& [name, lacking] : sets) {
    Candidate candidate{name, compiled(name), lacking};
    if (!candidate.build && lacking.empty())
      candidate.refusal = std::string("it was not compiled (QUIRE_ISAS=") + by + " does)";
    found.push_back(candidate);
  }
  return found;
}

}  // namespace

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> found = find_candidates(instruction_sets(), "all");
  return found;
}

const Build& usable_build(const std::string& name) {
  std::string reason = "there is none of that name";
  for (const auto& list : {candidates(), find_candidates(for_tests(), "tests")}) {
    for (const Candidate& candidate : list) {
      bool wanted = name.empty() || name == candidate.name;
      if (wanted && candidate.refusal.empty()) return *candidate.build;
      if (wanted) reason = candidate.refusal;
    }
  }
  throw std::invalid_argument("this machine cannot run the kernels for " + name + ": " + reason);
}

}  // namespace quire
