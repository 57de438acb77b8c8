#include "schedule.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace quire {

namespace {

constexpr int64_t fewest_columns = 256;  // of a part; merging costs more than it gains below
constexpr int64_t pieces_per_thread = 4;
constexpr int64_t row_overhead = 8;  // reading a column costs as much as so many rows' products

}  // namespace

Plan::Plan(std::vector<int64_t> query_starts, const int64_t* context_lens, int64_t block_size,
           int threads)
    : query_starts_(std::move(query_starts)),
      context_lens_(context_lens),
      block_size_(block_size),
      threads_(threads) {
  if (query_starts_.empty()) throw std::invalid_argument("query_starts is empty");
}

void Plan::add_lane(const Tables& tables) { lanes_.push_back(tables); }

Division& Plan::division(const Division& wanted, int tile_rows) {
  for (auto& made : divisions_) {
    if (made->lane == wanted.lane && made->window == wanted.window &&
        made->sinks == wanted.sinks && made->num_heads == wanted.num_heads &&
        made->num_kv_heads == wanted.num_kv_heads && made->tile_from == wanted.tile_from) {
      return *made;
    }
  }
  divisions_.push_back(std::make_unique<Division>(wanted));
  divide(*divisions_.back(), tile_rows);
  return *divisions_.back();
}

void Plan::divide(Division& division, int tile_rows) const {
  int64_t group = division.num_heads / division.num_kv_heads;
  int64_t per_tile = std::max<int64_t>(1, tile_rows / group);
  int64_t total = 0;
  std::vector<std::pair<int64_t, Item>> costs;
  for (size_t s = 0; s + 1 < query_starts_.size(); s++) {
    int64_t first = query_starts_[s], end = query_starts_[s + 1];
    int64_t position = context_lens_[s] - (end - first);
    bool few = (end - first) * group < division.tile_from;
    for (int64_t token = first; token < end;) {
      int64_t last = few ? end : std::min(end, token + per_tile);
      Columns columns = columns_seen(position + token - first, position + last - first - 1,
                                     division.window, division.sinks);
      int64_t cost = columns.count * ((last - token) * group + row_overhead);
      Item item{int32_t(s), 0, few ? division.num_kv_heads : 1, int32_t(token), int32_t(last),
                0, int32_t(columns.count), -1, 0};
      costs.push_back({cost, item});
      total += cost;
      division.cost += columns.count * (last - token) * division.num_heads;
      token = last;
    }
    division.store_first |= end - first > 1;
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  int64_t limit = total * division.num_kv_heads;
  if (threads_ > 1) limit /= pieces_per_thread * threads_;
  for (auto& [cost, item] : costs) add(division, item, cost, limit);
  for (const Group& one : division.groups) {
    division.counters.insert(division.counters.end(), division.num_kv_heads, one.parts);
  }
  division.store_first = division.store_first || reads_what_others_store(lanes_.at(division.lane));
}

// One item, in as many pieces as make each cost no more than ``limit``: by heads first, then by
// columns. ``cost`` is that of one head.
void Plan::add(Division& division, Item item, int64_t cost, int64_t limit) const {
  cost = std::max<int64_t>(cost, 1);
  item.heads = int32_t(std::min<int64_t>(item.heads, std::max<int64_t>(1, limit / cost)));
  int64_t columns = item.last_column;
  int64_t parts = std::min(cost / std::max<int64_t>(limit, 1) + 1, columns / fewest_columns);
  if (parts >= 2) {
    item.group = int32_t(division.groups.size());
    division.groups.push_back({int32_t(division.num_parts), int32_t(parts)});
    division.part_rows = std::max<int64_t>(
        division.part_rows,
        (item.last_token - item.first_token) * (division.num_heads / division.num_kv_heads));
  }
  for (int64_t p = 0; p < std::max<int64_t>(parts, 1); p++) {
    if (parts >= 2) {
      item.first_column = int32_t(columns * p / parts);
      item.last_column = int32_t(columns * (p + 1) / parts);
      item.part = int32_t(division.num_parts++);
    }
    int32_t heads = item.heads;
    for (item.first_head = 0; item.first_head < division.num_kv_heads; item.first_head += heads) {
      Item piece = item;
      piece.heads = std::min(heads, division.num_kv_heads - item.first_head);
      division.items.push_back(piece);
    }
  }
}

// Whether a sequence's table has a block in which another sequence stores in this step: equal
// prompts of one step share their blocks. All sequences have one new token at most here.
bool Plan::reads_what_others_store(const Tables& tables) const {
  constexpr size_t bits = 4096;
  std::vector<bool> maybe(bits);
  std::vector<std::pair<int64_t, size_t>> stored;  // (block, sequence)
  for (size_t s = 0; s + 1 < query_starts_.size(); s++) {
    for (int64_t token = query_starts_[s]; token < query_starts_[s + 1]; token++) {
      int64_t block = tables.slots[token] / block_size_;
      maybe[block % bits] = true;
      stored.push_back({block, s});
    }
  }
  std::sort(stored.begin(), stored.end());
  for (size_t s = 0; s + 1 < query_starts_.size(); s++) {
    int64_t blocks = (context_lens_[s] + block_size_ - 1) / block_size_ - tables.num_dropped[s];
    const int64_t* row = tables.block_tables + s * tables.width;
    for (int64_t i = 0; i < blocks; i++) {
      if (!maybe[row[i] % bits]) continue;
      auto found = std::lower_bound(stored.begin(), stored.end(), std::make_pair(row[i], size_t(0)));
      for (; found != stored.end() && found->first == row[i]; ++found) {
        if (found->second != s) return true;
      }
    }
  }
  return false;
}

}  // namespace quire
