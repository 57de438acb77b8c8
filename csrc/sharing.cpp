#include "sharing.hpp"

#include <algorithm>
#include <utility>

namespace quire {

namespace {

// Divides sequences whose tables are in alphabetical order by what they have in common, as a trie
// of their tables would.
class Search {
 public:
  Search(Sharing& sharing, int64_t first_place, std::vector<int64_t> common)
      : sharing_(sharing), first_place_(first_place), common_(std::move(common)) {}

  // The sequences [first, last) of the search, whose columns before ``from`` are shared already.
  void divide(int64_t first, int64_t last, int64_t from) {
    if (last - first < 2) return;
    int64_t common = *std::min_element(&common_[first], &common_[last - 1]);
    if (common > from) {
      sharing_.columns.push_back({first_place_ + first, first_place_ + last, from, common});
      for (int64_t i = first; i < last; i++) {
        sharing_.own_from[sharing_.order[first_place_ + i]] = common;
      }
      from = common;
    }
    while (first < last) {
      int64_t end = first + 1;
      while (end < last && common_[end - 1] > common) end++;
      divide(first, end, from);
      first = end;
    }
  }

 private:
  Sharing& sharing_;
  int64_t first_place_;
  std::vector<int64_t>
      common_;  // leading columns, of whole segments, that the next one has as well
};

}  // namespace

Sharing find_sharing(const Tables& tables, int64_t block_size, const std::vector<int64_t>& known) {
  int32_t sequences = int32_t(known.size());
  Sharing sharing{{}, std::vector<int64_t>(sequences, 0), {}};
  for (int32_t s = 0; s < sequences; s++) sharing.order.push_back(s);
  auto begin = std::stable_partition(sharing.order.begin(), sharing.order.end(),
                                     [&](int32_t s) { return known[s] < segment_columns; });
  auto row = [&](int32_t s) { return tables.block_tables + s * tables.width; };
  auto row_end = [&](int32_t s) { return row(s) + known[s] / block_size; };
  std::stable_sort(begin, sharing.order.end(), [&](int32_t a, int32_t b) {
    return std::lexicographical_compare(row(a), row_end(a), row(b), row_end(b));
  });
  std::vector<int64_t> common;
  for (auto s = begin; s != sharing.order.end() && s + 1 != sharing.order.end(); ++s) {
    int64_t blocks = std::mismatch(row(*s), row_end(*s), row(s[1]), row_end(s[1])).first - row(*s);
    common.push_back(blocks * block_size / segment_columns * segment_columns);
  }
  common.push_back(0);
  Search(sharing, begin - sharing.order.begin(), std::move(common))
      .divide(0, sharing.order.end() - begin, 0);
  return sharing;
}

}  // namespace quire
