// What adapters add to a product, for one instruction set: for each run of rows first ``down``, then
// ``up``. A row is summed by itself, in an order that depends on nothing but places.
#include "adapters.hpp"

#include "vec.hpp"

namespace quire::QUIRE_ISA {
namespace {

constexpr int panel_vectors = adapter_panel / W;
constexpr int at_once = registers == 32 ? adapted_at_once : adapted_at_once / 2;  // in registers

template <class T>
QUIRE_INLINE F load_up_to(const T* p, int64_t n) { return n >= W ? load(p) : load_some(p, int(n)); }
template <class T>
QUIRE_INLINE void store_up_to(T* p, F v, int64_t n) {
  n >= W ? store(p, v) : store_some(p, v, int(n));
}

// R rows of floats times W outputs of a panel. Four sums for each, of every fourth input.
template <class T, int R>
QUIRE_INLINE void sum(const T* panel, int64_t inputs, const float* x, int64_t stride, F (&out)[R]) {
  F acc[R][4] = {};
  for (int64_t i = 0; i < inputs; i += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      F w = load(panel + (i + j) * adapter_panel);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) acc[r][j] = fma(w, splat(x[r * stride + i + j]), acc[r][j]);
    }
  }
  for (int r = 0; r < R; r++) out[r] = (acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3]);
}

// Inputs are multiplied by fours; what there is beyond them is zero.
QUIRE_INLINE int64_t whole_fours(int64_t n) { return (n + 3) / 4 * 4; }

template <int n>
struct Constant {
  static constexpr int value = n;
};

// body(Constant<rows>, first row) for runs of at most ``at_once`` rows.
template <class Body>
QUIRE_INLINE void by_few(int64_t first, int64_t last, const Body& body) {
  for (; first < last; first += at_once) {
    switch (last - first) {
      case 1: body(Constant<1>{}, first); break;
      case 2: body(Constant<2>{}, first); break;
      case 3: body(Constant<at_once < 3 ? at_once : 3>{}, first); break;
      default: body(Constant<at_once>{}, first);
    }
  }
}

template <class T>
void go_down(const Adapt& a, const LowRank& l, int64_t first, int64_t last, float* wide) {
  for (int64_t place = first; place < last; place++) {
    const T* x = (const T*)a.x + a.rows[place] * a.x_stride;
    float* floats = wide + (place - first) * a.wide;
    for (int64_t i = 0; i < l.inputs; i += W) store(floats + i, load_up_to(x + i, l.inputs - i));
  }
  int64_t inputs = whole_fours(l.inputs);
  by_few(first, last, [&](auto constant, int64_t place) __attribute__((always_inline)) {
    constexpr int R = decltype(constant)::value;
    for (int64_t rank = 0; rank < l.ranks; rank += W) {
      const T* panel = (const T*)l.down + rank / adapter_panel * inputs * adapter_panel;
      F sums[R];
      sum<T, R>(panel + rank % adapter_panel, inputs, wide + (place - first) * a.wide, a.wide,
                sums);
      F scale = load(l.scales + rank);
      for (int r = 0; r < R; r++) store(a.ranks + (place + r) * a.width + rank, sums[r] * scale);
    }
  });
}

// Add to the outputs of some panels of a part.
template <class T>
void go_up(const Adapt& a, const UpPart& part, int64_t first, int64_t last, int64_t panel,
           int64_t end) {
  int64_t inputs = whole_fours(part.ranks);
  by_few(first, last, [&](auto constant, int64_t place) __attribute__((always_inline)) {
    constexpr int R = decltype(constant)::value;
    const float* ranks = a.ranks + place * a.width + part.first_rank;
    T* out = (T*)a.out + part.first_output;
    for (int64_t o = panel * adapter_panel; o < end * adapter_panel && o < part.outputs; o += W) {
      const T* weights = (const T*)part.panels + o / adapter_panel * inputs * adapter_panel;
      F sums[R];
      sum<T, R>(weights + o % adapter_panel, inputs, ranks, a.width, sums);
      for (int r = 0; r < R; r++) {
        T* at = out + a.rows[place + r] * a.out_stride + o;
        store_up_to(at, load_up_to(at, part.outputs - o) + sums[r], part.outputs - o);
      }
    }
  });
}

// Pieces of all runs, numbered through: body(run, number in the run).
template <class Count, class Body>
void take_pieces(const Adapt& a, Team& team, const Count& count, const Body& body) {
  int64_t total = 0;
  for (int64_t run = 0; run < a.num_runs; run++) total += count(a.runs[run]);
  team.take(total, [&](int64_t piece) {
    const AdaptedRows* run = a.runs;
    for (int64_t n; piece >= (n = count(*run)); run++) piece -= n;
    body(*run, piece);
  });
}

constexpr int64_t panels_at_once = 16;

int64_t pieces_of(const UpPart& part) {
  int64_t panels = (part.outputs + adapter_panel - 1) / adapter_panel;
  return (panels + panels_at_once - 1) / panels_at_once;
}

template <class T>
void run(const Adapt& a, Team& team) {
  take_pieces(a, team, [&](const AdaptedRows& run) {
    return run.products[a.product].ranks ? (run.last - run.first + adapted_at_once - 1) /
                                               adapted_at_once : 0;
  }, [&](const AdaptedRows& run, int64_t piece) {
    int64_t first = run.first + piece * adapted_at_once;
    int64_t last = first + adapted_at_once < run.last ? first + adapted_at_once : run.last;
    go_down<T>(a, run.products[a.product], first, last,
               a.wide_rows + team.index * adapted_at_once * a.wide);
  });
  take_pieces(a, team, [&](const AdaptedRows& run) {
    const LowRank& l = run.products[a.product];
    int64_t count = 0;
    for (int64_t i = 0; i < l.num_parts; i++) count += pieces_of(l.parts[i]);
    return count;
  }, [&](const AdaptedRows& run, int64_t piece) {
    const UpPart* part = run.products[a.product].parts;
    for (int64_t n; piece >= (n = pieces_of(*part)); part++) piece -= n;
    int64_t panel = piece * panels_at_once;
    go_up<T>(a, *part, run.first, run.last, panel, panel + panels_at_once);
  });
}

}  // namespace

void adapt(const Adapt& a, Team& team) {
  switch (a.dtype) {
    case DType::float32: return run<float>(a, team);
    case DType::bfloat16: return run<bf16>(a, team);
    default: return run<f16>(a, team);
  }
}

}  // namespace quire::QUIRE_ISA
