// Layers with a state of fixed size that every token rewrites: what kernels/recurrence.py says.
#pragma once

#include "interface.hpp"

namespace quire {

// Over a token and the kernel - 1 before it, channel by channel.
struct Convolution {
  const float* weight;  // [kernel, channels], of the token itself last
  const float* bias;    // [channels]; null: none
  int64_t channels;
  int64_t kernel;
};

// How outputs are normalised and gated.
struct OutputGate {
  const float* norm;  // [heads value_dim]; null: only the gate
  int64_t width;      // of what is normalised together
  float eps, factor;
  bool first, sigmoid;
};

// What is the same in every step. Without heads it is a convolution between two gates, and x holds
// before, after and values, [channels] each. Otherwise x holds queries, keys and values, which go
// through the convolution, then gates, strengths (with ``delta``) and steps.
struct Recurrence {
  Convolution convolution;
  int64_t heads, key_heads, key_dim, value_dim;
  bool delta, by_channel;
  bool tiled;  // heads with one key are not neighbours, but as many apart as there are keys
  const float* decay;  // [heads]
  const float* bias;   // [heads]; by_channel: [heads, key_dim]
  const float* skip;   // [heads]; null: none
  float factor, least, most;  // of steps
  OutputGate gate;

  int64_t outputs() const { return heads ? heads * value_dim : convolution.channels; }
};

struct Recur {
  Recurrence layer;
  // the states, by slot
  float* rows;   // [kernel - 1, channels]
  float* state;  // [heads, key_dim, value_dim]
  // the batch
  int64_t sequences;
  const int64_t* query_starts;  // [S + 1]
  const int64_t* context_lens;  // [S]
  const int64_t* slots;         // [S]
  // the tensors
  const void* x;  // [T, columns]
  int64_t x_stride;
  void* out;  // [T, outputs], contiguous
  DType dtype;
  // memory
  char* scratch;  // recur_scratch
};

// Tokens that are taken from one end of the layer to the other at a time, so that what is between
// stays small.
constexpr int64_t recurred_at_once = 256;

}  // namespace quire
