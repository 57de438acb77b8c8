// Attention whose products are of floats, with every kind of cache. With tiles it is done as without.
#include "attention/attending.hpp"

namespace quire::QUIRE_ISA {

#if !QUIRE_HAS_TILES
Attention attention_of_floats(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::float32: return attention_with<float, FloatUnit>;
    case DType::bfloat16: return attention_with<bf16, FloatUnit>;
    case DType::float16: return attention_with<f16, FloatUnit>;
    case DType::int4: return attention_with<int4, FloatUnit>;
    default: return attention_with<int8_t, FloatUnit>;
  }
}
#endif

}  // namespace quire::QUIRE_ISA
