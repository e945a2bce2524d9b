// The CUDA kernels of add_layer_norm against the formula in float64.
#include "kernels/cuda/add_layer_norm/add_layer_norm.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Types {
  Type sum, branch, normed;
};
constexpr Types kTypes[] = {{Type::f32, Type::bf16, Type::bf16}, {Type::f32, Type::bf16, Type::f32},
                            {Type::f32, Type::f32, Type::bf16},  {Type::f32, Type::f32, Type::f32},
                            {Type::f32, Type::f16, Type::f16},   {Type::bf16, Type::bf16, Type::bf16},
                            {Type::f16, Type::f16, Type::f16}};

struct Case {
  std::size_t rows, features;
};
// Every number of pieces, whole and not; rows that fill no block.
constexpr Case kCases[] = {{1, 4}, {5, 128}, {9, 132}, {6, 512}, {7, 600}, {3, 768}, {5, 1024}};
constexpr double kEps = 1e-5;

struct Problem {
  Types types;
  std::size_t rows, features;
  Values x, branch, weight, bias, dsum, dnormed;

  Problem(const Types& t, const Case& c)
      : types(t),
        rows(c.rows),
        features(c.features),
        x(draw(t.sum, rows * features, 1)),
        branch(draw(t.branch, rows * features, 2)),
        weight(draw(Type::f32, features, 3)),
        bias(draw(Type::f32, features, 4)),
        dsum(draw(t.sum, rows * features, 5)),
        dnormed(draw(t.normed, rows * features, 6)) {}

  cuda::AddLayerNorm args() const {
    return {.rows = static_cast<std::int64_t>(rows),
            .features = static_cast<int>(features),
            .eps = static_cast<float>(kEps),
            .sum_type = types.sum,
            .branch_type = types.branch,
            .normed_type = types.normed,
            .weight = weight.data<float>(),
            .bias = bias.data<float>()};
  }

  // sum, normed, mean, rstd, then dx, dweight, dbias and dbranch
  std::vector<Values> results(bool more) const {
    return in_any_order([&] {
      std::vector<Values> all;
      for (const auto type : {types.sum, types.normed}) all.emplace_back(type, x.size());
      for (int i = 0; i < 2; ++i) all.emplace_back(Type::f32, rows);
      all.emplace_back(types.sum, x.size());
      for (int i = 0; i < 2; ++i) all.emplace_back(Type::f32, features);
      all.emplace_back(types.branch, x.size());
      const auto in = args();
      EXPECT_TRUE(cuda::add_layer_norm_fits(in));
      EXPECT_EQ(cuda::add_layer_norm(in, x.data(), branch.data(), all[0].data(), all[1].data(), all[2].data<float>(),
                                     all[3].data<float>(), nullptr),
                cudaSuccess);
      Values workspace(Type::f32, cuda::add_layer_norm_backward_workspace(in) / sizeof(float));
      EXPECT_EQ(cuda::add_layer_norm_backward(in, more ? dsum.data() : nullptr, dnormed.data(), all[0].data(),
                                              all[2].data<float>(), all[3].data<float>(), all[4].data(),
                                              more ? all[7].data() : nullptr, all[5].data<float>(),
                                              all[6].data<float>(), workspace.data(), nullptr),
                cudaSuccess);
      return all;
    });
  }
};

void expect_formula(const Problem& in, bool more) {
  const auto got = in.results(more);
  const auto n = static_cast<double>(in.features);
  std::vector<Sum> sum(in.x.size()), normed(sum.size()), mean(in.rows), rstd(in.rows), dx(sum.size()),
      dweight(in.features), dbias(in.features);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const auto at = r * in.features;
    for (std::size_t c = 0; c < in.features; ++c) {
      const double exact = in.x[at + c] + in.branch[at + c];
      sum[at + c] = {exact, std::fabs(exact)};
      mean[r] += got[0][at + c] / n;  // statistics are of the sum as it was stored
    }
    double squares = 0, plain = 0, along = 0, size = 0;
    for (std::size_t c = 0; c < in.features; ++c) squares += std::pow(got[0][at + c] - mean[r].value, 2);
    const double scale = 1 / std::sqrt(squares / n + kEps);
    rstd[r] = {scale, scale * (1 + mean[r].size * scale)};
    for (std::size_t c = 0; c < in.features; ++c) {
      const double h = (got[0][at + c] - mean[r].value) * scale;
      const double of_h = (std::fabs(got[0][at + c]) + mean[r].size) * scale;
      normed[at + c] = {h * in.weight[c] + in.bias[c], (of_h + std::fabs(h)) * std::fabs(in.weight[c]) + 1};
      const double g = in.dnormed[at + c];
      dweight[c].value += g * h;
      dweight[c].size += std::fabs(g) * of_h;
      dbias[c] += g;
      plain += g * in.weight[c] / n;
      along += g * in.weight[c] * h / n;
      size += std::fabs(g * in.weight[c]) * (1 + of_h) / n;
    }
    for (std::size_t c = 0; c < in.features; ++c) {
      const double h = (got[0][at + c] - mean[r].value) * scale, g = in.dnormed[at + c] * in.weight[c];
      const double before = more ? in.dsum[at + c] : 0;
      dx[at + c] = {
          before + scale * (g - plain - h * along),
          std::fabs(before) + scale * (std::fabs(g) + size * (1 + std::fabs(h))) * (1 + mean[r].size * scale)};
    }
  }
  expect_near(got[0], sum, 1);
  expect_near(got[1], normed, 16);
  expect_near(got[2], mean, 16);
  expect_near(got[3], rstd, 16);
  expect_near(got[4], dx, 32);
  expect_near(got[5], dweight, 32);
  expect_near(got[6], dbias, 32);
  if (more) expect_near(got[7], dx, 32);
}

TEST(CudaAddLayerNorm, IsTheFormulaWithItsGradients) {
  for (const auto& types : kTypes) {
    for (const auto& c : kCases) {
      for (const bool more : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name_of(types.sum) << " " << name_of(types.branch) << " "
                                          << name_of(types.normed) << " " << c.rows << " rows of " << c.features);
        expect_formula(Problem(types, c), more);
      }
    }
  }
}

// More rows than the backward has warps.
TEST(CudaAddLayerNorm, AddsUpRowsOfAWarp) { expect_formula(Problem(kTypes[0], {2100, 8}), true); }

TEST(CudaAddLayerNorm, SaysWhatItHasNoKernelsFor) {
  const Problem in(kTypes[3], {2, 8});
  const auto fits = [&](auto change) {
    auto args = in.args();
    change(args);
    return cuda::add_layer_norm_fits(args);
  };
  EXPECT_TRUE(fits([](auto&) {}));
  EXPECT_FALSE(fits([](auto& a) { a.features = 6; }));
  EXPECT_FALSE(fits([](auto& a) { a.features = 1028; }));
  EXPECT_FALSE(fits([](auto& a) { a.sum_type = Type::f64; }));
}

}  // namespace
}  // namespace contextpool::testing
