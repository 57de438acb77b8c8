// The instruction sets of this kind of processor, and what of them this machine has.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct InstructionSet {
  const char* name;
  std::string refusal;  // why this machine cannot run it; empty: it can
};

// All that can be chosen, best first. Asks the system for what they need.
std::vector<InstructionSet> instruction_sets();

// What is never chosen, but runs if it is named.
std::vector<InstructionSet> for_tests();

}  // namespace quire
