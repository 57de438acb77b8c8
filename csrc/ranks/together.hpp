// Where threads come together.
#pragma once

#include <omp.h>

#include <vector>

#include "team.hpp"

namespace quire {

// Let so many threads do something together, in a parallel region if they are several.
template <class Body>
void together(int threads, const Body& body) {
  if (threads == 1) {
    Turns turns;
    Team team{0, 1, &turns};
    return body(team);
  }
  std::vector<Turns> turns(threads);
#pragma omp parallel num_threads(threads)
  {
    Team team{omp_get_thread_num(), omp_get_num_threads(), turns.data()};
    body(team);
  }
}

}  // namespace quire
