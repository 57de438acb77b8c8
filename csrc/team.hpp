// The threads that carry out a step together.
#pragma once

#include <cstdint>

// A function outside the builds' namespaces must not be left to stand by itself: the linker would
// keep the copy of any build, and run it on processors without its instructions.
#define QUIRE_INLINE static inline __attribute__((always_inline))

namespace quire {

// One of them, as it sees the others. All call the same operations in the same order; when an
// operation returns, it is done, by all. So a whole decoder needs one parallel region, and its
// threads are neither woken nor sent to sleep between operations.
struct Team {
  int index, size;
  int64_t* taken;      // pieces that any of them has taken since they came together
  int64_t before = 0;  // of which were taken before the operation at hand

  __attribute__((always_inline)) void wait() const {
    if (size == 1) return;
#pragma omp barrier
  }

  // Pieces are taken, not dealt, so that a thread whose core is busy with other work holds nobody
  // up. When all are done each has asked for one that was not there.
  template <class Body>
  __attribute__((always_inline)) void take(int64_t pieces, const Body& body) {
    for (int64_t i; (i = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) - before) < pieces;)
      body(i);
    before += pieces + size;
    wait();
  }

  // Equal runs of n things, a run for each: body(first, last).
  template <class Body>
  __attribute__((always_inline)) void deal(int64_t n, const Body& body) const {
    body(n * index / size, n * (index + 1) / size);
    wait();
  }
};

// What is soon done by one is done by the first, while the others wait.
template <class Operation>
QUIRE_INLINE void share(Team& team, bool soon_done, const Operation& operation) {
  if (!soon_done) return operation(team);
  if (team.index == 0) {
    int64_t taken = 0;
    Team one{0, 1, &taken};
    operation(one);
  }
  team.wait();
}

}  // namespace quire
