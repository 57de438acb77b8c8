// The instruction sets that this module was built for, best first.
#pragma once

#include <string>
#include <vector>

#include "interface.hpp"

namespace quire {

#if defined(__aarch64__)
namespace neon {
extern const Build build;
}
namespace neon_dot {
extern const Build build;
}
namespace neon_i8mm {
extern const Build build;
}
#else
namespace portable {
extern const Build build;
}
#endif
#if defined(__x86_64__)
namespace avx2 {
extern const Build build;
}
namespace avx512 {
extern const Build build;
}
namespace avx512_bf16 {
extern const Build build;
}
namespace amx {
extern const Build build;
}
namespace amx_portable {  // for tests: what amx does, with tiles in plain C++
extern const Build build;
}
#endif

struct Candidate {
  const Build* build;
  std::string refusal;  // why this machine cannot run it; empty: it can
};

// All that can be chosen, best first. The first call asks the system for what they need.
const std::vector<Candidate>& candidates();

// The one called ``name``, or the best. Throws std::invalid_argument if the machine lacks it.
const Build& usable_build(const std::string& name);

}  // namespace quire
