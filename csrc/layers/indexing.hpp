// An index of keys beside a layer's latents, by which each token chooses those that it attends to
// (DeepSeek-AI, "DeepSeek-V3.2", 2025): plain values and pointers.
#pragma once

#include "interface.hpp"

namespace quire {

struct Index {
  // the batch
  int64_t num_tokens, num_sequences;
  const int64_t* query_starts;  // [S + 1]
  const int64_t* context_lens;  // [S]
  Tables tables;                // of blocks, none of which is dropped
  int64_t block_size;
  // the layer
  int64_t heads, width;
  int64_t most;  // tokens that one attends to
  Norm key_norm;
  int64_t block_rows;  // of keys and scales, from one block's number to the next
  DType dtype, kv_dtype;
  void* keys;     // blocks of N rows
  float* scales;  // likewise; only with int8, of keys that were spread
  // the tensors
  Rotation rotation;     // of the first numbers of queries and keys
  Rows query;            // [T, heads, width]
  Rows key;              // [T, width]
  const float* weights;  // [T, heads]
  // Slots of the chosen ones [T, columns], in the order of their positions, and how many they are.
  int64_t* chosen;
  int64_t* counts;
  int64_t columns;
  int64_t longest;  // context
  char* scratch;    // of index_scratch(..., threads) bytes
};

}  // namespace quire
