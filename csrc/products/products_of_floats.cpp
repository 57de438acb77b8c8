// Rows of floats times weights of every form. With tiles it is done as without them.
#include "products/multiplying.hpp"

namespace quire::QUIRE_ISA {

#if !QUIRE_HAS_TILES
void multiply_floats(const Grouped& g, Team& team) { run(g, Arithmetic::floats, piece_runner<Arithmetic::floats>(g.product.weight.format), team); }
#endif

}  // namespace quire::QUIRE_ISA
