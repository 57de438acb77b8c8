// The instruction sets that this module was built for, best first.
#pragma once

#include <string>

#include "interface.hpp"

namespace quire {

namespace portable {
extern const Build build;
}
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
#endif

// A null-terminated list of those that this processor and its operating system can run.
const Build* const* usable_builds();

// The one called ``name``, or the best. Throws std::invalid_argument if the machine lacks it.
const Build& usable_build(const std::string& name);

}  // namespace quire
