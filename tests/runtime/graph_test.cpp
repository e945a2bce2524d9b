// Recording of work on a GPU, and what is left of a recording that fails.
#include "contextpool/runtime/graph.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "../device.h"

namespace contextpool::testing {
namespace {

torch::Tensor row(double value) { return torch::full({1000}, value, torch::dtype(torch::kFloat).device(device())); }

class Graph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runtime::Graph::available(device())) GTEST_SKIP() << "needs a GPU";
  }
};

TEST_F(Graph, ReplaysAChainOnInputsThatWereFilled) {
  auto x = row(1);
  torch::Tensor doubled, sum;
  runtime::Graph first(device());
  first.record([&] { doubled = 2 * x; });
  runtime::Graph second(device(), &first);
  second.record([&] { sum = (doubled + 1).sum(); });
  for (const double value : {3.0, -5.0}) {
    x.fill_(value);
    first.replay();
    second.replay();
    EXPECT_EQ(sum.item<double>(), 1000 * (2 * value + 1));
  }
}

// As `accumulate` needs it: what a graph of a chain has freed, the next one uses.
TEST_F(Graph, OfAChainSharesMemoryWithTheOneBefore) {
  const auto work = [] { return (torch::ones({1 << 24}, torch::dtype(torch::kFloat).device(device())) + 1).sum(); };
  const auto reserved = [] {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::getDeviceAllocator(torch::kCUDA)->getDeviceStats(/*device=*/0).reserved_bytes[kAll].current;
  };
  torch::Tensor a, b;
  runtime::Graph first(device());
  first.record([&] { a = work(); });
  const auto held = reserved();
  runtime::Graph second(device(), &first);
  second.record([&] { b = work(); });
  EXPECT_LE(reserved(), held + (1 << 22));
  second.replay();
  EXPECT_EQ(b.item<double>(), 2.0 * (1 << 24));
}

TEST_F(Graph, ThatFailsLeavesTheDeviceUsable) {
  const auto x = row(1);
  for (int i = 0; i < 2; ++i) {
    runtime::Graph graph(device());
    EXPECT_ANY_THROW(graph.record([&] { (void)(x + i).sum().item<double>(); }));  // waits for the device
    runtime::Graph other(device());
    EXPECT_ANY_THROW(other.record([&] { TORCH_CHECK(false, "not for the device's sake"); }));
  }
  EXPECT_EQ((row(2) + x).sum().item<double>(), 3000);
  EXPECT_NE(torch::randn({1000}, x.options()).sum().item<double>(), 0);
  EXPECT_EQ(torch::ones({1000}).pin_memory().sum().item<double>(), 1000);
  torch::Tensor y;
  runtime::Graph graph(device());
  graph.record([&] { y = torch::dropout(x, 0.5, /*train=*/true); });
  torch::manual_seed(1);
  graph.replay();
  const auto once = y.clone();
  torch::manual_seed(1);
  graph.replay();
  EXPECT_TRUE(y.equal(once));
  torch::manual_seed(1);
  EXPECT_TRUE(torch::dropout(x, 0.5, /*train=*/true).equal(once));
}

}  // namespace
}  // namespace contextpool::testing
