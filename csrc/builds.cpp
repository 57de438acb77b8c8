#include "builds.hpp"

#include <stdexcept>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace quire {

#if defined(__aarch64__)
namespace {

struct Extensions {
  bool atomics = false;  // what compilers use of armv8.2-a, without which they know none of these:
  bool dotprod = false, i8mm = false, bf16 = false;

  // Told by the system: programs may not ask the processor.
  Extensions() {
#if defined(__linux__)
    atomics = getauxval(AT_HWCAP) & HWCAP_ATOMICS;
    dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    i8mm = getauxval(AT_HWCAP2) & HWCAP2_I8MM;
    bf16 = getauxval(AT_HWCAP2) & HWCAP2_BF16;
#elif defined(__APPLE__)
    atomics = told("hw.optional.arm.FEAT_LSE");
    dotprod = told("hw.optional.arm.FEAT_DotProd");
    i8mm = told("hw.optional.arm.FEAT_I8MM");
    bf16 = told("hw.optional.arm.FEAT_BF16");
#endif
  }

#if defined(__APPLE__)
  static bool told(const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, nullptr, 0) && value;
  }
#endif
};

}  // namespace
#endif

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
#if defined(__aarch64__)
    Extensions has;
    bool dot = has.atomics && has.dotprod;
    if (dot && has.i8mm && has.bf16) *next++ = &neon_i8mm::build;
    if (dot) *next++ = &neon_dot::build;
    *next++ = &neon::build;
#else
    *next++ = &portable::build;
#endif
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
