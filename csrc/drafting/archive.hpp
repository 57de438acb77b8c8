// Texts that were written before, in a fixed amount of memory: what was written first goes first.
//
// A text lies in pages, as a sequence's keys and values lie in blocks, so that many can grow at
// once. Pages are numbered without end; each overwrites the one that was written longest ago, and
// what still points to that one sees another number. Each bears the name of those who may read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "chains.hpp"
#include "guess.hpp"

namespace quire::drafting {

using Name = std::array<uint8_t, 16>;

class Archive {
 public:
  // bytes: of all memory. most_texts: those begun last are read. first_page: tests begin late.
  Archive(std::vector<int> orders, size_t bytes, uint64_t most_texts, uint32_t first_page);

  size_t bytes() const;
  uint64_t begin_text() { return next_text_++; }

 private:
  friend class Volume;
  static constexpr uint32_t page_size = 64;
  static constexpr uint32_t no_page = 0;
  static constexpr uint32_t last_page = UINT32_MAX / page_size - 1;

  struct Page {
    Name name;
    uint64_t text;
    uint32_t number, before, after, filled;  // before, after: of the same text
  };

  size_t place_of(uint32_t number) const { return number % pages_.size(); }
  size_t slot_of(uint32_t place) const {
    return place_of(place / page_size) * page_size + place % page_size;
  }
  bool overwritten(uint32_t number) const { return next_page_ - number > pages_.size(); }
  // The page of this number, if it is still there and of this text.
  const Page* page(uint32_t number, uint64_t text) const {
    const Page& found = pages_[place_of(number)];
    return number != no_page && found.number == number && found.text == text ? &found : nullptr;
  }
  Page& new_page(const Name& name, uint64_t text, uint32_t before);

  uint64_t most_texts_, next_text_ = 0;
  uint32_t next_page_;
  ZeroedVector<Page> pages_;
  ZeroedVector<uint32_t> tokens_;
  Chains chains_;
};

// One text, as it is written into an archive and goes on as others there do.
class Volume {
 public:
  // first: the index of the token that it begins with.
  Volume(std::shared_ptr<Archive> archive, const Name& name, size_t first);

  // `tokens` is the whole text, grown.
  void write(const uint32_t* tokens, size_t count);
  Guess guess(const uint32_t* tokens, size_t count, const Rule& rule, int most) const;
  size_t written() const { return written_; }

  // A Store (guess.hpp): places are numbers of pages, times their size, and tokens in them.
  const Chains& chains() const { return archive_->chains_; }
  uint32_t first(int i, const uint32_t* end) const {
    return chains().first(i, key_of(end, chains().order(i), seed_));
  }
  uint32_t next(int i, uint32_t place) const;
  int agree(uint32_t place, const uint32_t* end, int most) const;
  bool readable(uint32_t place) const;
  uint32_t token(uint32_t place, const Guess&) const {
    return archive_->tokens_[archive_->slot_of(place)];
  }
  bool advance(uint32_t& place) const;

 private:
  std::shared_ptr<Archive> archive_;
  Name name_;
  uint64_t seed_, text_;
  uint32_t page_ = Archive::no_page;  // that is being filled
  size_t first_, written_;
};

}  // namespace quire::drafting
