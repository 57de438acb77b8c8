// What a text goes on with, as the places say where its last tokens have stood before.
//
// A Store is where they are looked for. It has:
//   chains()                   of places, each of a token that follows others
//   first(i, end)              the latest place with the key of order i of the tokens before end
//   next(i, place)             the one before it in the chain
//   agree(place, end, most)    how many tokens before it are those before end; at most `most`
//   readable(place)            whether it may be told what stands there
//   token(place, drafts)       what stands there; beyond a text's end, the drafts that were made
//   advance(place)             to what follows, if anything does
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "chains.hpp"

namespace quire::drafting {

constexpr int most_drafts = 16;
constexpr int most_voters = 16;
constexpr int longest_match = 64;  // tokens that are compared at each

// How places are turned into drafts.
struct Rule {
  int walked;     // places that are looked at in one chain
  int voters;     // latest places with the longest match that are heard
  int longest;    // matches beyond it are all alike
  double factor;  // drafts for each token of the match
  double least;   // chance that all drafts are right, below which there are no more
};

struct Match {
  int length = 0;
  int count = 0;
  std::array<uint32_t, most_voters> places;  // latest first
};

struct Guess {
  int length = 0;  // of the match
  int count = 0;
  double expected = 0;  // drafts that are right
  std::array<uint32_t, most_drafts> tokens;
  std::array<double, most_drafts> chances;
};

// The latest places before which most of the `known` tokens before `end` stand.
template <class Store>
Match find(const Store& store, const uint32_t* end, size_t known, const Rule& rule) {
  const Chains& chains = store.chains();
  int longest = int(std::min<size_t>(known, std::min(rule.longest, longest_match)));
  for (int i = chains.num_orders() - 1; i >= 0; i--) {
    int order = chains.order(i);
    if (order > longest) continue;
    Match match;
    uint32_t place = store.first(i, end);
    for (int walked = 0; place != Chains::nowhere && walked < rule.walked; walked++) {
      int length = store.agree(place, end, longest);
      bool longer = length > match.length, another = length == match.length;
      bool better = longer || (another && match.count < rule.voters);
      if (length >= order && better && store.readable(place)) {
        if (longer) match.length = length, match.count = 0;
        match.places[match.count++] = place;
        if (match.count == rule.voters && length == longest) break;
      }
      place = store.next(i, place);
    }
    if (match.count) return match;
  }
  return {};
}

// What most of the places go on with, those that were written late counting more.
template <class Store>
uint32_t most_likely(const Store& store, const Match& match, const Guess& guess,
                     const std::array<double, most_voters>& weights, double& agreed, double& all) {
  uint32_t best = 0;
  agreed = all = 0;
  for (int v = 0; v < match.count; v++) {
    all += weights[v];
    uint32_t token = store.token(match.places[v], guess);
    double sum = 0;
    for (int w = 0; w < match.count; w++) {
      if (store.token(match.places[w], guess) == token) sum += weights[w];
    }
    if (sum > agreed) agreed = sum, best = token;
  }
  return best;
}

// The drafts: at each, only those places are heard that had all drafts before it.
template <class Store>
Guess vote(const Store& store, Match match, const Rule& rule, int most) {
  // Of a match of one token. Longer ones are surer: so it was for edited files and for prose.
  constexpr double doubt = 8;
  std::array<double, most_voters> weights;
  for (int v = 0; v < match.count; v++) weights[v] = 1 + 1.0 / (1 + v);
  Guess guess;
  guess.length = match.length;
  int allowed = int(std::min<double>(rule.factor * match.length, most_drafts));
  most = std::min(most, std::max(1, allowed));
  double right = 1;
  while (guess.count < most && match.count) {
    double agreed, all;
    uint32_t token = most_likely(store, match, guess, weights, agreed, all);
    double length = match.length + guess.count;
    double chance = agreed / (all + doubt / (length * std::sqrt(length)));
    right *= chance;
    if (right < rule.least) break;
    int kept = 0;
    for (int v = 0; v < match.count; v++) {
      uint32_t place = match.places[v];
      if (store.token(place, guess) != token || !store.advance(place)) continue;
      weights[kept] = weights[v];
      match.places[kept++] = place;
    }
    match.count = kept;
    guess.tokens[guess.count] = token;
    guess.chances[guess.count++] = chance;
    guess.expected += right;
  }
  return guess;
}

}  // namespace quire::drafting
