#include "schedule.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sharing.hpp"

namespace quire {

namespace {

constexpr int64_t pieces_per_thread = 4;
constexpr int64_t row_overhead = 8;  // reading a column costs as much as so many rows' products

// Fills a Division: what sequences share first, then what each sees alone.
class Divider {
 public:
  Divider(const Plan& plan, Division& division, int tile_rows)
      : plan_(plan), division_(division), tables_(plan.kv_group(division.kv_group)),
        group_(division.num_heads / division.num_kv_heads),
        per_tile_(std::max<int64_t>(1, tile_rows / group_)) {}

  void run() {
    Sharing sharing = find_sharing(tables_, plan_.block_size(), shareable());
    put_in_order(sharing.order);
    group_of_.assign(plan_.num_sequences(), -1);
    for (int32_t s : sharing.order) {
      if (sharing.own_from[s]) group_of_[s] = new_group(place_[s], place_[s] + tokens(s));
    }
    for (const SharedColumns& columns : sharing.columns) propose_shared(sharing.order, columns);
    for (int64_t s = 0; s < plan_.num_sequences(); s++) propose_own(s, sharing.own_from[s]);
    std::stable_sort(drafts_.begin(), drafts_.end(),
                     [](const Draft& a, const Draft& b) { return a.cost > b.cost; });
    int64_t limit = total_ * division_.num_kv_heads;
    if (plan_.threads() > 1) limit /= pieces_per_thread * plan_.threads();
    for (const Draft& draft : drafts_) add(draft, std::max<int64_t>(limit, 1));
    deal_items();
    list_sources();
  }

 private:
  struct Draft {
    int64_t cost;  // of one head
    Columns seen;
    Item item;
  };

  // Where one part of a group's rows begins, among the rows of all parts.
  struct Source {
    int32_t column, row;
  };

  int64_t tokens(int64_t s) const { return plan_.query_starts()[s + 1] - plan_.query_starts()[s]; }
  int64_t known(int64_t s) const { return plan_.context_lens()[s] - tokens(s); }
  bool few(int64_t tokens) const { return tokens * group_ < division_.tile_from; }

  // By sequence, how many of its columns others may read with it: those before its new tokens.
  std::vector<int64_t> shareable() const {
    std::vector<int64_t> columns(plan_.num_sequences(), 0);
    if (division_.window.length || tables_.by_column) return columns;
    for (size_t s = 0; s < columns.size(); s++) columns[s] = few(tokens(s)) ? known(s) : 0;
    return columns;
  }

  void put_in_order(const std::vector<int32_t>& sequences) {
    place_.resize(plan_.num_sequences());
    for (int32_t s : sequences) {
      place_[s] = division_.order.size();
      for (int64_t i = 0; i < tokens(s); i++) {
        division_.order.push_back(int32_t(plan_.query_starts()[s] + i));
      }
    }
  }

  int32_t new_group(int64_t first_token, int64_t last_token) {
    division_.groups.push_back({int32_t(first_token), int32_t(last_token), 0, 0});
    sources_.emplace_back();
    return int32_t(division_.groups.size() - 1);
  }

  void propose(int64_t s, int64_t first_token, int64_t last_token, int64_t first_column,
               int64_t last_column, int32_t first_group, int32_t groups) {
    int64_t columns = last_column - first_column, rows = (last_token - first_token) * group_;
    int32_t heads = few(last_token - first_token) ? division_.num_kv_heads : 1;
    int64_t position = known(s) + first_token - place_[s];
    Columns seen = columns_seen(position, position + last_token - first_token - 1,
                                division_.window, division_.sinks);
    drafts_.push_back({std::max<int64_t>(columns * (rows + row_overhead), 1), seen,
                       {int32_t(s), 0, heads, int32_t(first_token), int32_t(last_token),
                        int32_t(first_column), int32_t(last_column), first_group, groups, 0, 0}});
    total_ += drafts_.back().cost;
    division_.cost += columns * rows * division_.num_kv_heads;
  }

  // In tiles of about as many tokens each.
  void propose_shared(const std::vector<int32_t>& order, const SharedColumns& columns) {
    int64_t all = 0;
    for (int64_t i = columns.first_place; i < columns.last_place; i++) all += tokens(order[i]);
    int64_t tiles = (all + per_tile_ - 1) / per_tile_, most = (all + tiles - 1) / tiles;
    for (int64_t first = columns.first_place, last; first < columns.last_place; first = last) {
      int64_t first_token = place_[order[first]], last_token = first_token;
      for (last = first; last < columns.last_place; last++) {
        int64_t end = place_[order[last]] + tokens(order[last]);
        if (last > first && end - first_token > most) break;
        last_token = end;
      }
      propose(order[first], first_token, last_token, columns.first_column, columns.last_column,
              group_of_[order[first]], int32_t(last - first));
    }
  }

  void propose_own(int64_t s, int64_t first_column) {
    int64_t n = tokens(s), step = few(n) ? n : per_tile_;
    for (int64_t first = 0; first < n; first += step) {
      int64_t last = std::min(n, first + step);
      Columns seen = columns_seen(known(s) + first, known(s) + last - 1, division_.window,
                                  division_.sinks);
      propose(s, place_[s] + first, place_[s] + last, first_column, seen.count, group_of_[s],
              group_of_[s] >= 0);
    }
    division_.store_first |= n > 1;
  }

