// Where an output stands in a text that it was predicted to be, mostly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "guess.hpp"
#include "text.hpp"

namespace quire::drafting {

class Follower {
 public:
  explicit Follower(std::shared_ptr<const Text> predicted) : predicted_(std::move(predicted)) {}

  // What the output goes on with if it goes on as predicted; nothing while it is elsewhere.
  Guess guess(const uint32_t* output, size_t count, int most);

 private:
  void follow(const uint32_t* output, size_t count);
  void find_again(const uint32_t* output, size_t count);
  void consider(size_t place, int agreed, size_t from);

  std::shared_ptr<const Text> predicted_;
  size_t seen_ = 0;   // tokens of the output
  size_t place_ = 0;  // of what comes next in the prediction
  size_t followed_ = 0;  // the last place that was one, and not only found
  int agreed_ = 0;    // tokens before it, in a row
  bool lost_ = false;
};

}  // namespace quire::drafting
