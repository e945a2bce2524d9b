// pool1d to the bit: every run alike, any number of threads alike, and in the causal case nothing of what comes later
// shows in what came before.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "contextpool/ops/pool1d.h"
#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

// dy everywhere: every target's share of the gradients counts.
Inputs dense_inputs(const Case& c, at::DeviceType device) {
  Problem p = make_problem(c);
  Random random(17);
  for (double& v : p.dy) v = round_to(c.type, random.normal());
  return tensors_of(p, device);
}

class Pool1dRepeats : public EachSetting {};

TEST_P(Pool1dRepeats, EveryRunGivesTheSameBits) {
  each([this] {
    Case c = spec(setting, 2, linear() ? 1500 : 400, 16);
    c.logits = Logits::light_clusters;
    const Inputs in = dense_inputs(c, device());
    const Outputs once = run(in, c);
    for (int k = 0; k < 3; ++k) expect_same(run(in, c), once);
  });
}

TEST_P(Pool1dRepeats, AnyNumberOfThreadsGivesTheSameBits) {
  each([this] {
    if (device() != at::kCPU) GTEST_SKIP() << "threads are the CPU's";
    struct Restore {
      int threads = at::get_num_threads();
      ~Restore() { at::set_num_threads(threads); }
    } restore;
    for (const std::int64_t batch : {1, 3}) {
      const Case c = spec(setting, batch, (linear() ? 2400 : 600) / batch, 40);
      const Inputs in = dense_inputs(c, at::kCPU);
      at::set_num_threads(1);
      const Outputs once = run(in, c);
      for (const int threads : {2, 3, 5}) {
        SCOPED_TRACE(std::to_string(threads) + " threads");
        at::set_num_threads(threads);
        expect_same(run(in, c), once);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dRepeats, settings(), setting_name);

// Ways to change what comes after position t.
struct Change {
  const char* name;
  std::function<void(Inputs&, int64_t first)> apply;  // on clones, from position `first` on
};

const std::vector<Change>& changes() {
  static const auto from = [](const at::Tensor& t, int64_t first) { return t.slice(1, first); };
  static const std::vector<Change> list = {
      {"other features", [](Inputs& in, int64_t t) { from(in.x, t).mul_(-3).add_(1); }},
      {"large features", [](Inputs& in, int64_t t) { from(in.x, t).fill_(3e4); }},
      {"NaN features", [](Inputs& in, int64_t t) { from(in.x, t).fill_(kNaN); }},
      {"infinite features", [](Inputs& in, int64_t t) { from(in.x, t).fill_(kInf); }},
      {"other weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).mul_(-1).add_(0.3); }},
      {"heavy weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(60); }},
      {"huge weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(1e30); }},
      {"tiny weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(-1e30); }},
      {"masked", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(-kInf); }},
      {"NaN weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(kNaN); }},
      {"infinite weights", [](Inputs& in, int64_t t) { from(in.log_weight, t).fill_(kInf); }},
      {"other sizes", [](Inputs& in, int64_t t) { from(in.sigma, t).mul_(2.7).add_(0.4); }},
      {"huge sizes", [](Inputs& in, int64_t t) { from(in.sigma, t).fill_(1e30); }},
      {"infinite sizes", [](Inputs& in, int64_t t) { from(in.sigma, t).fill_(kInf); }},
      {"no sizes", [](Inputs& in, int64_t t) { from(in.sigma, t).fill_(0); }},
      {"NaN sizes", [](Inputs& in, int64_t t) { from(in.sigma, t).fill_(kNaN); }},
      {"NaN everything",
       [](Inputs& in, int64_t t) {
         for (const auto& tensor : {in.x, in.log_weight, in.sigma}) from(tensor, t).fill_(kNaN);
       }},
  };
  return list;
}

// Later sizes of one kind each: how many targets there are of each kind decides how the work is shared out.
const std::vector<Change>& other_kinds() {
  static const auto all = [](double size) {
    return [size](Inputs& in, int64_t t) { in.sigma.slice(1, t).fill_(size); };
  };
  static const std::vector<Change> list = {
      {"narrow", all(2)}, {"of 30", all(30)}, {"of 60", all(60)}, {"wide", all(400)}};
  return list;
}

class Pool1dCausal : public EachSetting {
 protected:
  // Every change after each cut; dy is 0 after it, so that the earlier targets alone have a share in the gradients (0
  // has none, even where the weights it would be multiplied with are NaN).
  void expect_past_unchanged(const Case& c, const std::vector<int64_t>& cuts,
                             const std::vector<Change>& later_changes = changes()) const {
    const Inputs in = dense_inputs(c, device());
    for (const int64_t cut : cuts) {
      Inputs before = {in.x, in.log_weight, in.sigma, in.dy.clone()};
      before.dy.slice(1, cut).zero_();
      const Outputs want = run(before, c);
      for (const auto& change : later_changes) {
        SCOPED_TRACE(std::string(change.name) + " from " + std::to_string(cut) + " of " + std::to_string(c.tokens));
        Inputs after = {in.x.clone(), in.log_weight.clone(), in.sigma.clone(), before.dy};
        change.apply(after, cut);
        const Outputs got = run(after, c);
        const auto past = [&](const at::Tensor& t) { return t.slice(1, 0, cut); };
        EXPECT_TRUE(same(past(got.y), past(want.y))) << "y";
        EXPECT_TRUE(same(past(got.dx), past(want.dx))) << "dx";
        EXPECT_TRUE(same(past(got.dlog_weight), past(want.dlog_weight))) << "dlog_weight";
        EXPECT_TRUE(same(past(got.dsigma), past(want.dsigma))) << "dsigma";
      }
    }
  }
};

TEST_P(Pool1dCausal, NothingLaterShowsInAShortRow) {
  each([this] {
    Case c = spec(setting, 2, 45, 3);
    if (!c.causal) return;
    c.logits = Logits::spread_5;
    expect_past_unchanged(c, {1, 23, 32, 44});
  });
}

TEST_P(Pool1dCausal, NothingLaterShowsInALongRow) {
  each([this] {
    Case c = spec(setting, 1, linear() ? 1111 : 333, 4);
    if (!c.causal) return;
    c.sizes = Sizes::proportional;
    c.logits = Logits::heavy_clusters;
    expect_past_unchanged(c, {c.tokens / 2 + 1, c.tokens - 70});
  });
}

TEST_P(Pool1dCausal, NoKindOfLaterSizesShows) {
  each([this] {
    Case c = spec(setting, 1, linear() ? 4000 : 333, 64);
    if (!c.causal) return;
    c.sizes = Sizes::proportional;
    expect_past_unchanged(c, {c.tokens / 4, c.tokens / 2 + 3, c.tokens - 300}, other_kinds());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dCausal, settings(), setting_name);

}  // namespace
}  // namespace contextpool::testing
