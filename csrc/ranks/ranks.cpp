#include "ranks/ranks.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "ranks/together.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#endif

namespace quire {
namespace {

constexpr uint64_t known_by = 0x316b6e6172657175;  // the layout below
constexpr int64_t piece_bytes = 1 << 20;  // of what is added up: so much of each rank at a time
constexpr int64_t slot_bytes = 1 << 16;   // of messages
constexpr int num_slots = 8;
constexpr double look_every = 0.1;        // seconds, for ranks that are gone
constexpr int64_t elements_dealt = 64;    // whole cache lines
constexpr int64_t add_up_from = 1 << 15;  // elements, by all threads

struct Slot {
  uint64_t total;  // bytes of the message of which this is a piece
  char data[slot_bytes - sizeof(uint64_t)];
};

// What belongs to one rank.
struct Member {
  alignas(128) std::atomic<int32_t> process;  // 0: it has not come yet; -1: it has left
  Counter arrived;  // in so many sums its part was there
  Counter sent;     // pieces, of rank 0 to all, of others to rank 0
  Counter heard;    // of rank 0's
  Counter taken;    // of its own, by rank 0
  alignas(4096) Slot slots[num_slots];
  alignas(4096) char parts[2][piece_bytes];
};

enum : uint32_t { well, ending, ended };

}  // namespace

struct SharedRanks {
  std::atomic<uint64_t> known;
  int32_t size;
  alignas(128) std::atomic<uint32_t> state;
  char reason[500];
  Member members[];
};

// A writer's pieces, and how many of them each reader has read.
struct Ranks::Ring {
  int writer;
  Counter& written;
  Slot* slots;
  std::vector<std::pair<int, Counter*>> readers;
};

int64_t Ranks::memory_bytes(int size) { return sizeof(SharedRanks) + size * sizeof(Member); }

Ranks::Ranks(int file, int rank, int size, double timeout, const Build& build)
    : build_(build), rank_(rank), size_(size), timeout_(timeout), processes_(size, -1) {
  if (size < 1 || size > most) throw std::invalid_argument("ranks are from 1 to 64");
  if (rank < 0 || rank >= size) throw std::invalid_argument("no such rank");
  struct stat found;
  if (fstat(file, &found) || found.st_size != memory_bytes(size))
    throw std::invalid_argument("the memory is not that of so many ranks");
  void* memory = mmap(nullptr, memory_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = static_cast<SharedRanks*>(memory);
  if (rank == 0) {
    shared_->size = size;
    shared_->known.store(known_by);
  }
  int32_t nobody = 0;
  bool ours = shared_->known.load() == known_by && shared_->size == size;
  if (!ours || !shared_->members[rank].process.compare_exchange_strong(nobody, getpid())) {
    munmap(shared_, memory_bytes(size));
    throw std::invalid_argument(ours ? "this rank is there already"
                                     : "the memory is not that of such ranks");
  }
  // By who writes it, so that it lies beside that processor.
  std::memset(shared_->members[rank].parts, 0, sizeof shared_->members[rank].parts);
}

Ranks::~Ranks() {
  shared_->members[rank_].process.store(-1);
  munmap(shared_, memory_bytes(size_));
  for (int process : processes_) {
    if (process >= 0) close(process);
  }
}

void Ranks::abort(const std::string& reason) {
  uint32_t nobody = well;
  if (!shared_->state.compare_exchange_strong(nobody, ending)) return;
  size_t length = std::min(reason.size(), sizeof shared_->reason - 1);
  std::memcpy(shared_->reason, reason.data(), length);
  shared_->state.store(ended);
  for (int i = 0; i < size_; i++) {
    Member& m = shared_->members[i];
    for (Counter* counter : {&m.arrived, &m.sent, &m.heard, &m.taken}) counter->wake();
  }
}

std::optional<std::string> Ranks::failure() const {
  uint32_t state = shared_->state.load();
  if (state == well) return {};
  // Whoever ends it all may end in the middle of that.
  for (Patience patience; state == ending && patience.stay_awake();) state = shared_->state.load();
  return state == ended ? shared_->reason : "a rank has failed";
}

void Ranks::check() const {
  if (auto reason = failure()) throw RankFailure(*reason);
}

// Whether a rank's process has ended. Its parent may not know that yet, so signals cannot tell.
bool Ranks::gone(int rank) {
  int32_t process = shared_->members[rank].process.load();
  if (process <= 0) return process < 0;
#if defined(__linux__) && defined(SYS_pidfd_open)
  std::lock_guard<std::mutex> lock(looking_);
  int& file = processes_[rank];
  if (file < 0) file = int(syscall(SYS_pidfd_open, process, 0));
  if (file < 0) return errno == ESRCH;
  pollfd ends{file, POLLIN, 0};
  return poll(&ends, 1, 0) == 1;
#else
  return kill(process, 0) && errno == ESRCH;
#endif
}

Ranks::Waited Ranks::wait(Counter& counter, uint32_t wanted, int of, double timeout) {
  if (counter.reached(wanted)) return Waited::reached;
  double until = seconds_now() + timeout;
  for (Patience patience;;) {
    if (counter.reached(wanted)) return Waited::reached;
    if (shared_->state.load(std::memory_order_relaxed) != well) return Waited::failed;
    if (patience.stay_awake()) continue;
    uint32_t seen = counter.now();
    bool over = gone(of);
    // The last thing that it did counts.
    if (counter.reached(wanted)) return Waited::reached;
    if (over) {
      abort("rank " + std::to_string(of) + " is gone");
      return Waited::failed;
    }
    double left = until - seconds_now();
    if (left <= 0) return Waited::late;
    counter.sleep(seen, std::min(left, look_every));
  }
}

bool Ranks::must(Waited waited, int of, double timeout) {
  if (waited == Waited::late) {
    std::string seconds = std::to_string(timeout);
    seconds.erase(seconds.find('.') + 2);
    abort("rank " + std::to_string(of) + " did not answer within " + seconds + " seconds");
  }
  return waited == Waited::reached;
}

bool Ranks::must(Counter& counter, uint32_t wanted, int of) {
  return must(wait(counter, wanted, of, timeout_), of, timeout_);
}

// Sums. There are two places for each rank's parts, used in turn: who is two sums further than
// another has seen it arrive in the sum between, and so has it read what is written over.

char* Ranks::part(uint32_t sum, int rank) const { return shared_->members[rank].parts[sum & 1]; }

bool Ranks::fits(int64_t bytes) const { return bytes <= piece_bytes; }

bool Ranks::meet(uint32_t sum, bool first) {
  if (first) shared_->members[rank_].arrived.raise_to(sum + 1);
  for (int i = 0; i < size_; i++) {
    if (i != rank_ && !must(shared_->members[i].arrived, sum + 1, i)) {
      failed_ = true;
      return false;
    }
  }
  return true;
}

bool Ranks::add_placed(uint32_t sum, void* out, int64_t size, DType dtype, Team& team) {
  if (meet(sum, team.index == 0)) {
    const void* parts[most];
    for (int i = 0; i < size_; i++) parts[i] = part(sum, i);
    Sum all{parts, size_, out, size, dtype};
    int64_t units = (size + elements_dealt - 1) / elements_dealt;
    int64_t first = units * team.index / team.size * elements_dealt;
    int64_t last = units * (team.index + 1) / team.size * elements_dealt;
    build_.add_up(all, first, std::min(last, size));
  }
  // From here on to the next sum there is another such wait: so nobody fails before all have looked.
  team.wait();
  return !failed_;
}

bool Ranks::add_up(uint32_t& sum, void* x, int64_t size, DType dtype, Team& team) {
  int64_t bytes = size * size_of(dtype);
  auto* from = static_cast<char*>(x);
  for (int64_t at = 0; at < bytes; at += piece_bytes, sum++) {
    int64_t count = std::min(piece_bytes, bytes - at);
    team.deal(count, [&](int64_t first, int64_t last) {
      std::memcpy(part(sum, rank_) + first, from + at + first, last - first);
    });
    if (!add_placed(sum, from + at, count / size_of(dtype), dtype, team)) return false;
  }
  return true;
}

void Ranks::add_up(void* x, int64_t size, DType dtype, int threads) {
  check();
  together(size < add_up_from ? 1 : threads, [&](Team& team) {
    uint32_t sum = sums_;
    add_up(sum, x, size, dtype, team);
    team.wait();
    if (team.index == 0) sums_ = sum;
  });
  check();
}

void Ranks::gather(const void* x, int64_t bytes, void* out) {
  check();
  auto* from = static_cast<const char*>(x);
  for (int64_t at = 0; at < bytes; at += piece_bytes, sums_++) {
    int64_t count = std::min(piece_bytes, bytes - at);
    std::memcpy(part(sums_, rank_), from + at, count);
    if (!meet(sums_, true)) check();
    for (int i = 0; rank_ == 0 && i < size_; i++) {
      std::memcpy(static_cast<char*>(out) + i * bytes + at, part(sums_, i), count);
    }
  }
}

// Messages.

Ranks::Ring Ranks::ring(int writer) const {
  Member& m = shared_->members[writer];
  Ring ring{writer, m.sent, m.slots, {}};
  if (writer) {
    ring.readers = {{0, &m.taken}};
  } else {
    for (int i = 1; i < size_; i++) ring.readers.emplace_back(i, &shared_->members[i].heard);
  }
  return ring;
}

void Ranks::send(const Ring& ring, const char* message, size_t bytes) {
  check();
  size_t at = 0;
  do {
    uint32_t number = ring.written.now();
    for (auto [reader, read] : ring.readers) {
      if (!must(*read, number + 1 - num_slots, reader)) check();
    }
    Slot& slot = ring.slots[number % num_slots];
    size_t count = std::min(bytes - at, sizeof slot.data);
    slot.total = bytes;
    std::memcpy(slot.data, message + at, count);
    ring.written.raise_to(number + 1);
    at += count;
  } while (at < bytes);
}

std::optional<std::string> Ranks::receive(const Ring& ring, double timeout) {
  check();
  auto mine = [&](auto& reader) { return reader.first == rank_; };
  Counter& read = *std::find_if(ring.readers.begin(), ring.readers.end(), mine)->second;
  std::string message;
  size_t total = 0;
  do {
    uint32_t number = read.now();
    bool begun = total > 0;
    Waited waited = wait(ring.written, number + 1, ring.writer, begun ? timeout_ : timeout);
    if (waited == Waited::late && !begun) return {};
    if (!must(waited, ring.writer, timeout_)) check();
    const Slot& slot = ring.slots[number % num_slots];
    total = slot.total;
    if (!begun) message.reserve(total);
    message.append(slot.data, std::min(total - message.size(), sizeof slot.data));
    read.raise_to(number + 1);
  } while (message.size() < total);
  return message;
}

void Ranks::tell(const char* message, size_t bytes) { send(ring(0), message, bytes); }

std::optional<std::string> Ranks::hear(double timeout) { return receive(ring(0), timeout); }

void Ranks::answer(const char* message, size_t bytes) { send(ring(rank_), message, bytes); }

std::vector<std::string> Ranks::answers(double timeout) {
  std::vector<std::string> all;
  double until = seconds_now() + timeout;
  for (int i = 1; i < size_; i++) {
    auto message = receive(ring(i), std::max(until - seconds_now(), 0.0));
    if (!message) must(Waited::late, i, timeout), check();
    all.push_back(std::move(*message));
  }
  return all;
}

}  // namespace quire
