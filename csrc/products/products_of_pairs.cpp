// Rows of bf16 times weights as bf16, two inputs at a time, where the processor can.
#include "products/multiplying.hpp"

namespace quire::QUIRE_ISA {

void multiply_pairs(const Grouped& g, Team& team) {
#if QUIRE_HAS_TILES
  Flushed flushed;  // some sums are computed by other registers
#endif
  if constexpr (has_bf16_products) run(g, Arithmetic::pairs, piece_runner<Arithmetic::pairs>(g.product.weight.format), team);
}

}  // namespace quire::QUIRE_ISA
