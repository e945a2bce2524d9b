// add_layer_norm and bias_gelu against the formulas in float64: values and gradients at most twice as far off as
// PyTorch's own operators, in the types that a training step has; and the same bits in every run.
#include "contextpool/ops/add_layer_norm.h"

#include "contextpool/ops/bias_gelu.h"
#include "step_cases.h"

namespace contextpool::testing {
namespace {

struct Types {
  torch::ScalarType x, branch, normed;
};
constexpr std::array kTypes = {Types{torch::kFloat64, torch::kFloat64, torch::kFloat64},
                               Types{torch::kFloat32, torch::kFloat32, torch::kFloat32},
                               Types{torch::kFloat32, torch::kBFloat16, torch::kBFloat16},
                               Types{torch::kFloat32, torch::kBFloat16, torch::kFloat32},
                               Types{torch::kFloat32, torch::kFloat32, torch::kBFloat16},
                               Types{torch::kFloat32, torch::kHalf, torch::kHalf},
                               Types{torch::kBFloat16, torch::kFloat32, torch::kFloat32},
                               Types{torch::kBFloat16, torch::kBFloat16, torch::kBFloat16},
                               Types{torch::kHalf, torch::kHalf, torch::kHalf}};

std::vector<Tensor> norm_inputs(const Types& types, int64_t rows, int64_t width) {
  const auto fine = types.x == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  return {draw({rows, width}, types.x, 2) + 1, draw({rows, width}, types.branch), draw({width}, fine),
          draw({width}, fine)};
}

TEST(AddLayerNorm, IsAsAccurateAsPyTorchForwardAndBackward) {
  for (const auto& types : kTypes) {
    for (const int64_t width : {4, 7, 64, 130, 384, 512, 768, 1024, 1028}) {
      for (const int64_t rows : {1, 77}) {
        SCOPED_TRACE(std::to_string(width) + " features, " + std::to_string(rows) + " rows, types " +
                     c10::toString(types.x) + " " + c10::toString(types.branch) + " " + c10::toString(types.normed));
        expect_as_accurate(
            norm_inputs(types, rows, width), {draw({rows, width}, torch::kFloat64), draw({rows, width}, types.normed)},
            [&](const auto& in) {
              const auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3], 1e-5, types.normed);
              EXPECT_EQ(normed.scalar_type(), types.normed);
              return std::vector{sum, normed};
            },
            [&](const auto& in) {
              const auto sum = in[0] + in[1];
              return std::vector{sum, torch::layer_norm(sum.to(in[2].scalar_type()), {width}, in[2], in[3])};
            });
      }
    }
  }
}

TEST(AddLayerNorm, SumsManyRowsToTheSameBits) {
  const auto inputs = norm_inputs(kTypes[2], 5000, 512);
  const std::vector<Tensor> grads = {draw({5000, 512}, torch::kFloat32), draw({5000, 512}, torch::kBFloat16)};
  const auto run = [&] {
    return with_gradients(leaves(inputs), grads, [](const auto& in) {
      const auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3], 1e-5, torch::kBFloat16);
      return std::vector{sum, normed};
    });
  };
  const auto first = run(), second = run();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i])) << i;
}

TEST(AddLayerNorm, GivesTheGradientOfTheSumAlone) {
  const auto in = leaves(norm_inputs(kTypes[2], 3, 8));
  const auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3]);
  const auto grads = torch::autograd::grad({sum.sum()}, {in[0], in[1]});
  EXPECT_TRUE(torch::equal(grads[0], torch::ones_like(in[0])));
  EXPECT_EQ(grads[1].scalar_type(), torch::kBFloat16);
}

TEST(AddLayerNorm, ReadsAnyLayout) {
  const auto in = norm_inputs(kTypes[1], 12, 16);
  const auto x = in[0].view({3, 4, 16}).transpose(0, 1), branch = in[1].view({3, 4, 16}).transpose(0, 1);
  const auto got = add_layer_norm(x, branch, in[2], in[3]);
  EXPECT_TRUE(got.sum.is_contiguous() && got.normed.is_contiguous());
  EXPECT_TRUE(torch::equal(got.normed, add_layer_norm(x.contiguous(), branch.contiguous(), in[2], in[3]).normed));
}

TEST(BiasGelu, IsAsAccurateAsPyTorchForwardAndBackward) {
  for (const auto type : {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const int64_t width : {1, 7, 64, 264, 2048}) {
      for (const int64_t rows : {1, 70, 1000}) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(width) + " " + std::to_string(rows));
        const auto fine = type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
        expect_as_accurate(
            {draw({rows, width}, type, 2), draw({width}, fine)}, {draw({rows, width}, type)},
            [](const auto& in) { return std::vector{bias_gelu(in[0], in[1])}; },
            [](const auto& in) { return std::vector{torch::gelu(in[0] + in[1].to(in[0].scalar_type()))}; });
      }
    }
  }
}

TEST(BiasGelu, SumsManyRowsToTheSameBits) {
  const std::vector<Tensor> inputs = {draw({5000, 256}, torch::kBFloat16), draw({256}, torch::kFloat32)};
  const std::vector<Tensor> grads = {draw({5000, 256}, torch::kBFloat16)};
  const auto run = [&] {
    return with_gradients(leaves(inputs), grads, [](const auto& in) { return std::vector{bias_gelu(in[0], in[1])}; });
  };
  const auto first = run(), second = run();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i])) << i;
}

}  // namespace
}  // namespace contextpool::testing
