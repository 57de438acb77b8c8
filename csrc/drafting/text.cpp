#include "text.hpp"

#include <algorithm>
#include <utility>

namespace quire::drafting {

namespace {

int bits_for(size_t tokens) {
  int bits = 6;
  while (size_t(1) << bits < tokens) bits++;
  return bits;
}

}  // namespace

Text::Text(std::vector<int> orders, size_t room)
    : chains_(std::move(orders), bits_for(room), room) {
  tokens_.reserve(room);
}

void Text::extend(const uint32_t* tokens, size_t count) {
  make_room(count);
  for (size_t place = size(); place < count; place++) {
    tokens_.push_back(tokens[place]);
    add(place);
  }
}

void Text::become(const uint32_t* tokens, size_t count) {
  size_t shared = std::min(size(), count);
  cut(std::mismatch(tokens, tokens + shared, tokens_.begin()).first - tokens);
  extend(tokens, count);
}

Guess Text::guess(const Rule& rule, int most) const {
  const uint32_t* end = tokens() + size();
  return vote(*this, find(*this, end, size(), rule), rule, most);
}

int Text::agree(uint32_t place, const uint32_t* end, int most) const {
  const uint32_t* here = tokens() + place;
  int limit = int(std::min<size_t>(place, most)), length = 0;
  while (length < limit && here[-1 - length] == end[-1 - length]) length++;
  return length;
}

// What was added last is taken back first, so that each chain begins with it.
void Text::cut(size_t size) {
  while (tokens_.size() > size) {
    size_t place = tokens_.size() - 1;
    for (int i = 0; i < chains_.num_orders(); i++) {
      int order = chains_.order(i);
      if (size_t(order) <= place) chains_.remove(i, key_of(tokens() + place, order, 0), place);
    }
    tokens_.pop_back();
  }
}

void Text::make_room(size_t tokens) {
  if (tokens <= std::min(chains_.num_heads(), chains_.num_slots())) return;
  std::vector<int> orders;
  for (int i = 0; i < chains_.num_orders(); i++) orders.push_back(chains_.order(i));
  size_t room = std::max(tokens, 2 * chains_.num_slots());
  chains_ = Chains(std::move(orders), bits_for(room), room);
  for (size_t place = 0; place < size(); place++) add(place);
}

void Text::add(size_t place) {
  for (int i = 0; i < chains_.num_orders(); i++) {
    int order = chains_.order(i);
    if (size_t(order) > place) break;
    chains_.add(i, key_of(tokens() + place, order, 0), place, uint32_t(place));
  }
}

}  // namespace quire::drafting
