#include "layers/experts.hpp"

#include <algorithm>
#include <numeric>

#include "layers/decoder.hpp"

namespace quire {
namespace {

// Rows that are between at once: enough for every expert to have many.
constexpr int64_t rows_at_once = 512;
constexpr int64_t route_from = 64;  // rows, by all threads

// That which needs most when rows are prepared: zeros of groups are summed over.
const Packed& standing_for(const std::vector<Packed>& weights) {
  for (const Packed& weight : weights) {
    if (weight.needs_sums()) return weight;
  }
  return weights.front();
}

}  // namespace

Mixture::Mixture(const Build& build, const Experts& experts, DType dtype, int64_t rows,
                 int threads)
    : experts(experts), dtype(dtype), most(std::min(rows, rows_at_once)), threads(threads) {
  place(nullptr);
  auto needs = [&](int64_t scratch) { return (scratch + 63) / 64 * 64; };
  int64_t scratch = needs(build.product_scratch(
      product(experts.router, nullptr, nullptr, most, DType::float32), threads));
  Grouped up = grouped(experts.up, nullptr, nullptr, most, 1, dtype);
  Grouped down = grouped(experts.down, nullptr, nullptr, most, 1, DType::float32);
  scratch = std::max({scratch, needs(build.grouped_scratch(up, threads)),
                      needs(build.grouped_scratch(down, threads))});
  for (const std::optional<Packed>& weight : {experts.shared_up, experts.shared_down}) {
    if (!weight) continue;
    Product p = product(*weight, nullptr, nullptr, most, dtype);
    scratch = std::max(scratch, needs(build.product_scratch(p, threads)));
  }
  bytes_ += scratch;
}

void Mixture::place(char* memory) {
  char* next = memory;
  auto take = [&](auto*& pointer, int64_t count, int64_t size = 0) {
    pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(next);
    next += (count * (size ? size : int64_t(sizeof *pointer)) + 63) / 64 * 64;
  };
  int64_t all = most * experts.routing.chosen, size = size_of(dtype);
  int64_t wide_size = all * experts.up.front().outputs;
  int64_t narrow_size = all * experts.down.front().inputs;
  if (experts.shared_up) {
    wide_size = std::max(wide_size, most * experts.shared_up->outputs);
    narrow_size = std::max(narrow_size, most * experts.shared_down->inputs);
  }
  take(logits, most * experts.router.outputs);
  take(expert, all);
  take(weight, all);
  take(sources, all);
  take(places, all);
  take(starts, experts.size() + 1);
  take(shares, experts.size());
  take(num_shares, 1);
  take(wide, wide_size, size);
  take(narrow, narrow_size, size);
  take(given, experts.routing.before ? all * width() : 0, size);
  take(parts, all * width());
  take(shared, experts.shared_up ? most * width() : 0, size);
  scratch = next;
  if (!memory) bytes_ = next - memory;
}

Product Mixture::product(const Packed& weight, const void* from, void* to, int64_t rows,
                         DType out_dtype) const {
  return {weight, from, weight.inputs, to, rows, dtype, out_dtype, scratch};
}

Grouped Mixture::grouped(const std::vector<Packed>& weights, const void* from, void* to,
                         int64_t rows, int64_t count, DType out_dtype) const {
  Product all = product(standing_for(weights), from, to, rows * experts.routing.chosen, out_dtype);
  bool gathered = &weights == &experts.up && !experts.routing.before;
  return {all,  weights.data(), shares, count, gathered ? sources : nullptr,
          gathered ? rows : all.rows};
}

void Mixture::run(const Build& build, const char* x, const char* routed, char* out, int64_t rows,
                  Team& team) const {
  int64_t row_bytes = width() * size_of(dtype);
  for (int64_t first = 0; first < rows; first += most) {
    int64_t at = first * row_bytes;
    run_some(build, x + at, routed + at, out + at, std::min(most, rows - first), team);
  }
}

void Mixture::run_some(const Build& build, const char* x, const char* routed, char* out,
                       int64_t rows, Team& team) const {
  auto times = [&](const Packed& weight, const void* from, void* to, DType out_dtype) {
    Product p = product(weight, from, to, rows, out_dtype);
    share(team, soon_done(p), [&](Team& team) { build.product(p, team); });
  };
  auto activate = [&](int64_t rows, const Packed& up, const Packed& down) {
    build.activate({wide, narrow, rows, down.inputs, up.outputs, dtype, experts.activation,
                    experts.gated}, team);
  };
  times(experts.router, routed, logits, DType::float32);
  Route route{logits, experts.router.outputs, rows, experts.size(), experts.routing,
              expert, weight};
  share(team, rows < route_from, [&](Team& team) { build.route(route, team); });
  share(team, true, [&](Team&) { sort(rows); });
  if (experts.routing.before) {
    build.weigh({x, places, weight, given, rows, width(), experts.routing.chosen, dtype}, team);
  }
  const char* from = experts.routing.before ? given : x;
  build.grouped_product(grouped(experts.up, from, wide, rows, *num_shares, dtype), team);
  activate(rows * experts.routing.chosen, experts.up.front(), experts.down.front());
  build.grouped_product(grouped(experts.down, narrow, parts, rows, *num_shares, DType::float32), team);
  if (experts.shared_up) {
    times(*experts.shared_up, x, wide, dtype);
    activate(rows, *experts.shared_up, *experts.shared_down);
    times(*experts.shared_down, narrow, shared, dtype);
  }
  const float* gates = experts.shared_gate() ? logits + experts.size() : nullptr;
  build.combine({parts, places, weight, experts.shared_up ? shared : nullptr, gates,
                 experts.router.outputs, out, rows, width(), experts.routing.chosen, dtype}, team);
}

// Rows by their experts, each expert's in their own order.
void Mixture::sort(int64_t rows) const {
  int64_t all = rows * experts.routing.chosen;
  std::fill(starts, starts + experts.size() + 1, 0);
  for (int64_t i = 0; i < all; i++) starts[expert[i] + 1]++;
  std::partial_sum(starts, starts + experts.size() + 1, starts);
  int64_t count = 0;
  for (int32_t e = 0; e < experts.size(); e++) {
    if (starts[e] < starts[e + 1]) shares[count++] = {e, starts[e], starts[e + 1]};
  }
  *num_shares = count;
  for (int64_t i = 0; i < all; i++) {
    places[i] = starts[expert[i]]++;
    sources[places[i]] = int32_t(i / experts.routing.chosen);
  }
}

}  // namespace quire
