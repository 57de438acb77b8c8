#include "sharing.hpp"

#include <algorithm>
#include <utility>

namespace quire {

namespace {

// Divides sequences whose tables are in alphabetical order by what they have in common, as a trie
// of their tables would.
class Search {
 public:
  Search(Sharing& sharing, int64_t first_place, std::vector<int64_t> common, int64_t block_size,
         int64_t fewest)
      : sharing_(sharing), first_place_(first_place), common_(std::move(common)),
        block_size_(block_size), fewest_(fewest) {}

  // The sequences [first, last) of the search, whose blocks before ``from`` are shared already.
  void divide(int64_t first, int64_t last, int64_t from) {
    if (last - first < 2) return;
    int64_t common = *std::min_element(&common_[first], &common_[last - 1]);
    if ((common - from) * block_size_ >= fewest_) {
      sharing_.columns.push_back({first_place_ + first, first_place_ + last, from * block_size_,
                                  common * block_size_});
      for (int64_t i = first; i < last; i++) {
        sharing_.own_from[sharing_.order[first_place_ + i]] = common * block_size_;
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
  std::vector<int64_t> common_;  // leading blocks of each sequence that are also the next one's
  int64_t block_size_, fewest_;
};

}  // namespace

Sharing find_sharing(const Tables& tables, int64_t block_size, const std::vector<int64_t>& known,
                     int64_t fewest) {
  int32_t sequences = int32_t(known.size());
  Sharing sharing{{}, std::vector<int64_t>(sequences, 0), {}};
  for (int32_t s = 0; s < sequences; s++) sharing.order.push_back(s);
  auto begin = std::stable_partition(sharing.order.begin(), sharing.order.end(),
                                     [&](int32_t s) { return known[s] < fewest; });
  auto row = [&](int32_t s) { return tables.block_tables + s * tables.width; };
  auto row_end = [&](int32_t s) { return row(s) + known[s] / block_size; };
  std::stable_sort(begin, sharing.order.end(), [&](int32_t a, int32_t b) {
    return std::lexicographical_compare(row(a), row_end(a), row(b), row_end(b));
  });
  std::vector<int64_t> common;
  for (auto s = begin; s != sharing.order.end() && s + 1 != sharing.order.end(); ++s) {
    common.push_back(std::mismatch(row(*s), row_end(*s), row(s[1]), row_end(s[1])).first - row(*s));
  }
  common.push_back(0);
  Search(sharing, begin - sharing.order.begin(), std::move(common), block_size, fewest)
      .divide(0, sharing.order.end() - begin, 0);
  return sharing;
}

}  // namespace quire
