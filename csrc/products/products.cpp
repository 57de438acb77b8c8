// Matrix products for one instruction set: what they need of memory, and who multiplies.
#include "products/decoded.hpp"
#include "products/pieces.hpp"
#include "products/products_on_tiles.hpp"

namespace quire::QUIRE_WITHOUT_TILES {
int64_t grouped_scratch(const Grouped&, int threads);
void grouped_product(const Grouped&, Team&);
}  // namespace quire::QUIRE_WITHOUT_TILES

namespace quire::QUIRE_ISA {

// In files of their own, which are compiled side by side.
void multiply_bytes(const Grouped&, Team&);
void multiply_floats(const Grouped&, Team&);
void multiply_pairs(const Grouped&, Team&);

namespace {

// One of the weights that make up a product, and what it gives.
struct Parts {
  Product part;

  explicit Parts(const Product& p) : part(p), next_(p.next) { hold(p.weight); }

  bool next() {
    const Packed* rest = part.weight.rest;
    if (!rest) return false;
    part.out = (char*)part.out + part.weight.outputs * (part.out_dtype == DType::float32 ? 4 : 2);
    hold(*rest);
    return true;
  }

 private:
  void hold(const Packed& weight) {
    part.weight = weight;
    if (weight.rest) part.weight.outputs -= weight.rest->outputs;
    part.next = weight.rest ? weight.rest : next_;
  }

  const Packed* next_;
};

// Whether a build with tiles leaves a product to the one without. Of bytes it may depend on the
// number of rows: sums are exact, and scaled alike. Each group's go through memory on their way out
// of tiles, which pays for many rows, and not for groups of four bits.
bool is_off_tiles(const Grouped& g, Arithmetic how) {
  if (!has_tiles || how != Arithmetic::bytes) return has_tiles && how == Arithmetic::floats;
  return bits_of(g.product.weight.format) < 8 || g.product.rows <= few_in_groups * g.num_shares;
}

}  // namespace

int64_t grouped_scratch(const Grouped& g, int threads) {
  Arithmetic how = arithmetic(g.product);
  if (is_off_tiles(g, how)) return QUIRE_WITHOUT_TILES::grouped_scratch(g, threads);
  return Placed(g, how).scratch_bytes + threads * decoded_bytes(g.product, how);
}

void grouped_product(const Grouped& g, Team& team) {
  Arithmetic how = arithmetic(g.product);
  if (is_off_tiles(g, how)) return QUIRE_WITHOUT_TILES::grouped_product(g, team);
  if (how == Arithmetic::bytes) return multiply_bytes(g, team);
  if (how == Arithmetic::pairs) return multiply_pairs(g, team);
  if constexpr (!has_tiles) multiply_floats(g, team);
}

// With one weight, that multiplies all rows.
int64_t product_scratch(const Product& p, int threads) {
  int64_t most = 0;
  Parts parts(p);
  do {
    const Product& part = parts.part;
    int64_t bytes = grouped_scratch({part, &part.weight, nullptr, 1, nullptr, part.rows}, threads);
    most = bytes > most ? bytes : most;
  } while (parts.next());
  return most;
}

void product(const Product& p, Team& team) {
  Share all{0, 0, int32_t(p.rows)};
  Parts parts(p);
  do {
    const Product& part = parts.part;
    grouped_product({part, &part.weight, &all, 1, nullptr, part.rows}, team);
  } while (parts.next());
}

}  // namespace quire::QUIRE_ISA
