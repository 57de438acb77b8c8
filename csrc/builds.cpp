#include "builds.hpp"

#include <stdexcept>

namespace quire {
namespace {

#if defined(__x86_64__)

struct Feature {
  const char* name;
  bool present;
};

std::string first_missing(std::initializer_list<Feature> features) {
  for (const Feature& feature : features) {
    if (!feature.present) return std::string("the processor has no ") + feature.name;
  }
  return "";
}

// __builtin_cpu_supports wants a literal. It reads cpuid, and for AVX also whether the system saves
// the registers.
#define QUIRE_FEATURE(name) Feature{name, __builtin_cpu_supports(name) != 0}

std::string lacks_avx2() {
  return first_missing({QUIRE_FEATURE("avx2"), QUIRE_FEATURE("fma"), QUIRE_FEATURE("f16c")});
}

std::string lacks_avx512() {
  std::string missing = lacks_avx2();
  if (!missing.empty()) return missing;
  return first_missing({QUIRE_FEATURE("avx512f"), QUIRE_FEATURE("avx512bw"),
                        QUIRE_FEATURE("avx512dq"), QUIRE_FEATURE("avx512vl")});
}

std::string lacks_avx512_bf16() {
  std::string missing = lacks_avx512();
  if (!missing.empty()) return missing;
  return first_missing({QUIRE_FEATURE("avx512bf16"), QUIRE_FEATURE("avx512vnni")});
}

#undef QUIRE_FEATURE

std::vector<Candidate> find_candidates() {
  __builtin_cpu_init();
  return {{&avx512_bf16::build, lacks_avx512_bf16()},
          {&avx512::build, lacks_avx512()},
          {&avx2::build, lacks_avx2()},
          {&portable::build, ""}};
}

#else

std::vector<Candidate> find_candidates() { return {{&portable::build, ""}}; }

#endif

}  // namespace

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> found = find_candidates();
  return found;
}

const Build& usable_build(const std::string& name) {
  std::string reason = "it was not built";
  for (const Candidate& candidate : candidates()) {
    bool wanted = name.empty() || name == candidate.build->name;
    if (wanted && candidate.refusal.empty()) return *candidate.build;
    if (wanted) reason = candidate.refusal;
  }
  throw std::invalid_argument("this machine cannot run the kernels for " + name + ": " + reason);
}

}  // namespace quire
