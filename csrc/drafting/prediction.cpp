#include "prediction.hpp"

#include <algorithm>

namespace quire::drafting {

namespace {

// Most edits are small, so the place is looked for near the last one, token by token. What was
// moved far is found by the keys of the index.
constexpr size_t behind = 64, ahead = 448, close = 8;  // close: for one token alone
constexpr Rule far{64, most_voters, longest_match, 1, 0};

size_t distance(size_t a, size_t b) { return a < b ? b - a : a - b; }

}  // namespace

Guess Follower::guess(const uint32_t* output, size_t count, int most) {
  follow(output, count);
  Guess guess;
  if (lost_) return guess;
  guess.length = agreed_;
  int trust = seen_ ? 1 : 3;  // who predicts a text knows how it begins
  double right = 1;
  size_t left = predicted_->size() - place_;
  for (int drafts = int(std::min<size_t>({left, size_t(std::max(most, 0)), size_t(most_drafts)}));
       guess.count < drafts; guess.count++) {
    int sure = agreed_ + guess.count + trust;
    guess.tokens[guess.count] = predicted_->tokens()[place_ + guess.count];
    guess.chances[guess.count] = double(sure) / (sure + 1);
    guess.expected += right *= guess.chances[guess.count];
  }
  return guess;
}

void Follower::follow(const uint32_t* output, size_t count) {
  if (count < seen_) *this = Follower(predicted_);  // the output has begun anew
  if (count == seen_) return;
  for (; seen_ < count; seen_++) {
    bool agrees = !lost_ && place_ < predicted_->size() &&
                  predicted_->tokens()[place_] == output[seen_];
    if (agrees) {
      followed_ = ++place_, agreed_++;
    } else {
      lost_ = true;
    }
  }
  if (lost_) find_again(output, count);
}

void Follower::find_again(const uint32_t* output, size_t count) {
  const Text& text = *predicted_;
  const uint32_t* end = output + count;
  int longest = int(std::min<size_t>(count, longest_match));
  size_t from = followed_, last = std::min(text.size(), from + ahead);
  agreed_ = 0;
  for (size_t place = from > behind ? from - behind + 1 : 1; place <= last; place++) {
    int agreed = text.agree(place, end, longest);
    bool near = distance(place, from) <= close;
    if (agreed > 1 || (agreed == 1 && near)) consider(place, agreed, from);
  }
  Match match = find(text, end, count, far);
  for (int v = 0; v < match.count; v++) consider(match.places[v], match.length, from);
  lost_ = agreed_ == 0;
}

// The longest agreement, and of such the nearest place, rather ahead than behind.
void Follower::consider(size_t place, int agreed, size_t from) {
  bool nearer = distance(place, from) < distance(place_, from) ||
                (distance(place, from) == distance(place_, from) && place > place_);
  if (agreed > agreed_ || (agreed == agreed_ && nearer)) place_ = place, agreed_ = agreed;
}

}  // namespace quire::drafting
