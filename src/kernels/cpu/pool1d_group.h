// Targets that sum over nearly the same rows, side by side, so that a row is loaded once for all of them.
#pragma once

#include "kernels/cpu/pool1d_sources.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// Targets prepared together, and those of them summed together.
inline constexpr int kTile = 64;
inline constexpr int kGroup = 8;

// A target of a tile: where its sources are and what they weigh. Without sources it does not get into a group.
template <class T>
struct Prepared {
  std::int64_t target = 0;
  Cover cover;
  Weights<T> weights;
};

// Members of a tile whose main segments are of one level and overlap; `segment` covers them all.
struct Group {
  int count;
  int member[kGroup];
  Segment segment;
};

// Splits a tile's live members into groups of at most `most`. Sums do not depend on how: see add_rows_group.
template <class T>
class Groups {
 public:
  Groups(const Prepared<T>* tile, const int* live, int count, int most, int nodes) {
    int order[kTile];
    for (int k = 0; k < count; ++k) {  // insertion sort by level and place
      int at = k;
      for (; at > 0 && before(tile[live[k]], tile[order[at - 1]]); --at) order[at] = order[at - 1];
      order[at] = live[k];
    }
    for (int k = 0; k < count; ++k) {
      const Segment& next = tile[order[k]].cover.whole_main();
      Group* group = count_ > 0 ? &groups_[count_ - 1] : nullptr;
      if (group != nullptr && group->count < most && joins(group->segment, next)) {
        const std::int64_t end = std::max(group->segment.at + group->segment.count, next.at + next.count);
        group->segment.count = end - group->segment.at;
        group->segment.rows = group->segment.count * (next.level < 0 ? 1 : nodes);
      } else {
        group = &groups_[count_++];
        group->count = 0;
        group->segment = next;
      }
      group->member[group->count++] = order[k];
    }
  }

  const Group* begin() const { return groups_; }
  const Group* end() const { return groups_ + count_; }

 private:
  static bool before(const Prepared<T>& a, const Prepared<T>& b) {
    const Segment& s = a.cover.whole_main();
    const Segment& t = b.cover.whole_main();
    return s.level != t.level ? s.level < t.level : s.at < t.at;
  }
  // Worth it when the rows that only one of them needs are the smaller part.
  static bool joins(const Segment& group, const Segment& next) {
    if (group.level != next.level || group.rows > kFold || next.rows > kFold) return false;
    const std::int64_t group_end = group.at + group.count;
    const std::int64_t next_end = next.at + next.count;
    const std::int64_t all = std::max(group_end, next_end) - group.at;
    return 4 * all <= 3 * (group.count + next.count) && all * (group.rows / group.count) <= kFold;
  }

  Group groups_[kTile];
  int count_ = 0;
};

// A member's weights laid out over the rows of `all`, a segment of its group; 0 where it has none.
template <class T>
void pad_weights(const Segment& all, const Segment* own, const T* weight, T* out) {
  if (own == nullptr) {
    for (std::int64_t r = 0; r < all.rows; ++r) out[r] = 0;
    return;
  }
  const std::int64_t before = (own->at - all.at) * (own->rows / own->count);
  for (std::int64_t r = 0; r < before; ++r) out[r] = 0;
  for (std::int64_t r = 0; r < own->rows; ++r) out[before + r] = weight[own->offset + r];
  for (std::int64_t r = before + own->rows; r < all.rows; ++r) out[r] = 0;
}

// The number of streams a group is summed with: 2, 4 or 8, the last ones perhaps of weight 0.
inline int round_streams(int count) { return count <= 2 ? 2 : count <= 4 ? 4 : 8; }

// Calls body with that number as a constant.
template <class Body>
void with_streams(int count, const Body& body) {
  switch (round_streams(count)) {
    case 2: return body(std::integral_constant<int, 2>{});
    case 4: return body(std::integral_constant<int, 4>{});
    default: return body(std::integral_constant<int, 8>{});
  }
}

template <class V>
bool all_finite(const V* values, int count) {
  auto sum = values[0] - values[0];
  for (int k = 1; k < count; ++k) sum += values[k] - values[k];
  return sum_lanes(sum) == 0;
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
