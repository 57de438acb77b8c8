// Texts that a decoder goes on with by itself: each token is the likeliest after those before it.
#pragma once

#include <vector>

#include "layers/decoder.hpp"

namespace quire {

struct Continuation {
  const Decoder& decoder;
  const Packed* embedding;  // [V, hidden]; null: it is not packed,
  const char* table;        // but lies here, in the type of the states
  Packed head;              // [V, hidden]
  int64_t vocabulary;      // tokens that may be chosen, the first ones of the head
  int64_t texts;
  const int64_t* counts;     // [texts] tokens that are to come, at least 1, descending
  const int64_t* lengths;    // [texts] tokens that are given, at least 1, to be computed first,
  const int64_t* positions;  // [texts] where the last of them is,
  const int64_t* given;      // [num_given] and which they are, text after text
  int64_t num_given;
  int64_t block_size;
  std::vector<Tables> kv_groups;    // of all texts; slots are not told
  // Where layers keep states, else null: their slots [texts]; and how many tokens that are given
  // are drafts, the last ones, which leave no trace in a state. So are all that come: each pass but
  // the first computes a text's drafts anew.
  const int64_t* slots;
  const int64_t* drafts;
  std::vector<Rotation> rotations;  // of the tokens that are computed, pass after pass
  int threads;
  int64_t* out;  // [counts[0], texts]: what comes of each pass; -1 where logits are no numbers
};

}  // namespace quire
