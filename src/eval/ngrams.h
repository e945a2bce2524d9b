// Counting n-grams of any sequence: each distinct n-gram of one table gets a number, made from the number of its first
// n - 1 items and its last item, so that no n-gram is ever stored or compared whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace contextpool::eval {

class NgramTable {
 public:
  // counts[n - 1][k]: the number of an n-gram and how often it is in `items`, sorted by the number.
  using Counter = std::vector<std::pair<std::int32_t, std::int64_t>>;

  std::vector<Counter> count(const std::vector<std::int32_t>& items, std::int64_t max_order) {
    std::vector<Counter> all;
    std::vector<std::int32_t> ids = items;  // of the n-gram that begins at each place
    for (std::int64_t n = 1; n <= max_order; ++n) {
      if (n > 1) extend(ids, items, n);
      all.push_back(runs(ids));
    }
    return all;
  }

 private:
  void extend(std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& items, std::int64_t n) {
    if (numbers_.size() < static_cast<std::size_t>(n)) numbers_.resize(static_cast<std::size_t>(n));
    auto& known = numbers_[static_cast<std::size_t>(n - 1)];
    if (!ids.empty()) ids.pop_back();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto prefix = static_cast<std::uint64_t>(ids[i]);
      const auto last = static_cast<std::uint32_t>(items[i + static_cast<std::size_t>(n) - 1]);
      const auto next = static_cast<std::int32_t>(known.size());
      ids[i] = known.try_emplace((prefix << 32U) | last, next).first->second;
    }
  }

  static Counter runs(std::vector<std::int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    Counter counter;
    for (const auto id : ids) {
      if (counter.empty() || counter.back().first != id) counter.emplace_back(id, 0);
      ++counter.back().second;
    }
    return counter;
  }

  std::vector<std::unordered_map<std::uint64_t, std::int32_t>> numbers_;  // by order
};

inline std::int64_t total(const NgramTable::Counter& counter) {
  std::int64_t sum = 0;
  for (const auto& [id, count] : counter) sum += count;
  return sum;
}

// The sum over n-grams of the smaller count.
inline std::int64_t matches(const NgramTable::Counter& a, const NgramTable::Counter& b) {
  std::int64_t sum = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (i->first == j->first) sum += std::min(i->second, j->second);
    const bool step_a = i->first <= j->first, step_b = j->first <= i->first;
    i += step_a ? 1 : 0;
    j += step_b ? 1 : 0;
  }
  return sum;
}

// The larger count of every n-gram.
inline NgramTable::Counter larger(const NgramTable::Counter& a, const NgramTable::Counter& b) {
  NgramTable::Counter result;
  auto i = a.begin(), j = b.begin();
  while (i != a.end() && j != b.end()) {
    if (i->first == j->first) {
      result.emplace_back(i->first, std::max(i->second, j->second));
      ++i, ++j;
    } else {
      result.push_back(i->first < j->first ? *i++ : *j++);
    }
  }
  result.insert(result.end(), i, a.end());
  result.insert(result.end(), j, b.end());
  return result;
}

}  // namespace contextpool::eval
