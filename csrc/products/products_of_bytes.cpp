// Rows that are rounded to bytes times weights of eight bits or fewer; with tiles of eight.
#include "products/multiplying.hpp"

namespace quire::QUIRE_ISA {

void multiply_bytes(const Grouped& g, Team& team) {
  switch (g.product.weight.format) {
#if !QUIRE_HAS_TILES
    case Format::int4: return run(g, Arithmetic::bytes, run_piece<Arithmetic::bytes, Format::int4>, team);
    case Format::int5: return run(g, Arithmetic::bytes, run_piece<Arithmetic::bytes, Format::int5>, team);
    case Format::int6: return run(g, Arithmetic::bytes, run_piece<Arithmetic::bytes, Format::int6>, team);
#endif
    case Format::grouped_int8: return run(g, Arithmetic::bytes, run_piece<Arithmetic::bytes, Format::grouped_int8>, team);
    default: run(g, Arithmetic::bytes, run_piece<Arithmetic::bytes, Format::int8>, team);
  }
}

}  // namespace quire::QUIRE_ISA
