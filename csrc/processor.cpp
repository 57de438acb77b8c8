// What this machine lacks for each instruction set. Needs nothing else of Quire's: where the kernels
// are built for this processor alone, this file is a program that says for which sets that is.
#include "processor.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

// Defined by an emulator of AMX that was loaded before this module.
extern "C" int amx_is_emulated __attribute__((weak, visibility("default")));

namespace quire {
namespace {

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

#if defined(__x86_64__)

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

// Of the state that the system saves with a thread: bits 17 and 18 are the tiles.
bool system_saves_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned has_xgetbv = 1u << 27, tiles = 3u << 17;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & has_xgetbv)) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & tiles) == tiles;
}

std::string lacks_amx() {
  std::string missing = lacks_avx512_bf16();
  if (!missing.empty() || &amx_is_emulated) return missing;
  unsigned a, b, c, d = 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  missing = first_missing({{"amx_tile", (d >> 24 & 1) != 0},
                           {"amx_bf16", (d >> 22 & 1) != 0},
                           {"amx_int8", (d >> 25 & 1) != 0}});
  if (!missing.empty()) return missing;
  if (!system_saves_tiles()) return "the system does not save the tiles of AMX";
  // For this process and its threads. It is refused while one of them has a signal stack on which
  // the tiles would not fit, by old systems, and in some containers.
#if defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) == 0) return "";
  return std::string("the system refused permission for AMX: ") + std::strerror(errno);
#else
  return "this system gives no permission for AMX";
#endif
}

#undef QUIRE_FEATURE

}  // namespace

std::vector<InstructionSet> instruction_sets() {
  __builtin_cpu_init();
  return {{"amx", lacks_amx()},
          {"avx512_bf16", lacks_avx512_bf16()},
          {"avx512", lacks_avx512()},
          {"avx2", lacks_avx2()},
          {"portable", ""}};
}

std::vector<InstructionSet> for_tests() { return {{"amx_portable", lacks_avx512_bf16()}}; }

#else

#if defined(__aarch64__)
// Told by the system: a program may not ask the processor.
#if defined(__linux__)
#define QUIRE_FEATURE(name, word, bit, key) Feature{name, (getauxval(word) & (bit)) != 0}
#elif defined(__APPLE__)
#define QUIRE_FEATURE(name, word, bit, key) Feature{name, told("hw.optional.arm.FEAT_" key)}
bool told(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return !sysctlbyname(name, &value, &size, nullptr, 0) && value;
}
#else
#define QUIRE_FEATURE(name, word, bit, key) Feature{name, false}
#endif

// Without armv8.2-a compilers know none of these; of what else it has they use the atomics.
std::string lacks_dot() {
  return first_missing({QUIRE_FEATURE("atomics", AT_HWCAP, HWCAP_ATOMICS, "LSE"),
                        QUIRE_FEATURE("asimddp", AT_HWCAP, HWCAP_ASIMDDP, "DotProd")});
}

std::string lacks_i8mm() {
  std::string missing = lacks_dot();
  if (!missing.empty()) return missing;
  return first_missing({QUIRE_FEATURE("i8mm", AT_HWCAP2, HWCAP2_I8MM, "I8MM"),
                        QUIRE_FEATURE("bf16", AT_HWCAP2, HWCAP2_BF16, "BF16")});
}

#undef QUIRE_FEATURE

}  // namespace

std::vector<InstructionSet> instruction_sets() {
  return {{"neon_i8mm", lacks_i8mm()}, {"neon_dot", lacks_dot()}, {"neon", ""}};
}
#else
}  // namespace

std::vector<InstructionSet> instruction_sets() { return {{"portable", ""}}; }
#endif

std::vector<InstructionSet> for_tests() { return {}; }

#endif

}  // namespace quire

#if defined(QUIRE_SAYS_WHICH)
// The best that runs here, after those that the processor has and the system withholds for now.
int main() {
  for (const auto& [name, refusal] : quire::instruction_sets()) {
    if (refusal.rfind("the processor has no", 0) == 0) continue;
    std::printf("%s;", name);
    if (refusal.empty()) break;
  }
}
#endif
