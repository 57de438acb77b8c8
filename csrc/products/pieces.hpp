// How a product is divided among threads, and what each of them multiplies next.
#pragma once

#include "products/product_rows.hpp"

namespace quire::QUIRE_ISA {
namespace {

// A product in pieces: some rows times some pairs of panels. There are as many rows in all pieces,
// and pairs, or one less.
struct Pieces {
  int64_t all_rows, rows, pairs, across, count;

  Pieces() = default;
  Pieces(const Product& p, const Rows& rows, int threads)
      : all_rows(p.rows), rows(p.rows), pairs(p.weight.panels / 2) {
    const Blocking& to = blocking(p.rows);
    if (p.rows > of_few.rows) {
      int64_t most = cached_bytes / rows.row_bytes, down;
      if (most < to.rows) most = to.rows;
      down = (p.rows + most - 1) / most;
      this->rows = round_up((p.rows + down - 1) / down, to.rows);
    }
    across = to.pieces * threads < pairs ? to.pieces * threads : pairs;
    count = across * ((p.rows + this->rows - 1) / this->rows);
  }

  int64_t first_panel(int64_t i) const { return Run(pairs, i % across, across).first * 2; }
};

// Some rows times some panels.
struct Piece {
  int64_t first, last, panel, end;

  Piece(const Pieces& pieces, int64_t i) {
    first = i / pieces.across * pieces.rows;
    last = first + pieces.rows < pieces.all_rows ? first + pieces.rows : pieces.all_rows;
    Run run(pieces.pairs, i % pieces.across, pieces.across);
    panel = run.first * 2;
    end = run.last * 2;
  }
};

// The rows of all shares as they are multiplied: prepared once each and, where several weights
// multiply some of many, copied so that those of a share lie one after the other.
struct Placed {
  Rows prepared, rows;
  Product source;      // what is prepared
  bool gathered, one;  // ``one``: a single row of x is every share's
  int64_t scratch_bytes;

  Placed(const Grouped& g, Arithmetic how)
      : source(g.product), gathered(g.sources && g.x_rows > 1), one(g.sources && g.x_rows == 1) {
    source.rows = g.x_rows;
    rows = prepared = place_rows(source, how);
    scratch_bytes = prepared.scratch_bytes;
    if (!gathered) return;
    Product copies = g.product;
    copies.scratch += scratch_bytes;
    rows = place_rows(copies, how, true);
    scratch_bytes += rows.scratch_bytes;
  }

  // By all threads.
  void fill(const Grouped& g, Arithmetic how, Team& team) const {
    if (prepared.copied || prepared.group_sums) {
      team.deal(source.rows, [&](int64_t first, int64_t last) {
        prepare(source, how, prepared, first, last);
      });
    }
    if (!gathered) return;
    team.deal(g.product.rows, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row++)
        copy_row(prepared, g.sources[row], rows, row, source.weight);
    });
  }
};

// Where a thread's run of the product after ``p`` begins; null: nobody knows that product.
const char* weights_of_next(const Product& p, const Team& team) {
  if (!p.next) return nullptr;
  Product next = p;
  next.weight = *p.next;
  Arithmetic how = arithmetic(next);
  Pieces pieces(next, place_rows(next, how), team.size);
  Run own(pieces.count, team.index, team.size);
  return next.weight.weights + pieces.first_panel(own.first) * next.weight.panel_bytes();
}

// A thread's way through the pieces of all shares, in their order.
class Way {
 public:
  Way(const Grouped& g, const Placed& placed, const Team& team)
      : g_(g), placed_(placed),
        threads_(int((team.size + g.num_shares - 1) / g.num_shares)),
        next_(weights_of_next(g.product, team)) {
    for (int64_t i = 0; i < g.num_shares; i++) count_ += pieces(of(g.shares[i])).count;
    own_end_ = Run(count_, team.index, team.size).last;
    enter(0);
  }

  int64_t count() const { return count_; }

  // What is multiplied after piece ``i``, the one at hand; null: unknown.
  const char* after(int64_t i) const {
    if (i + 1 == own_end_) return next_;
    int64_t end = Piece(pieces_, i - first_).end;
    const Packed& w = product_.weight;
    return end < w.panels ? w.weights + end * w.panel_bytes() : nullptr;
  }

  // To piece ``i`` of all.
  Piece go_to(int64_t i) {
    if (i < first_) {
      first_ = 0;
      enter(0);
    }
    while (i >= first_ + pieces_.count) {
      first_ += pieces_.count;
      enter(share_ + 1);
    }
    return {pieces_, i - first_};
  }

  const Product& product() const { return product_; }
  const Rows& rows() const { return rows_; }

 private:
  Product of(const Share& share) const {
    Product p = g_.product;
    p.weight = g_.weights[share.weight];
    p.rows = share.last - share.first;
    int64_t size = p.out_dtype == DType::float32 ? 4 : 2;
    p.out = (char*)p.out + share.first * p.out_stride * size;
    return p;
  }

  Pieces pieces(const Product& p) const { return {p, placed_.rows, threads_}; }

  void enter(int64_t share) {
    share_ = share;
    product_ = of(g_.shares[share]);
    int64_t first = placed_.one ? 0 : g_.shares[share].first;
    rows_ = rows_from(placed_.rows, first);
    pieces_ = pieces(product_);
  }

  const Grouped& g_;
  const Placed& placed_;
  int threads_;  // for a share
  const char* next_;
  int64_t count_ = 0, own_end_ = 0, share_ = 0, first_ = 0;
  Product product_{};
  Rows rows_{};
  Pieces pieces_{};
};

}  // namespace
}  // namespace quire::QUIRE_ISA
