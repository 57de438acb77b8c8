// Paged attention for one instruction set: store the new keys and values, attend, merge the parts.
//
// PagedAttention (Kwon et al., 2023, section 4.3) fuses the write of new keys into blocks and the
// reading of blocks through the table with attention itself. A long context is divided into parts
// that are merged by their maxima and sums, as in Flash-Decoding (Dao et al., 2023).
#include "attention/attending.hpp"

namespace quire::QUIRE_WITHOUT_TILES {
extern const Build build;
void norm_rows(const NormRows&, Team&);
void activate(const Activate&, Team&);
void gate(const Gate&, Team&);
void predict(const StreamRows&, Team&);
void correct(const StreamRows&, Team&);
void add_to_others(const StreamRows&, Team&);
void argmax(const Argmax&, Team&);
void add_up(const Sum&, int64_t first, int64_t last);
void embed(const Embed&);
void route(const Route&, Team&);
void weigh(const Weigh&, Team&);
void combine(const Combine&, Team&);
void adapt(const Adapt&, Team&);
int64_t recur_scratch(const Recurrence&, int64_t tokens, int64_t confirmed, int threads);
void recur(const Recur&, Team&);
int64_t index_scratch(const Index&, int threads);
void choose(const Index&, Team&);
}  // namespace quire::QUIRE_WITHOUT_TILES

namespace quire::QUIRE_ISA {
namespace {

Attention attention_of(const Attend& a) {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (a.dtype == DType::bfloat16 && a.kv_dtype == DType::bfloat16)
    return attention_with<bf16, PairUnit>;
#endif
#if defined(__AVX2__) && !QUIRE_HAS_TILES
  if (a.dtype != DType::float32 && a.kv_dtype == DType::int8)
    return attention_with<int8_t, WholeUnit>;
  if (a.dtype != DType::float32 && a.kv_dtype == DType::int4)
    return attention_with<int4, WholeUnit>;
#endif
#if QUIRE_HAS_TILES
  return {QUIRE_WITHOUT_TILES::build.scratch_bytes, QUIRE_WITHOUT_TILES::build.attend};
#else
  return attention_of_floats(a.kv_dtype);
#endif
}

int64_t scratch_bytes(const Attend& a) { return attention_of(a).scratch_bytes(a); }

void attend(const Attend& a, Team& team) { attention_of(a).run(a, team); }

}  // namespace

int64_t product_scratch(const Product&, int threads);
void product(const Product&, Team&);
int64_t grouped_scratch(const Grouped&, int threads);
void grouped_product(const Grouped&, Team&);

namespace plain = QUIRE_WITHOUT_TILES;
extern const Build build;
const Build build = {
    QUIRE_ISA_NAME,   tile_from,       lane_rows,     scratch_bytes,        attend,
    plain::norm_rows, plain::activate, plain::gate,     plain::predict,  plain::correct,
    plain::add_to_others,    plain::argmax,   plain::add_up,   product_scratch, product,
    grouped_scratch,  grouped_product, plain::embed,    plain::route,    plain::weigh,
    plain::combine,   plain::adapt,    plain::recur_scratch, plain::recur,
    plain::index_scratch,    plain::choose};

}  // namespace quire::QUIRE_ISA
