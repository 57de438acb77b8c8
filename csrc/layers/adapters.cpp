// What adapters add to a product, for one instruction set: for each run of rows first ``down``, then
// ``up``. A row is summed by itself, in an order that depends on nothing but places.
#include "layers/adapters.hpp"

#include "products/tiles.hpp"

namespace quire::QUIRE_ISA {
namespace {

// Weights lie in the order in which they are read, so what is fetched may be of the next panel, or
// of the next matrix.
constexpr int64_t fetched_ahead = 4096;  // bytes
constexpr int at_once = registers == 32 ? adapted_at_once : adapted_at_once / 2;  // in registers

template <class T>
QUIRE_INLINE F load_up_to(const T* p, int64_t n) { return n >= W ? load(p) : load_some(p, int(n)); }
template <class T>
QUIRE_INLINE void store_up_to(T* p, F v, int64_t n) {
  n >= W ? store(p, v) : store_some(p, v, int(n));
}

// Rows of floats times weights of any type.
template <class T, Format format>
struct Floats {
  typedef T Number;
  typedef float Row;
  static constexpr int inputs = inputs_per_line(format);

  // R rows times a line of weights.
  template <int R>
  __attribute__((always_inline)) static void add(F (&acc)[R], U lanes, const float* x,
                                                 int64_t stride) {
#pragma GCC unroll 2
    for (int j = 0; j < inputs; j++) {
      F w = decode<format>(lanes, U{}, j);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) acc[r] = fma(w, splat(x[r * stride + j]), acc[r]);
    }
  }
};

#if defined(__AVX512BF16__)
// bf16 times bf16, two at a time. What ``down`` gives is rounded to bf16 for ``up``.
struct Pairs {
  typedef bf16 Number;
  typedef bf16 Row;
  static constexpr int inputs = 2;

  template <int R>
  __attribute__((always_inline)) static void add(F (&acc)[R], U lanes, const bf16* x,
                                                 int64_t stride) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      __m512bh v = (__m512bh)_mm512_set1_epi32(read<int>(x + r * stride));
      acc[r] = (F)_mm512_dpbf16_ps((__m512)acc[r], v, (__m512bh)lanes);
    }
  }
};
#endif

// R rows times W outputs of a panel, from ``lanes`` on: every fourth line has a sum of its own.
template <class How, int R>
QUIRE_INLINE void sum(const char* lanes, int64_t lines, const typename How::Row* x, int64_t stride,
                      F (&out)[R]) {
  F acc[4][R] = {};
  for (int64_t l = 0; l < lines; l += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const char* line = lanes + (l + j) * line_bytes;
      __builtin_prefetch(line + fetched_ahead, 0, 2);
      How::add(acc[j], read<U>(line), x + (l + j) * How::inputs, stride);
    }
  }
  for (int r = 0; r < R; r++) out[r] = (acc[0][r] + acc[1][r]) + (acc[2][r] + acc[3][r]);
}

// body(Constant<rows>, first place) for runs of at most ``at_once`` rows.
template <int n>
struct Constant {
  static constexpr int value = n;
};
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

template <class How>
void go_down(const Adapt& a, const LowRank& l, int64_t first, int64_t last, char* memory) {
  typedef typename How::Row Row;
  Row* wide = (Row*)memory;
  for (int64_t place = first; place < last; place++) {
    auto x = (const typename How::Number*)a.x + a.rows[place] * a.x_stride;
    Row* row = wide + (place - first) * a.wide;
    for (int64_t i = 0; i < l.inputs; i += W) store(row + i, load_up_to(x + i, l.inputs - i));
  }
  by_few(first, last, [&](auto constant, int64_t place) __attribute__((always_inline)) {
    constexpr int R = decltype(constant)::value;
    for (int64_t rank = 0; rank < l.ranks; rank += W) {
      const char* lanes = (const char*)l.down + rank / adapter_panel * l.lines * line_bytes +
                          rank % adapter_panel * 4;
      F sums[R];
      sum<How, R>(lanes, l.lines, wide + (place - first) * a.wide, a.wide, sums);
      F scale = load(l.scales + rank);
      for (int r = 0; r < R; r++)
        store((Row*)a.ranks + (place + r) * a.width + rank, sums[r] * scale);
    }
  });
}

// Add to the outputs of some panels of a part, and rescale them.
template <class How>
void go_up(const Adapt& a, const UpPart& part, int64_t first, int64_t last, int64_t panel,
           int64_t end) {
  typedef typename How::Number T;
  by_few(first, last, [&](auto constant, int64_t place) __attribute__((always_inline)) {
    constexpr int R = decltype(constant)::value;
    auto ranks = (const typename How::Row*)a.ranks + place * a.width + part.first_rank;
    T* out = (T*)a.out + part.first_output;
    for (int64_t o = panel * adapter_panel; o < end * adapter_panel && o < part.outputs; o += W) {
      const char* lanes = (const char*)part.panels + o / adapter_panel * part.lines * line_bytes +
                          o % adapter_panel * 4;
      F sums[R];
      sum<How, R>(lanes, part.lines, ranks, a.width, sums);
      for (int r = 0; r < R; r++) {
        T* at = out + a.rows[place + r] * a.out_stride + o;
        F total = load_up_to(at, part.outputs - o) + sums[r];
        if (part.gains) total = fma(total, load(part.gains + o), load(part.shifts + o));
        store_up_to(at, total, part.outputs - o);
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

template <class How>
void run(const Adapt& a, Team& team) {
  take_pieces(a, team, [&](const AdaptedRows& run) {
    int64_t rows = run.last - run.first;
    return run.products[a.product].ranks ? (rows + adapted_at_once - 1) / adapted_at_once : 0;
  }, [&](const AdaptedRows& run, int64_t piece) {
    int64_t first = run.first + piece * adapted_at_once;
    int64_t last = first + adapted_at_once < run.last ? first + adapted_at_once : run.last;
    char* memory = (char*)(a.wide_rows + team.index * adapted_at_once * a.wide);
    go_down<How>(a, run.products[a.product], first, last, memory);
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
    go_up<How>(a, *part, run.first, run.last, panel, panel + panels_at_once);
  });
}

}  // namespace

void adapt(const Adapt& a, Team& team) {
  if (a.dtype == DType::float32) return run<Floats<float, Format::float32>>(a, team);
  if (a.dtype == DType::float16) return run<Floats<f16, Format::float16>>(a, team);
#if defined(__AVX512BF16__)
  run<Pairs>(a, team);
#else
  run<Floats<bf16, Format::bfloat16>>(a, team);
#endif
}

}  // namespace quire::QUIRE_ISA
