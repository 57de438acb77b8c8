// One text that grows, and where in it anything has stood before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chains.hpp"
#include "guess.hpp"

namespace quire::drafting {

class Text {
 public:
  // orders: lengths of the keys, ascending. room: tokens that are expected.
  Text(std::vector<int> orders, size_t room);

  // `tokens` is this text, grown.
  void extend(const uint32_t* tokens, size_t count);
  // `tokens` may be another one: what both begin with is kept.
  void become(const uint32_t* tokens, size_t count);

  Guess guess(const Rule& rule, int most) const;

  size_t size() const { return tokens_.size(); }
  const uint32_t* tokens() const { return tokens_.data(); }
  size_t bytes() const { return sizeof(*this) + bytes_of(tokens_) + chains_.bytes(); }

  // A Store (guess.hpp): places are indices of tokens.
  const Chains& chains() const { return chains_; }
  uint32_t first(int i, const uint32_t* end) const {
    return chains_.first(i, key_of(end, chains_.order(i), 0));
  }
  uint32_t next(int i, uint32_t place) const { return chains_.next(i, place); }
  int agree(uint32_t place, const uint32_t* end, int most) const;
  bool readable(uint32_t) const { return true; }
  uint32_t token(uint32_t place, const Guess& guess) const {
    return place < size() ? tokens_[place] : guess.tokens[place - size()];
  }
  bool advance(uint32_t& place) const { return ++place; }

 private:
  void cut(size_t size);
  void make_room(size_t tokens);
  void add(size_t place);

  std::vector<uint32_t> tokens_;
  Chains chains_;
};

}  // namespace quire::drafting
