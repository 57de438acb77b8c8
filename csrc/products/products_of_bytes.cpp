// Rows that are rounded to bytes times weights of eight bits or fewer.
#include "products/multiplying.hpp"

namespace quire::QUIRE_ISA {

void multiply_bytes(const Grouped& g, Team& team) {
  switch (g.product.weight.format) {
    case Format::int4: return run<Arithmetic::bytes, Format::int4>(g, team);
    case Format::int6: return run<Arithmetic::bytes, Format::int6>(g, team);
    case Format::grouped_int8: return run<Arithmetic::bytes, Format::grouped_int8>(g, team);
    default: run<Arithmetic::bytes, Format::int8>(g, team);
  }
}

}  // namespace quire::QUIRE_ISA
