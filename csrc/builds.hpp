// The instruction sets that this module was built for, best first.
#pragma once

#include <string>

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
#endif

// A null-terminated list of those that this processor and its operating system can run.
const Build* const* usable_builds();

// The one called ``name``, or the best. Throws std::invalid_argument if the machine lacks it.
const Build& usable_build(const std::string& name);

}  // namespace quire
