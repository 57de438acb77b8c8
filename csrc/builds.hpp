// The kernels that this module holds, one build for each instruction set that they were compiled for.
#pragma once

#include <string>
#include <vector>

#include "interface.hpp"

namespace quire {

struct Candidate {
  const char* name;
  const Build* build;   // null: it was not compiled
  std::string refusal;  // why it cannot run here; empty: it can
};

// All instruction sets that can be chosen on machines of this kind, best first.
const std::vector<Candidate>& candidates();

// The build called ``name``, or the best. Throws std::invalid_argument if it cannot run here.
const Build& usable_build(const std::string& name);

}  // namespace quire
