// How attention is carried out with one kind of cache: keys are stored, work is done, parts are merged.
#pragma once

#include "attention/few_rows.hpp"
#include "attention/many_rows.hpp"
#include "attention/storing.hpp"

namespace quire::QUIRE_ISA {

struct Attention {
  int64_t (*scratch_bytes)(const Attend&);
  void (*run)(const Attend&, Team&);
};

// Compiled in a file of its own, beside the others.
Attention attention_of_floats(DType kv_dtype);

namespace {

// Below so many rows of a KV head, transposing them into lanes would leave too many lanes empty.
int tile_from(DType, DType) { return W == 16 ? 12 : 6; }

// Rows of a KV head that are few. Where values are parts of keys, all that do not fill a tile: these
// keys are turned for them, too, and what is left of a tile would cost as much as a whole one. Where
// each row's weights are rounded, those that leave no lane empty are better in lanes.
template <class Units>
int64_t most_few(const Attend& a) {
  if (a.values) return tile_from(a.dtype, a.kv_dtype) - 1;
  return lane_rows - (Units::scaled ? W : 0) - 1;
}

// Of an item: a tile's, or at least one token's, and a few more that belong to the same sequence.
int64_t most_rows(const Attend& a) {
  int64_t group = a.num_heads / a.num_kv_heads;
  return (group > lane_rows ? group : lane_rows) + lane_rows;
}

// Merge the parts of a group, segment after segment, as one that had them all would.
void merge_group(const Attend& a, const Group& group, int h, float* values) {
  int heads = a.num_heads / a.num_kv_heads;
  for (int64_t row = 0; row < (group.last_token - group.first_token) * heads; row++) {
    const int32_t* source = a.schedule.sources + group.first_source;
    const float* part = part_row(a, h, *source + row);
    float most = part[0], total = part[1];
    for (int64_t i = 0; i < a.value_dim; i += W) store(values + i, load(part + 2 + i));
    while (++source < a.schedule.sources + group.last_source) {
      part = part_row(a, h, *source + row);
      merge({most, total, values}, part[0], part[1], part + 2, a.value_dim);
    }
    finish_row(a, h, group.first_token, row, most, total, values);
  }
}

// Some segments of each of an item's groups are done: merge those that were waiting for no others.
void contribute(const Attend& a, const Item& item, float* values) {
  for (int g = item.first_group; g < item.first_group + item.groups; g++) {
    const Group& group = a.schedule.groups[g];
    for (int h = item.first_head; h < item.first_head + item.heads; h++) {
      int32_t* left = a.counters + int64_t(g) * a.num_kv_heads + h;
      if (__atomic_sub_fetch(left, item.segments, __ATOMIC_ACQ_REL)) continue;
      *left = group.last_source - group.first_source;
      merge_group(a, group, h, values);
    }
  }
}

// A thread's tools, in its scratch memory.
template <class KV, class Units>
struct Tools {
  Context context;
  Storing<KV> storing;
  PoolReader<KV, Units> reader;
  int64_t few;  // rows
  FewRows<SourceOf<KV, Units>> few_rows;
  ManyRows<Units> many_rows;

  Tools(const Attend& a, Dealer& dealer)
      : context(a, dealer), storing(context, dealer), reader(a, dealer), few(most_few<Units>(a)),
        few_rows(context, reader, few, on_tiles<Units> ? most_rows(a) : 0, dealer),
        many_rows(context, reader, dealer) {}
};

template <class KV, class Units>
void run(const Attend& a, Team& team) {
  Dealer dealer{a.scratch + team.index * a.scratch_bytes};
  Tools<KV, Units> tools(a, dealer);
  const bool stores = a.key.data;
  if (stores && a.schedule.store_first) {
    const int64_t most = tools.storing.together();
    team.take((a.num_tokens + most - 1) / most, [&](int64_t piece) {
      int64_t first = piece * most, left = a.num_tokens - first;
      for (int h = 0; h < a.num_kv_heads; h++)
        tools.storing.store_tokens(first, first + (left < most ? left : most), h);
    });
  }
  Run own(a.schedule.num_items, team.index, team.size);
  team.take(a.schedule.num_items, [&](int64_t task) {
    const Item& item = a.schedule.items[task];
    Work work(a, item), next(a, own.has(task + 1) ? a.schedule.items[task + 1] : item);
    if (stores && !a.schedule.store_first && item.last_column == work.columns.count) {
      for (int i = 0; i < item.heads; i++) {
        tools.storing.store_tokens(work.token(0), work.token(0) + 1, item.first_head + i);
      }
    }
    if (on_tiles<Units> || work.tokens() * tools.context.group <= tools.few) {
      tools.few_rows.run(work, own.has(task + 1) ? &next : nullptr);
    } else {
      tools.many_rows.run(work);
    }
    contribute(a, item, tools.context.head);
  });
}

template <class KV, class Units>
int64_t scratch_of(const Attend& a) {
  Dealer dealer{nullptr};
  Tools<KV, Units> tools(a, dealer);
  return round_up(dealer.used, 4096);
}

// With the numbers that a pool has, and what of them is multiplied at a time.
template <class KV, class Units>
constexpr Attention attention_with{scratch_of<KV, Units>, run<KV, Units>};

}  // namespace
}  // namespace quire::QUIRE_ISA
