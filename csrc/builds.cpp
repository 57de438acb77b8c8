#include "builds.hpp"

#include <stdexcept>

namespace quire {

// __builtin_cpu_supports reads cpuid, and for AVX also whether the system saves the registers.
const Build* const* usable_builds() {
  static const Build* usable[5];  // filled once; the same for all
  static const bool filled = [] {
    const Build** next = usable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool products = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (avx512 && products) *next++ = &avx512_bf16::build;
    if (avx512) *next++ = &avx512::build;
    if (avx2) *next++ = &avx2::build;
#endif
    *next++ = &portable::build;
    return true;
  }();
  (void)filled;
  return usable;
}

const Build& usable_build(const std::string& name) {
  for (const Build* const* build = usable_builds(); *build; build++) {
    if (name.empty() || name == (*build)->name) return **build;
  }
  throw std::invalid_argument("this machine cannot run the kernels for " + name);
}

}  // namespace quire
