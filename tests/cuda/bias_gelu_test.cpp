// The CUDA kernels of bias_gelu against the formula in float64.
#include "kernels/cuda/bias_gelu/bias_gelu.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Case {
  std::size_t rows, features, skipped = 0;
};

// One share of rows and several; pieces of 16 bytes and single features; several blocks across.
constexpr Case kCases[] = {{1, 8}, {63, 7}, {65, 264}, {200, 33}, {64, 512}, {130, 1}, {9, 16, 1}, {300, 24}};

void expect_formula(Type type, const Case& c) {
  const auto x = draw(type, c.rows * c.features, 1, c.skipped), dy = draw(type, c.rows * c.features, 2);
  const auto bias = draw(Type::f32, c.features, 3);
  const auto results = in_any_order([&] {
    const cuda::BiasGelu in{.rows = static_cast<std::int64_t>(c.rows),
                            .features = static_cast<std::int64_t>(c.features),
                            .type = type,
                            .x = x.data(),
                            .bias = bias.data<float>()};
    std::vector<Values> all;
    all.emplace_back(type, x.size());
    all.emplace_back(type, x.size());
    all.emplace_back(Type::f32, c.features);
    EXPECT_EQ(cuda::bias_gelu(in, all[0].data(), nullptr), cudaSuccess);
    Values workspace(Type::f32, cuda::bias_gelu_backward_workspace(in) / sizeof(float));
    EXPECT_EQ(cuda::bias_gelu_backward(in, dy.data(), all[1].data(), all[2].data<float>(), workspace.data(), nullptr),
              cudaSuccess);
    return all;
  });
  std::vector<Sum> y(x.size()), dx(x.size()), dbias(c.features);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double z = x[i] + bias[i % c.features], cdf = std::erfc(-z / std::sqrt(2.0)) / 2;
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0));
    const double slope = cdf + z * density, of_z = std::fabs(x[i]) + std::fabs(bias[i % c.features]) + 1;
    y[i] = {z * cdf, of_z};
    dx[i] = {dy[i] * slope, std::fabs(dy[i]) * of_z};
    dbias[i % c.features].value += dy[i] * slope;
    dbias[i % c.features].size += std::fabs(dy[i]) * of_z;
  }
  expect_near(results[0], y, 8);
  expect_near(results[1], dx, 8);
  expect_near(results[2], dbias, 8);
}

TEST(CudaBiasGelu, IsTheFormulaWithItsGradients) {
  for (const auto type : {Type::f32, Type::bf16, Type::f16}) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(::testing::Message() << name_of(type) << " " << c.rows << " rows of " << c.features);
      expect_formula(type, c);
    }
  }
}

// More rows than the most shares have of the fewest.
TEST(CudaBiasGelu, AddsUpLongShares) { expect_formula(Type::bf16, {70000, 2}); }

}  // namespace
}  // namespace contextpool::testing
