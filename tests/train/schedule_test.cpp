// train::Schedule: the learning rate of each step, by its formula, and the stages.
#include "contextpool/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../data/files.h"

namespace contextpool::testing {
namespace {

using train::Schedule;
using train::Stage;

Stage stage(std::int64_t steps, double lr, std::int64_t warmup) { return {8, 4, steps, lr, warmup}; }

TEST(Schedule, WarmsUpLinearlyThenStays) {
  const Schedule s({stage(10, 2, 4)}, "constant", 0);
  const std::vector<double> expected = {0.5, 1, 1.5, 2, 2, 2, 2, 2, 2, 2};
  for (int i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(s.lr(i), expected[i]) << i;
}

TEST(Schedule, CosineFallsFromLrToItsFinalShare) {
  const Schedule s({stage(110, 1, 10)}, "cosine", 0.05);
  EXPECT_DOUBLE_EQ(s.lr(9), 1);
  EXPECT_DOUBLE_EQ(s.lr(10), 1);
  EXPECT_NEAR(s.lr(60), 0.525, 1e-12);
  EXPECT_NEAR(s.lr(109), 0.05 + 0.95 * (1 + std::cos(M_PI * 0.99)) / 2, 1e-12);
  for (int i = 10; i < 109; ++i) EXPECT_GT(s.lr(i), s.lr(i + 1)) << i;
}

TEST(Schedule, InverseSquareRootFallsFromTheEndOfTheWarmUp) {
  const Schedule s({stage(1000, 3, 100)}, "inverse_sqrt", 0);
  EXPECT_DOUBLE_EQ(s.lr(99), 3);
  EXPECT_DOUBLE_EQ(s.lr(399), 1.5);
  EXPECT_DOUBLE_EQ(s.lr(899), 1);
}

TEST(Schedule, EachStageOfStagedWarmsUpAnewToItsOwnRate) {
  const Schedule s({stage(6, 4, 2), stage(4, 2, 4), stage(2, 1, 0)}, "staged", 0);
  EXPECT_EQ(s.steps(), 12);
  const std::vector<double> expected = {2, 4, 4, 4, 4, 4, 0.5, 1, 1.5, 2, 1, 1};
  const std::vector<std::int64_t> stages = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2};
  for (int i = 0; i < 12; ++i) {
    EXPECT_DOUBLE_EQ(s.lr(i), expected[i]) << i;
    EXPECT_EQ(s.stage_of(i), stages[i]) << i;
  }
}

TEST(Schedule, OtherSchedulesTakeTheStagesRateAndWarmUpOnce) {
  const Schedule s({stage(6, 4, 2), stage(4, 2, 4)}, "constant", 0);
  EXPECT_DOUBLE_EQ(s.lr(0), 2);
  EXPECT_DOUBLE_EQ(s.lr(5), 4);
  EXPECT_DOUBLE_EQ(s.lr(6), 2);
}

TEST(Schedule, EpochsAreCountedInStepsUpToWhatCanBeCounted) {
  auto epochs = stage(1, 1, 0);
  epochs.epochs = 2.5;
  epochs.warmup_epochs = 0.1;
  EXPECT_EQ(train::counted(epochs, 3).steps, 8);
  EXPECT_EQ(train::counted(epochs, 3).warmup, 1);
  epochs.epochs = 1e9;
  const auto message = message_of([&] { train::counted(epochs, 1'000'000'000); });
  EXPECT_NE(message.find("1e+09 epochs of 1000000000 steps"), std::string::npos) << message;
  epochs.epochs = 1e30;
  EXPECT_NE(message_of([&] { train::counted(epochs, 3); }).find("expected numbers from 0 to 1e+09"), std::string::npos);
}

TEST(Schedule, RefusesWhatCannotBe) {
  EXPECT_NE(message_of([] { const Schedule s({stage(1, 1, 0)}, "cosin", 0); }).find("did you mean \"cosine\""),
            std::string::npos);
  EXPECT_ANY_THROW(Schedule({}, "constant", 0));
  EXPECT_ANY_THROW(Schedule({stage(0, 1, 0)}, "constant", 0));
  EXPECT_ANY_THROW(Schedule({stage(1, -1, 0)}, "constant", 0));
  EXPECT_ANY_THROW(Schedule({stage(1, 1, 0)}, "inverse_sqrt", 0));
  EXPECT_ANY_THROW(Schedule({stage(1, 1, 0)}, "constant", 0).lr(1));
}

}  // namespace
}  // namespace contextpool::testing
