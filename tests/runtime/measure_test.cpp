// What work costs, and the tools of a step that waits for nothing.
#include "contextpool/runtime/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "../device.h"
#include "contextpool/runtime/casts.h"
#include "contextpool/runtime/device.h"
#include "contextpool/runtime/profile.h"
#include "contextpool/runtime/readback.h"

namespace contextpool::testing {
namespace {

constexpr std::int64_t kMebi = 1 << 20;

torch::Tensor bytes(std::int64_t count) { return torch::empty({count}, torch::dtype(torch::kByte).device(device())); }

TEST(PeakMemory, IsWhatIsHeldAtOnceBeyondWhatWasThere) {
  const auto before = bytes(16 * kMebi);
  torch::Tensor kept;
  const auto peak = runtime::peak_of(device(), [&] {
    kept = bytes(4 * kMebi);
    { const auto first = bytes(8 * kMebi); }
    const auto second = bytes(4 * kMebi);
  });
  EXPECT_GE(peak, 12 * kMebi);
  EXPECT_LT(peak, 13 * kMebi);
}

TEST(Times, AreOfOneCall) {
  int calls = 0;
  const auto times = runtime::time_calls(device(), 4, [&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(calls == 1 ? 30 : 10));
  });
  EXPECT_EQ(calls, 4);
  EXPECT_GE(times.seconds, 0.015);
  EXPECT_GE(times.host_seconds, 0.030) << "of the first call";
  EXPECT_EQ(times.device_seconds.has_value(), !on_cpu());
  ASSERT_EQ(times.processor_seconds.has_value(), on_cpu());
  if (times.processor_seconds) {
    EXPECT_LT(*times.processor_seconds, 0.010) << "who sleeps does not work";
  }
  EXPECT_ANY_THROW(runtime::time_calls(device(), 0, [] {}));
}

TEST(Peak, IsThatOfTheNameAndNotOfALongerOne) {
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA H200", true), 989);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA H100 80GB HBM3", true), 989);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA H100 PCIe", true), 756);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA A100-SXM4-80GB", false), 19.5);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA A10", true), 125);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA L4", true), 121);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA L40S", true), 362);
  EXPECT_EQ(runtime::peak_teraflops("NVIDIA A1000", true), std::nullopt);
  EXPECT_EQ(runtime::peak_teraflops("", true), std::nullopt);
  EXPECT_EQ(runtime::device_name(torch::kCPU), "");
}

double seconds_of(const std::vector<runtime::OperatorTime>& times, const std::string& name) {
  const auto found = std::find_if(times.begin(), times.end(), [&](const auto& t) { return t.name == name; });
  return found == times.end() ? -1 : found->seconds;
}

std::int64_t calls_of(const std::vector<runtime::OperatorTime>& times, const std::string& name) {
  const auto found = std::find_if(times.begin(), times.end(), [&](const auto& t) { return t.name == name; });
  return found == times.end() ? 0 : found->calls;
}

TEST(Profile, GivesEachOperatorItsOwnTime) {
  const auto a = there(torch::randn({512, 512}));
  torch::Tensor y;
  const auto start = std::chrono::steady_clock::now();
  const auto times = runtime::profile(device(), [&] {
    for (int i = 0; i < 5; ++i) y = torch::matmul(a, a);  // which calls mm
  });
  const auto all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(calls_of(times, "aten::mm") % 5, 0);
  EXPECT_GT(seconds_of(times, "aten::mm"), 0);
  EXPECT_LT(seconds_of(times, "aten::matmul"), seconds_of(times, "aten::mm"));
  double sum = 0;
  for (const auto& t : times) sum += t.seconds;
  EXPECT_LT(sum, all) << "nothing is counted twice";
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end(), [](auto& b, auto& c) { return b.seconds > c.seconds; }));
}

TEST(Profile, SeesTheBackwardToo) {
  const auto w = there(torch::randn({64, 64})).requires_grad_();
  const auto times = runtime::profile(device(), [&] { torch::gelu(w).sum().backward(); });
  EXPECT_GE(calls_of(times, "aten::gelu_backward"), 1);
}

TEST(Profile, KnowsTheKindsOfWork) {
  const auto kind = [](const char* name) { return runtime::kind_of_operator(name); };
  EXPECT_EQ(kind("aten::addmm"), "matrix products");
  EXPECT_EQ(kind("aten::convolution_backward"), "convolutions");
  EXPECT_EQ(kind("contextpool::_pool1d_backward"), "pooling");
  EXPECT_EQ(kind("contextpool::rotary"), "fused operators");
  EXPECT_EQ(kind("aten::_scaled_dot_product_flash_attention_for_cpu"), "attention");
  EXPECT_EQ(kind("aten::_fused_adamw_"), "optimizer");
  EXPECT_EQ(kind("aten::native_layer_norm_backward"), "norms");
  EXPECT_EQ(kind("autograd::engine::evaluate_function: AddmmBackward0"), "autograd");
  EXPECT_EQ(kind("aten::_to_copy"), "copies and casts");
  EXPECT_EQ(kind("aten::something"), "other");
}

// Casts of a weight by two passes under autocast.
std::int64_t casts(bool kept, const torch::Tensor& weight, const torch::Tensor& x, torch::Tensor& y) {
  const auto times = runtime::profile(device(), [&] {
    std::optional<runtime::KeepCasts> keep;
    if (kept) keep.emplace();
    for (int part = 0; part < 2; ++part) {
      {
        const runtime::Autocast autocast(device(), /*on=*/true);
        y = torch::matmul(x, weight);
      }
      y.to(torch::kFloat).sum().backward();
    }
  });
  return calls_of(times, on_cpu() ? "aten::_to_copy" : "aten::copy_");
}

TEST(KeepCasts, SparesTheSecondPartAndNoMore) {
  const auto weight = there(torch::randn({16, 16})).requires_grad_();
  const auto x = there(torch::randn({4, 16})).to(torch::kBFloat16);
  torch::Tensor y;
  const auto each = casts(false, weight, x, y);
  const auto gradient = weight.grad().clone();
  weight.mutable_grad().reset();
  EXPECT_EQ(casts(true, weight, x, y), each - 1);
  EXPECT_TRUE(weight.grad().equal(gradient));
  {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  }
  casts(true, weight, x, y);
  EXPECT_EQ(y.abs().max().item<double>(), 0) << "the copies of before are gone";
}

TEST(Readback, BringsTheValueOfItsTime) {
  const auto value = there(torch::tensor({1.5, 2.5}, torch::kDouble));
  const runtime::Readback back(value + 1);
  EXPECT_TRUE(back.tensor().is_cpu());
  EXPECT_TRUE(back.tensor().equal(torch::tensor({2.5, 3.5}, torch::kDouble)));
}

}  // namespace
}  // namespace contextpool::testing
