// Which sequences of a step read the same blocks: forks, and prompts that begin alike.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.hpp"

namespace quire {

// Sequences that are neighbours in an order, and columns that they all read from the same blocks.
struct SharedColumns {
  int64_t first_place, last_place;
  int64_t first_column, last_column;
};

struct Sharing {
  std::vector<int32_t> order;           // of all sequences
  std::vector<int64_t> own_from;        // by sequence: the first column that it reads alone
  std::vector<SharedColumns> columns;   // each sequence's are disjoint, and end where its own begin
};

// ``known``: by sequence, how many columns may be shared; 0 keeps it out. Whole segments are
// shared, for they are what is merged. Sequences must have no window in front of which blocks are
// dropped.
Sharing find_sharing(const Tables& tables, int64_t block_size, const std::vector<int64_t>& known);

}  // namespace quire
