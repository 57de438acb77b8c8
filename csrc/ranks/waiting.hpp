// Counters in memory that processes share, and how one waits for another's.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

double seconds_now();  // monotonic

// Only goes up, and round; one process writes it. In cache lines of its own.
struct alignas(128) Counter {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  uint32_t now() const { return count.load(std::memory_order_relaxed); }
  bool reached(uint32_t wanted) const {
    return int32_t(count.load(std::memory_order_acquire) - wanted) >= 0;
  }
  // What was written before is seen by who sees this.
  void raise_to(uint32_t value);
  void wake();
  // Until it is woken, or some time has passed. Not if the count is another by now.
  void sleep(uint32_t seen, double seconds);
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// How long to wait in which way: what comes at once is seen at once, those who wait with nothing to
// do leave the cores to others, and where there are fewer cores than processes all get on.
class Patience {
 public:
  // True for as long as looking again soon is right; then sleep.
  bool stay_awake();

 private:
  int spins_ = 0;
  double asleep_from_ = 0;
};

}  // namespace quire
