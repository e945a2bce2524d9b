// Samplers and prefetching: every item once an epoch, in another order each; the same at any step; results in order.
#include "contextpool/data/sampler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "contextpool/data/prefetch.h"

namespace contextpool::testing {
namespace {

TEST(EpochItems, AreTheSameFromAnyStepAndCrossEpochs) {
  const auto all = data::epoch_items(5, 10, 0, 40);
  for (std::int64_t first = 0; first < 35; ++first) {
    const auto some = data::epoch_items(5, 10, first, 5);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(some[i].item, all[static_cast<std::size_t>(first) + i].item);
      EXPECT_EQ(some[i].epoch, (first + static_cast<std::int64_t>(i)) / 10);
    }
  }
  std::vector<std::vector<std::int64_t>> epochs(4);
  for (const auto& e : all) epochs[static_cast<std::size_t>(e.epoch)].push_back(e.item);
  for (const auto& epoch : epochs) EXPECT_EQ(std::accumulate(epoch.begin(), epoch.end(), std::int64_t{0}), 45);
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(Prefetch, GivesResultsInOrderWhateverTheThreads) {
  for (const int threads : {0, 1, 2, 3}) {
    data::Prefetch<std::int64_t> prefetched(
        [](std::int64_t i) {
          std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 300));
          return i * i;
        },
        5, 40, threads, 4);
    for (std::int64_t i = 5; i < 40; ++i) EXPECT_EQ(prefetched.next(), i * i);
  }
}

TEST(Prefetch, StaysWithinItsBoundAndEndsWhenItIsLeft) {
  std::atomic<std::int64_t> begun{0};
  {
    data::Prefetch<int> prefetched([&](std::int64_t) { return static_cast<int>(++begun); }, 0, 1'000'000, 3, 4);
    prefetched.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_LE(begun, 1 + 4);
  }
  EXPECT_LE(begun, 1 + 4);
}

TEST(Prefetch, ThrowsWhereTheResultWouldHaveBeen) {
  data::Prefetch<int> prefetched(
      [](std::int64_t i) -> int {
        if (i == 3) throw std::runtime_error("item 3 is broken");
        return static_cast<int>(i);
      },
      0, 6, 2, 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetched.next(), i);
  EXPECT_THROW(prefetched.next(), std::runtime_error);
  EXPECT_EQ(prefetched.next(), 4) << "the others are there";
}

}  // namespace
}  // namespace contextpool::testing
