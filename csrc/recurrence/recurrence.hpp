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
  int64_t decays() const { return heads * (by_channel ? key_dim : 1); }
  int64_t columns() const {
    if (!heads) return 3 * convolution.channels;
    return convolution.channels + outputs() + (delta ? heads : 0) + decays();
  }
};

// Tokens of sequences, by row: which ones, and where their states are.
struct RecurredRows {
  int64_t sequences;
  const int64_t* query_starts;  // [S + 1]
  const int64_t* context_lens;  // [S]
  const int64_t* slots;         // [S]
  // [T] slots that are left what a sequence's own one has after that token, -1: none; null: no
  // token leaves anything.
  const int64_t* left = nullptr;

  int64_t left_after(int64_t row) const { return left ? left[row] : -1; }
};

// Of a layer, what each slot has of one kind.
struct InSlots {
  float* first;
  int64_t step;  // floats from one slot's number to the next one's

  float* of(int64_t slot) const { return first + slot * step; }
};

// The states of a layer, by slot.
struct StateMemory {
  InSlots rows;    // [kernel - 1, channels]
  InSlots state;   // [heads, key_dim, value_dim]
  // [most drafts, columns]: what came in for drafts, which the state has not seen. Without a step:
  // nobody wants it.
  InSlots inputs;
};

struct Recur {
  Recurrence layer;
  StateMemory memory;
  // the batch
  RecurredRows batch;
  RecurredRows confirmed;  // drafts of the step before that turned out right: come first
  const int64_t* drafts;   // [S], the last tokens, which leave no trace in the state; null: none
  // the tensors
  const void* x;  // [T, columns]
  int64_t x_stride;
  void* out;  // [T, outputs], contiguous; null: nobody wants it
  DType dtype;
  // memory
  char* scratch;  // recur_scratch
};

// Tokens that are taken from one end of the layer to the other at a time, so that what is between
// stays small.
constexpr int64_t recurred_at_once = 256;

}  // namespace quire