  // In as many pieces as make each cost no more than ``limit``: by heads first, then by columns, in
  // whole segments.
  void add(const Draft& draft, int64_t limit) {
    Item item = draft.item;
    int64_t first = segment_of(draft.seen, item.first_column);
    int64_t segments = segment_of(draft.seen, item.last_column - 1) + 1 - first;
    int64_t pieces = std::min(draft.cost / limit + 1, segments);
    item.heads = int32_t(std::clamp<int64_t>(limit / draft.cost, 1, item.heads));
    if (pieces > 1 && !item.groups) {
      item.first_group = new_group(item.first_token, item.last_token);
      item.groups = 1;
    }
    for (int64_t p = 0; p < pieces; p++) {
      int64_t from = first + segments * p / pieces, to = first + segments * (p + 1) / pieces;
      item.first_column = p ? int32_t(segment_start(draft.seen, from)) : draft.item.first_column;
      item.last_column =
          p + 1 < pieces ? int32_t(segment_start(draft.seen, to)) : draft.item.last_column;
      item.segments = int32_t(to - from);
      if (item.groups) add_parts(item);
      add_heads(item);
    }
  }

  // A part for each of an item's segments.
  void add_parts(Item& item) {
    int64_t rows = (item.last_token - item.first_token) * group_;
    item.part = int32_t(division_.part_rows);
    for (int32_t segment = 0; segment < item.segments; segment++) {
      for (int32_t g = item.first_group; g < item.first_group + item.groups; g++) {
        int64_t before = division_.groups[g].first_token - item.first_token;
        sources_[g].push_back({item.first_column, int32_t(division_.part_rows + before * group_)});
      }
      division_.part_rows += rows;
    }
  }

  void add_heads(Item item) {
    int32_t heads = item.heads;
    for (item.first_head = 0; item.first_head < division_.num_kv_heads; item.first_head += heads) {
      item.heads = std::min(heads, division_.num_kv_heads - item.first_head);
      division_.items.push_back(item);
    }
  }

  // Each thread's run of items has some of the costly ones, and those first.
  void deal_items() {
    const std::vector<Item> in_order = std::move(division_.items);
    division_.items.clear();
    for (size_t thread = 0; thread < size_t(plan_.threads()); thread++) {
      for (size_t i = thread; i < in_order.size(); i += plan_.threads())
        division_.items.push_back(in_order[i]);
    }
  }

  void list_sources() {
    for (size_t g = 0; g < sources_.size(); g++) {
      std::vector<int32_t>& all = division_.sources;
      division_.groups[g].first_source = int32_t(all.size());
      std::stable_sort(sources_[g].begin(), sources_[g].end(),
                       [](const Source& a, const Source& b) { return a.column < b.column; });
      for (const Source& source : sources_[g]) all.push_back(source.row);
      division_.groups[g].last_source = int32_t(all.size());
      division_.counters.insert(division_.counters.end(), division_.num_kv_heads,
                                int32_t(sources_[g].size()));
    }
  }

  const Plan& plan_;
  Division& division_;
  const Tables& tables_;
  int64_t group_, per_tile_;  // query heads of a KV head, tokens of a tile
  std::vector<int64_t> place_;    // by sequence: where its tokens begin in the order
  std::vector<int32_t> group_of_;  // by sequence; -1: it shares nothing
  std::vector<std::vector<Source>> sources_;  // by group
  std::vector<Draft> drafts_;
  int64_t total_ = 0;
};

}  // namespace

void SequenceStates::set(int64_t sequences, const int64_t* where) {
  sequences_ = sequences;
  slots = where;
}

void SequenceStates::set_drafts(const int64_t* confirmed, const int64_t* counts) {
  drafts = counts;
  for (int64_t s = 0; s < sequences_; s++) {
    if (!confirmed[s]) continue;
    confirmed_starts.push_back(confirmed_starts.back() + confirmed[s]);
    confirmed_slots.push_back(slots[s]);
    confirmed_contexts.push_back(INT64_MAX);  // none begins a text
  }
}

Plan::Plan(std::vector<int64_t> query_starts, const int64_t* context_lens, int64_t block_size,
           int threads)
    : query_starts_(std::move(query_starts)),
      context_lens_(context_lens),
      block_size_(block_size),
      threads_(threads) {
  if (query_starts_.empty()) throw std::invalid_argument("query_starts is empty");
}

void Plan::add_kv_group(const Tables& tables) { kv_groups_.push_back(tables); }

Division& Plan::division(const Division& wanted, int tile_rows) {
  for (auto& made : divisions_) {
    if (made->kv_group == wanted.kv_group && made->window.length == wanted.window.length &&
        made->window.chunk == wanted.window.chunk &&
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
  Divider(*this, division, tile_rows).run();
  division.store_first =
      division.store_first || reads_what_others_store(kv_groups_.at(division.kv_group));
}

// Whether a sequence's table has a block in which another sequence stores in this step: equal
// prompts of one step share their blocks. All sequences have one new token at most here.
bool Plan::reads_what_others_store(const Tables& tables) const {
  constexpr size_t bits = 4096;
  std::vector<bool> maybe(bits);
  std::vector<std::pair<int64_t, size_t>> stored;  // (block, sequence)
  if (tables.by_column) return true;
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
      auto found =
          std::lower_bound(stored.begin(), stored.end(), std::make_pair(row[i], size_t(0)));
      for (; found != stored.end() && found->first == row[i]; ++found) {
        if (found->second != s) return true;
      }
    }
  }
  return false;
}

}  // namespace quire
