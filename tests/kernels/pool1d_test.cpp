// cpu::pool1d and its backward keep the accuracy contract, on plain memory: over the covering list of cases.
#include "kernels/cpu/pool1d.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/pool1d_arch.h"
#include "pool1d_cases.h"
#include "pool1d_check.h"
#include "pool1d_run.h"

namespace contextpool::testing {
namespace {

TEST(CoveringList, HoldsEveryPairOfChoices) {
  for (const auto& allowed : {every_level(), long_rows()}) {
    auto open = all_pairs(allowed);
    for (const auto& choice : covering_choices(allowed, 1)) {
      for (const auto& pair : pairs_of(choice)) open.erase(pair);
    }
    EXPECT_TRUE(open.empty()) << open.size() << " pairs are missing";
  }
}

class KernelPool1d : public ::testing::TestWithParam<Case> {};

TEST_P(KernelPool1d, IsAccurate) {
  const Problem p = make_problem(GetParam());
  expect_accurate(p, values_of(run(p, threads(2)), p.spec.type));
}

const auto case_name = [](const auto& info) { return name(info.param); };
INSTANTIATE_TEST_SUITE_P(Covering, KernelPool1d, ::testing::ValuesIn(covering_cases(every_level(), 1)), case_name);
INSTANTIATE_TEST_SUITE_P(LongRows, KernelPool1d, ::testing::ValuesIn(covering_cases(long_rows(), 2)), case_name);

// The kernels of every instruction set this machine has, not only of the one that would be picked.
std::vector<std::pair<std::string, Kernels>> instruction_sets() {
  std::vector<std::pair<std::string, Kernels>> list = {
      {"portable", {cpu::portable::pool1d, cpu::portable::pool1d_backward}}};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    list.push_back({"avx2", {cpu::avx2::pool1d, cpu::avx2::pool1d_backward}});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    list.push_back({"avx512", {cpu::avx512::pool1d, cpu::avx512::pool1d_backward}});
  }
#endif
  return list;
}

class InstructionSet : public ::testing::TestWithParam<std::pair<std::string, Kernels>> {};

TEST_P(InstructionSet, IsAccurate) {
  for (const auto& allowed : {every_level(), long_rows()}) {
    for (const auto& c : covering_cases(allowed, 5)) {
      if (c.tokens > 1000) continue;  // the portable one takes its time
      SCOPED_TRACE(name(c));
      const Problem p = make_problem(c);
      expect_accurate(p, values_of(run(p, threads(2), GetParam().second), c.type));
    }
  }
}

TEST_P(InstructionSet, GivesTheSameBitsForAnyThreads) {
  for (const auto type : kTypes) {
    for (const auto algorithm : kAlgorithms) {
      Case c;
      c.tokens = c.targets = 500;
      c.channels = 20;
      c.type = type;
      c.algorithm = algorithm;
      SCOPED_TRACE(name(c));
      const Problem p = make_problem(c);
      const Bytes once = run(p, serial(), GetParam().second);
      for (const int count : {2, 5}) EXPECT_EQ(run(p, threads(count), GetParam().second), once) << count << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, InstructionSet, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace contextpool::testing
