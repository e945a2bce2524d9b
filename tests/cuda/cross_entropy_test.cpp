// The CUDA kernels of cross_entropy against the formula in float64.
#include "kernels/cuda/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "values.h"

namespace contextpool::testing {
namespace {

constexpr std::int64_t kIgnored = -100;

struct Problem {
  std::size_t rows, classes;
  Values logits;
  std::vector<std::int64_t> target;
  Values grad;

  Problem(Type type, std::size_t rows, std::size_t classes, std::size_t skipped = 0)
      : rows(rows),
        classes(classes),
        logits(draw(type, rows * classes, 1, skipped, 3)),
        grad(draw(Type::f32, rows, 2)) {
    for (std::size_t r = 0; r < rows; ++r) target.push_back(static_cast<std::int64_t>(r * 7 % classes));
  }
  cuda::CrossEntropy args() const {
    return {.rows = static_cast<std::int64_t>(rows),
            .classes = static_cast<std::int64_t>(classes),
            .ignored = kIgnored,
            .type = logits.type(),
            .logits = logits.data(),
            .target = target.data()};
  }
  // loss, log_sum, dlogits
  std::vector<Values> results(std::size_t skipped = 0) const {
    return in_any_order([&] {
      std::vector<Values> all;
      all.emplace_back(Type::f32, rows);
      all.emplace_back(Type::f32, rows);
      all.emplace_back(logits.type(), rows * classes, skipped);
      EXPECT_EQ(cuda::cross_entropy(args(), all[0].data<float>(), all[1].data<float>(), nullptr), cudaSuccess);
      EXPECT_EQ(cuda::cross_entropy_backward(args(), grad.data<float>(), all[1].data<float>(), all[2].data(), nullptr),
                cudaSuccess);
      return all;
    });
  }
  void expect_formula(const std::vector<Values>& got) const {
    std::vector<Sum> loss(rows), log_sum(rows), dlogits(rows * classes);
    for (std::size_t r = 0; r < rows; ++r) {
      double most = -kInfinity, sum = 0;
      for (std::size_t c = 0; c < classes; ++c) {
        const double z = logits[r * classes + c];
        most = std::isnan(z) || z > most ? z : most;
      }
      for (std::size_t c = 0; c < classes; ++c) sum += std::exp(logits[r * classes + c] - most);
      const double all = most == -kInfinity ? -kInfinity : most + std::log(sum);
      const auto t = target[r];
      const bool valid = t >= 0 && static_cast<std::size_t>(t) < classes;
      const double at_target = valid ? logits[r * classes + static_cast<std::size_t>(t)] : kNan;
      log_sum[r] = {all, std::fabs(all) + 1};
      loss[r] = t == kIgnored ? Sum{0, 0} : Sum{all - at_target, std::fabs(all) + std::fabs(at_target) + 1};
      for (std::size_t c = 0; c < classes; ++c) {
        const double p = std::exp(logits[r * classes + c] - all), hot = static_cast<std::size_t>(t) == c ? 1 : 0;
        const double g = valid ? grad[r] : kNan;
        // expf's argument is rounded too, beside the size of the sum of exponentials' logarithm.
        const double size = std::fabs(g) * (p * (2 + std::fabs(all) + std::fabs(logits[r * classes + c])) + hot);
        dlogits[r * classes + c] = t == kIgnored ? Sum{0, 0} : Sum{g * (p - hot), size};
      }
    }
    expect_near(got[0], loss, 8);
    expect_near(got[1], log_sum, 8);
    expect_near(got[2], dlogits, 8);
  }
};

TEST(CudaCrossEntropy, IsTheFormulaWithItsGradient) {
  for (const auto type : {Type::f32, Type::bf16, Type::f16}) {
    for (const std::size_t classes : {1, 8, 40, 257, 1000, 2048}) {
      for (const std::size_t rows : {1, 9, 37}) {
        SCOPED_TRACE(::testing::Message() << name_of(type) << " " << rows << " rows of " << classes << " classes");
        Problem in(type, rows, classes);
        if (rows > 5) in.target[5] = kIgnored;
        in.expect_formula(in.results());
      }
    }
  }
}

TEST(CudaCrossEntropy, TakesAnyAddress) {
  for (const auto type : {Type::f32, Type::bf16}) {
    for (const auto& [of_logits, of_result] : {std::pair{1, 0}, {0, 1}, {3, 2}}) {
      const Problem in(type, 9, 64, static_cast<std::size_t>(of_logits));
      in.expect_formula(in.results(static_cast<std::size_t>(of_result)));
    }
  }
}

TEST(CudaCrossEntropy, HandlesInfiniteAndNanLogitsAndBadTargets) {
  for (const std::size_t classes : {7, 64}) {
    Problem in(Type::f32, 8, classes);
    const auto at = [&](std::size_t row, std::size_t c) { return row * classes + c; };
    in.logits.set(at(0, 3), -kInfinity);                                                // one class has no share
    for (std::size_t c = 0; c + 1 < classes; ++c) in.logits.set(at(1, c), -kInfinity);  // all but one
    in.target[1] = static_cast<std::int64_t>(classes) - 1;
    in.logits.set(at(2, 2), kNan);
    in.target[3] = static_cast<std::int64_t>(classes);
    in.target[4] = -1;
    in.logits.set(at(5, 1), kNan);
    in.target[5] = kIgnored;
    in.logits.set(at(6, 0), 1e30);
    const auto got = in.results();
    for (const std::size_t row : {2, 3, 4}) EXPECT_TRUE(std::isnan(got[0][row])) << row;
    EXPECT_EQ(got[0][1], 0);
    EXPECT_EQ(got[0][5], 0);
    for (std::size_t c = 0; c < classes; ++c) {
      for (const std::size_t row : {2, 3, 4}) EXPECT_TRUE(std::isnan(got[2][at(row, c)])) << row << " " << c;
      EXPECT_EQ(got[2][at(5, c)], 0) << c;
    }
    EXPECT_EQ(got[2][at(0, 3)], 0);
    EXPECT_EQ(got[2][at(6, 0)], in.target[6] == 0 ? 0 : in.grad[6]);
    for (const std::size_t row : {0, 1, 6, 7}) EXPECT_TRUE(std::isfinite(got[0][row])) << row;
  }
}

TEST(CudaCrossEntropy, RefusesFloat64) {
  const Problem in(Type::f64, 2, 4);
  EXPECT_EQ(cuda::cross_entropy(in.args(), nullptr, nullptr, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace contextpool::testing
