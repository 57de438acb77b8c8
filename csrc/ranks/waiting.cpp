#include "ranks/waiting.hpp"

#include <sched.h>
#include <time.h>

#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {
namespace {

constexpr int most_spins = 2000;       // some tens of microseconds
constexpr double awake_for = 0.002;    // seconds of giving way to others after that

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

timespec duration(double seconds) {
  auto whole = time_t(seconds);
  return {whole, long((seconds - double(whole)) * 1e9)};
}

}  // namespace

double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Either who goes to sleep sees the new count, or this sees that somebody sleeps: both look at the
// other's word after having written their own, in one order for all.
void Counter::raise_to(uint32_t value) {
  count.store(value, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst)) wake();
}

#if defined(__linux__)

void Counter::wake() { syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Counter::sleep(uint32_t seen, double seconds) {
  timespec most = duration(seconds);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (count.load(std::memory_order_seq_cst) == seen) {
    syscall(SYS_futex, &count, FUTEX_WAIT, seen, &most, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

#else

void Counter::wake() {}

void Counter::sleep(uint32_t, double) {
  timespec moment = duration(1e-4);
  nanosleep(&moment, nullptr);
}

#endif

bool Patience::stay_awake() {
  if (spins_ < most_spins) {
    spins_++;
    pause();
    return true;
  }
  double now = seconds_now();
  if (!asleep_from_) asleep_from_ = now + awake_for;
  if (now >= asleep_from_) return false;
  sched_yield();
  return true;
}

}  // namespace quire
