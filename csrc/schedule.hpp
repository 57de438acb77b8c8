// How a step's attention is divided into pieces that threads take as they become free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "interface.hpp"
#include "layers/adapter.hpp"

namespace quire {

// The pieces for all layers with one window; owns what a Schedule points to.
struct Division {
  // What it was made for.
  int kv_group;
  Window window;
  int64_t sinks;
  int num_heads, num_kv_heads;
  int tile_from;

  std::vector<Item> items;
  std::vector<Group> groups;
  std::vector<int32_t> sources, counters, order;
  int64_t part_rows = 0;
  int64_t cost = 0;  // pairs of a query row and a column, over all KV heads
  bool store_first = false;
};

// Where the states of sequences are, and which tokens they have not seen. The arrays behind pointers
// belong to the caller.
class SequenceStates {
 public:
  void set(int64_t sequences, const int64_t* slots);
  // confirmed [S]: inputs that a slot keeps and its state takes in first. drafts [S]: tokens at the
  // end of a sequence's, whose inputs are kept.
  void set_drafts(const int64_t* confirmed, const int64_t* drafts);

  const int64_t* slots = nullptr;  // [S]
  const int64_t* drafts = nullptr;
  const int64_t* left = nullptr;  // see RecurredRows
  // Of the sequences that have confirmed drafts, as a batch of their own:
  std::vector<int64_t> confirmed_starts{0}, confirmed_slots, confirmed_contexts;

 private:
  int64_t sequences_ = 0;
};

// A step's batch. The arrays behind pointers belong to the caller.
class Plan {
 public:
  Plan(std::vector<int64_t> query_starts, const int64_t* context_lens, int64_t block_size,
       int threads);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void add_kv_group(const Tables& tables);

  AdaptedBatch adapted;  // rows that adapters change
  ColumnBias bias{};
  SequenceStates states;

  // The division for a kind of layer, made when it is first asked for.
  Division& division(const Division& wanted, int tile_rows);

  int64_t num_tokens() const { return query_starts_.back(); }
  int64_t num_sequences() const { return int64_t(query_starts_.size()) - 1; }
  int64_t block_size() const { return block_size_; }
  int threads() const { return threads_; }
  const int64_t* query_starts() const { return query_starts_.data(); }
  const int64_t* context_lens() const { return context_lens_; }
  const Tables& kv_group(int number) const { return kv_groups_.at(number); }

 private:
  void divide(Division& division, int tile_rows) const;
  bool reads_what_others_store(const Tables& tables) const;

  std::vector<int64_t> query_starts_;
  const int64_t* context_lens_;
  int64_t block_size_;
  int threads_;
  std::vector<Tables> kv_groups_;
  std::vector<std::unique_ptr<Division>> divisions_;
};

}  // namespace quire
