// How the threads of a step go through attention over latents.
#include <cstring>

#include "layers/decoder.hpp"

namespace quire {

void Walk::go_through(const LatentAttention& attention, const void* from) {
  const Attend& prepared = std::get<Attend>(at_hand());
  const int64_t size = size_of(pass_.dtype), turned = attention.turned_width();
  const int64_t heads = attention.heads(), stride = attention.inputs.outputs;
  times(second_ ? Projection::up : Projection::qkv, attention.inputs, from, pass_.wide, nullptr);
  char* latents = pass_.wide + (attention.before_key() + turned) * size;
  normalise_heads(attention.latent_norm, {latents, stride}, attention.latent_width());
  Columns queries{pass_.wide, stride, attention.head_width()};
  char* found = static_cast<char*>(prepared.out);
  if (attention.queries) {
    const Packed& weight = *attention.queries;
    normalise_heads(attention.query_norm, {pass_.wide, stride}, weight.inputs);
    Product p = pass_.product(weight, pass_.wide, found);
    p.x_stride = stride;
    share(team_, soon_done(p), [&](Team& team) { build_.product(p, team); });
    queries = {found, weight.outputs, queries.width};
  }
  Columns attending{pass_.narrow, heads * attention.key_width(), attention.key_width()};
  times_by_head(attention.keys, queries, attending, turned);
  share(team_, prepared.schedule.soon_done, [&](Team& team) { build_.attend(prepared, team); });
  Columns gathered{found, heads * attention.latent_width(), attention.latent_width()};
  Columns values{pass_.narrow, heads * attention.value_width(), attention.value_width()};
  times_by_head(attention.values, gathered, values, 0);
  times(second_ ? Projection::down : Projection::output, attention.output, pass_.narrow, delta(),
        following());
}

// ``copied``: so many numbers at the beginning of a head's columns are not multiplied.
void Walk::times_by_head(const std::vector<Packed>& weights, const Columns& from,
                         const Columns& to, int64_t copied) {
  const int64_t runs = (pass_.rows + Pass::rows_of_head - 1) / Pass::rows_of_head;
  const int64_t size = size_of(pass_.dtype);
  char* scratch = pass_.scratch + team_.index * pass_.head_scratch(build_, weights.front());
  team_.take(int64_t(weights.size()) * runs, [&](int64_t task) {
    const int64_t head = task / runs, first = task % runs * Pass::rows_of_head;
    const int64_t rows = std::min(pass_.rows - first, Pass::rows_of_head);
    const char* x = from.data + (first * from.stride + head * from.width) * size;
    char* out = to.data + (first * to.stride + head * to.width) * size;
    for (int64_t row = 0; copied && row < rows; row++)
      std::memcpy(out + row * to.stride * size, x + row * from.stride * size, copied * size);
    Product p = pass_.product(weights[head], x + copied * size, out + copied * size);
    p.x_stride = from.stride;
    p.rows = rows;
    p.scratch = scratch;
    p.out_stride = to.stride;
    Turns turns;
    Team one{0, 1, &turns};
    build_.product(p, one);
  });
}

}  // namespace quire
