// rotary and rotary_qkv against the formula in float64: values, gradients, any layout, any dtype; and their errors.
#include "contextpool/ops/rotary.h"

#include "step_cases.h"

namespace contextpool::testing {
namespace {

constexpr std::array kTypes = {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kHalf};

struct Turns {
  Tensor cos, sin;
};

Turns turns_of(torch::IntArrayRef sizes, torch::ScalarType features) {
  const auto type = features == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto angle = draw(sizes, torch::kFloat64, 3);
  return {angle.cos().to(type), angle.sin().to(type)};
}

// In the type of x, one operation after the other.
Tensor formula(const Tensor& x, const Turns& turns) {
  auto sizes = turns.cos.sizes().vec();
  sizes.insert(sizes.end() - 1, static_cast<std::size_t>(x.dim() - 3), 1);
  const auto promoted = x.to(torch::promote_types(x.scalar_type(), turns.cos.scalar_type()));
  const auto even = promoted.slice(-1, 0, torch::nullopt, 2), odd = promoted.slice(-1, 1, torch::nullopt, 2);
  const auto c = turns.cos.view(sizes), s = turns.sin.view(sizes);
  return torch::stack({even * c - odd * s, even * s + odd * c}, -1).flatten(-2).to(x.scalar_type());
}

TEST(Rotary, TurnsPairsOfFeaturesAndItsGradientTurnsBack) {
  for (const auto type : kTypes) {
    for (const int64_t width : {2, 6, 64}) {
      for (const bool each_row : {false, true}) {
        const auto turns = each_row ? turns_of({2, 5, width / 2}, type) : turns_of({5, width / 2}, type);
        expect_as_accurate(
            {draw({2, 5, 2, 3, width}, type)}, {draw({2, 5, 2, 3, width}, type)},
            [&](const auto& in) { return std::vector{rotary(in[0], turns.cos, turns.sin)}; },
            [&](const auto& in) { return std::vector{formula(in[0], turns)}; });
      }
    }
  }
}

TEST(Rotary, ReadsAnyLayoutAndGivesAContiguousResult) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const auto turns = turns_of({7, 8}, type);
    const auto whole = draw({2, 7, 3, 4, 16}, type);
    const auto odd = draw({2, 7, 1 + 4 * 16}, type).slice(2, 1).unflatten(2, {4, 16});
    for (const auto& x : {whole.narrow(2, 0, 2), whole.select(2, 1),
                          whole.select(2, 1).transpose(2, 3).contiguous().transpose(2, 3), odd}) {
      const auto y = rotary(x, turns.cos, turns.sin);
      EXPECT_TRUE(y.is_contiguous());
      EXPECT_TRUE(torch::equal(y, rotary(x.contiguous(), turns.cos, turns.sin)));
    }
    // Cosines and sines as the parts of complex numbers.
    const auto both = torch::stack({turns.cos, turns.sin}, -1);
    EXPECT_TRUE(
        torch::equal(rotary(whole, both.select(-1, 0), both.select(-1, 1)), rotary(whole, turns.cos, turns.sin)));
  }
}

TEST(Rotary, TurnsBackWhatItTurned) {
  const auto turns = turns_of({5, 4}, torch::kFloat64);
  const auto x = draw({2, 5, 3, 8}, torch::kFloat64);
  EXPECT_LT(error_of(rotary(rotary(x, turns.cos, turns.sin), turns.cos, turns.sin, /*back=*/true), x), 1e-14);
}

TEST(RotaryQkv, TurnsQueriesAndKeysAndLeavesValues) {
  for (const auto type : kTypes) {
    for (const int64_t width : {2, 6, 64}) {
      const auto turns = turns_of({5, width / 2}, type);
      const auto grad = [&] { return draw({2, 5, 3, width}, type); };
      expect_as_accurate(
          {draw({2, 5, 3, 3, width}, type)}, {grad(), grad(), grad()},
          [&](const auto& in) {
            const auto [q, k, v] = rotary_qkv(in[0], turns.cos, turns.sin);
            return std::vector{q, k, v};
          },
          [&](const auto& in) {
            return std::vector{formula(in[0].select(2, 0), turns), formula(in[0].select(2, 1), turns),
                               in[0].select(2, 2)};
          });
    }
  }
}

TEST(RotaryQkv, TakesGradientsOfAnyLayout) {
  const auto turns = turns_of({5, 4}, torch::kFloat32);
  const auto qkv = draw({2, 5, 3, 4, 8}, torch::kFloat32).requires_grad_();
  const auto gradient = [&](bool transposed) {
    torch::manual_seed(1);
    const auto [q, k, v] = rotary_qkv(qkv, turns.cos, turns.sin);
    const auto grad = [&] {
      const auto g = draw({2, 4, 5, 8}, torch::kFloat32);
      return transposed ? g.transpose(1, 2) : g.transpose(1, 2).contiguous();
    };
    const auto gq = grad(), gk = grad(), gv = grad();
    return torch::autograd::grad({q, k, v}, {qkv}, {gq, gk, gv})[0];
  };
  EXPECT_LT(error_of(gradient(true), gradient(false)), 4 * rounding(torch::kFloat32));
}

TEST(Rotary, SaysWhatIsWrongWithItsInputs) {
  const auto turns = turns_of({5, 4}, torch::kFloat32);
  const auto refused = [](const auto& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "expected an error with: " << part;
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what_without_backtrace()).find(part), std::string::npos) << e.what_without_backtrace();
    }
  };
  const auto x = [](torch::IntArrayRef sizes) { return draw(sizes, torch::kFloat32); };
  refused([&] { rotary(x({2, 5, 6}), turns.cos, turns.sin); }, "x has 6 features, which must be twice");
  refused([&] { rotary(x({2, 6, 8}), turns.cos, turns.sin); }, "x has 6 tokens but cos has 5");
  refused([&] { rotary(x({5, 8}), turns.cos, turns.sin); }, "x must be [batch, tokens, ..., features]");
  refused([&] { rotary(x({2, 5, 8}).to(torch::kFloat64), turns.cos, turns.sin); }, "cos and sin must be Double");
  refused([&] { rotary_qkv(x({2, 5, 2, 3, 8}), turns.cos, turns.sin); }, "[batch, tokens, 3, heads, features]");
  refused([&] { rotary(x({2, 5, 8}), turns.cos.clone().requires_grad_(), turns.sin); }, "constants");
}

}  // namespace
}  // namespace contextpool::testing
