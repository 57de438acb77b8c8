// Ranks of one machine: processes that share a piece of memory, in which they add up what each of
// them has, and in which rank 0 tells the others what to do.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "builds.hpp"
#include "ranks/waiting.hpp"

namespace quire {

// A rank is gone, was too late, or somebody has ended it all; what() says which.
struct RankFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SharedRanks;  // what is at the beginning of the memory

class Ranks {
 public:
  static constexpr int most = 64;

  // Bytes that the memory must have, all zero at first.
  static int64_t memory_bytes(int size);

  // The memory is that of an open file, which may then be closed. Rank 0 comes first.
  // ``timeout``: seconds that a rank may let the others wait. Throws std::invalid_argument.
  Ranks(int file, int rank, int size, double timeout, const Build& build);
  ~Ranks();
  Ranks(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // All throw RankFailure, unless they say otherwise, and once one has, nothing else is possible.
  void add_up(void* x, int64_t size, DType dtype, int threads);
  // x of each rank one after the other, to ``out`` of rank 0.
  void gather(const void* x, int64_t bytes, void* out);
  // From rank 0 to all others. Returns when all is written, be it read or not.
  void tell(const char* message, size_t bytes);
  std::optional<std::string> hear(double timeout);  // nothing: it has not come in time
  void answer(const char* message, size_t bytes);  // to rank 0
  std::vector<std::string> answers(double timeout);
  // Everybody's waits end, at once, and with them what they waited in. The first reason counts.
  void abort(const std::string& reason);
  // Nothing, as long as all is well.
  std::optional<std::string> failure() const;
  void check() const;

  // For a team that goes from sum to sum. Each thread counts them, from sums() on; at the end the
  // first tells how many there were. A sum's numbers are those of one thread's calls on all ranks.
  uint32_t sums() const { return sums_; }
  void have_done(uint32_t sums) { sums_ = sums; }
  // Where this rank's part of a sum may be put beforehand, if it fits, instead of where it goes.
  void* place(uint32_t sum) const { return part(sum, rank_); }
  bool fits(int64_t bytes) const;
  // The parts are in their places. False: it has failed, as all threads of the team are told.
  bool add_placed(uint32_t sum, void* out, int64_t size, DType dtype, Team& team);
  // x becomes the sum, piece by piece.
  bool add_up(uint32_t& sum, void* x, int64_t size, DType dtype, Team& team);

 private:
  struct Ring;

  char* part(uint32_t sum, int rank) const;
  Ring ring(int writer) const;
  void send(const Ring& ring, const char* message, size_t bytes);
  // Nothing: no message began in time.
  std::optional<std::string> receive(const Ring& ring, double timeout);
  // Of this rank's part of a sum: it is there. Then wait for the others'.
  bool meet(uint32_t sum, bool first);
  enum class Waited { reached, late, failed };
  Waited wait(Counter& counter, uint32_t wanted, int of, double timeout);
  // The same within the timeout of all; if it is late all has failed.
  bool must(Counter& counter, uint32_t wanted, int of);
  bool must(Waited waited, int of, double timeout);
  bool gone(int rank);

  const Build& build_;
  SharedRanks* shared_;
  int rank_, size_;
  double timeout_;
  uint32_t sums_ = 0;
  std::atomic<bool> failed_{false};  // seen by all of a team after a barrier
  std::mutex looking_;
  std::vector<int> processes_;  // by rank, file descriptors
};

}  // namespace quire
