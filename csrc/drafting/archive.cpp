#include "archive.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire::drafting {

namespace {

constexpr int least_bits = 6;

// So many heads that they take at most a third of the memory.
int head_bits(size_t num_orders, size_t bytes) {
  int bits = least_bits;
  while (num_orders * sizeof(uint32_t) << (bits + 1) <= bytes / 3) bits++;
  return bits;
}

// Pages for what is left. One is not enough: the page before is read while the next is written.
size_t num_pages(size_t num_orders, size_t bytes, size_t page_bytes) {
  size_t heads = num_orders * sizeof(uint32_t) << head_bits(num_orders, bytes);
  return std::max<size_t>(2, bytes > heads ? (bytes - heads) / page_bytes : 0);
}

}  // namespace

Archive::Archive(std::vector<int> orders, size_t bytes, uint64_t most_texts, uint32_t first_page)
    : most_texts_(most_texts),
      next_page_(std::clamp<uint32_t>(first_page, 1, last_page)),
      pages_(num_pages(orders.size(), bytes - std::min(bytes, sizeof(Archive)),
                       sizeof(Page) + page_size * sizeof(uint32_t) * (1 + orders.size()))),
      tokens_(pages_.size() * page_size),
      chains_(orders, head_bits(orders.size(), bytes - std::min(bytes, sizeof(Archive))),
              tokens_.size()) {
  chains_.touch();
}

size_t Archive::bytes() const {
  return sizeof(*this) + bytes_of(pages_) + bytes_of(tokens_) + chains_.bytes();
}

Archive::Page& Archive::new_page(const Name& name, uint64_t text, uint32_t before) {
  if (next_page_ == last_page) next_page_ = 1;  // once in four thousand million tokens
  uint32_t number = next_page_++;
  if (before != no_page) pages_[place_of(before)].after = number;
  return pages_[place_of(number)] = Page{name, text, number, before, no_page, 0};
}

Volume::Volume(std::shared_ptr<Archive> archive, const Name& name, size_t first)
    : archive_(std::move(archive)), name_(name), text_(archive_->begin_text()), first_(first),
      written_(first) {
  std::memcpy(&seed_, name_.data(), sizeof seed_);
}

void Volume::write(const uint32_t* tokens, size_t count) {
  Archive& archive = *archive_;
  for (; written_ < count; written_++) {
    const Archive::Page* known = archive.page(page_, text_);
    bool full = known && known->filled == Archive::page_size;
    Archive::Page& page = known && !full ? archive.pages_[archive.place_of(page_)]
                                         : archive.new_page(name_, text_, full ? page_ : 0);
    page_ = page.number;
    uint32_t place = page.number * Archive::page_size + page.filled++;
    size_t slot = archive.slot_of(place);
    archive.tokens_[slot] = tokens[written_];
    for (int i = 0; i < chains().num_orders(); i++) {
      int order = chains().order(i);
      if (size_t(order) > written_ - first_) break;
      archive.chains_.add(i, key_of(tokens + written_, order, seed_), slot, place);
    }
  }
}

Guess Volume::guess(const uint32_t* tokens, size_t count, const Rule& rule, int most) const {
  if (most <= 0) return {};
  return vote(*this, find(*this, tokens + count, count, rule), rule, most);
}

// A chain ends with what has been overwritten: the links there are those of another place.
uint32_t Volume::next(int i, uint32_t place) const {
  if (archive_->overwritten(place / Archive::page_size)) return Chains::nowhere;
  return chains().next(i, archive_->slot_of(place));
}

int Volume::agree(uint32_t place, const uint32_t* end, int most) const {
  const Archive& archive = *archive_;
  uint32_t number = place / Archive::page_size, filled = place % Archive::page_size;
  if (archive.overwritten(number)) return 0;
  for (int length = 0;;) {
    const uint32_t* here = &archive.tokens_[archive.place_of(number) * Archive::page_size];
    for (; filled > 0; filled--) {
      if (length == most || here[filled - 1] != end[-1 - length]) return length;
      length++;
    }
    const Archive::Page& page = archive.pages_[archive.place_of(number)];
    number = page.before;
    if (!archive.page(number, page.text)) return length;
    filled = Archive::page_size;
  }
}

bool Volume::readable(uint32_t place) const {
  const Archive::Page& page = archive_->pages_[archive_->place_of(place / Archive::page_size)];
  return page.name == name_ && page.text != text_ &&
         page.text + archive_->most_texts_ >= archive_->next_text_;
}

bool Volume::advance(uint32_t& place) const {
  uint32_t number = place / Archive::page_size;
  const Archive::Page& page = archive_->pages_[archive_->place_of(number)];
  if (++place % Archive::page_size) return place % Archive::page_size < page.filled;
  place = page.after * Archive::page_size;
  return page.after != Archive::no_page;  // if there is one, it is there for longer
}

}  // namespace quire::drafting
