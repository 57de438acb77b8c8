// The threads that carry out a step together.
#pragma once

#include <cstdint>

// A function outside the builds' namespaces must not be left to stand by itself: the linker would
// keep the copy of any build, and run it on processors without its instructions.
#define QUIRE_INLINE static inline __attribute__((always_inline))

namespace quire {

// How many pieces of a thread's run have been taken, by whomever, in which operation. A line of the
// caches each: who takes of his own run disturbs nobody.
struct alignas(64) Turns {
  uint64_t word = 0;  // the operation, then the number

  // The next of ``count`` pieces, or -1. The first to ask in an operation begins it.
  __attribute__((always_inline)) int64_t next(uint32_t operation, int64_t count) {
    uint64_t seen = __atomic_load_n(&word, __ATOMIC_RELAXED);
    for (;;) {
      int64_t taken = seen >> 32 == operation ? int64_t(uint32_t(seen)) : 0;
      if (taken >= count) return -1;
      uint64_t wanted = uint64_t(operation) << 32 | uint64_t(taken + 1);
      if (__atomic_compare_exchange_n(&word, &seen, wanted, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        return taken;
    }
  }
};

// A run of equal ones.
struct Run {
  int64_t first, last;

  __attribute__((always_inline)) Run(int64_t n, int64_t index, int64_t size)
      : first(n * index / size), last(n * (index + 1) / size) {}

  __attribute__((always_inline)) bool has(int64_t i) const { return first <= i && i < last; }
};

// One of them, as it sees the others. All call the same operations in the same order; when an
// operation returns, it is done, by all. So a whole decoder needs one parallel region, and its
// threads are neither woken nor sent to sleep between operations.
struct Team {
  int index, size;
  Turns* turns;  // of each
  uint32_t operation = 0;

  __attribute__((always_inline)) void wait() const {
    if (size == 1) return;
#pragma omp barrier
  }

  // Each has a run of n pieces, which is the same whenever n is: what it reads is in its own caches
  // and on its own node, and it knows what it will read next. Who is through with it takes from
  // others' runs, so that a thread whose core is busy with other work holds nobody up.
  template <class Body>
  __attribute__((always_inline)) void take(int64_t n, const Body& body) {
    operation++;
    for (int i = 0; i < size; i++) {
      int whose = index + i < size ? index + i : index + i - size;
      Run run(n, whose, size);
      for (int64_t piece; (piece = turns[whose].next(operation, run.last - run.first)) >= 0;)
        body(run.first + piece);
    }
    wait();
  }

  // Equal runs of n things, a run for each: body(first, last).
  template <class Body>
  __attribute__((always_inline)) void deal(int64_t n, const Body& body) const {
    Run run(n, index, size);
    body(run.first, run.last);
    wait();
  }
};

// What is soon done by one is done by the first, while the others wait.
template <class Operation>
QUIRE_INLINE void share(Team& team, bool soon_done, const Operation& operation) {
  if (!soon_done) return operation(team);
  if (team.index == 0) {
    Turns turns;
    Team one{0, 1, &turns};
    operation(one);
  }
  team.wait();
}

}  // namespace quire
