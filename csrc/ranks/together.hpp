// Where threads come together.
#pragma once

#include <omp.h>

#include "team.hpp"

namespace quire {

// Let so many threads do something together, in a parallel region if they are several.
template <class Body>
void together(int threads, const Body& body) {
  int64_t taken = 0;
  if (threads == 1) {
    Team team{0, 1, &taken};
    return body(team);
  }
#pragma omp parallel num_threads(threads)
  {
    Team team{omp_get_thread_num(), omp_get_num_threads(), &taken};
    body(team);
  }
}

}  // namespace quire
