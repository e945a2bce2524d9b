// The CUDA kernels of rotary and rotary_qkv against the formula in float64.
#include "kernels/cuda/rotary/rotary.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Case {
  std::int64_t batch, tokens, heads, features;
  bool turns_of_batch;
  std::size_t skipped;  // values before the memory of the projections
};

// Pieces of 16 bytes, several blocks, single pairs, pairs at an odd address.
constexpr Case kCases[] = {{2, 9, 3, 64, false, 0}, {1, 40, 2, 16, true, 0}, {3, 5, 1, 6, false, 0},
                           {2, 3, 2, 64, true, 1},  {1, 1, 1, 2, false, 0},  {2, 70, 4, 32, false, 0}};

// qkv [batch, tokens, 3, heads, features] -> q, k and v, each by itself; the first two are turned.
void expect_turned(Type type, const Case& c, bool back) {
  const auto row = static_cast<std::size_t>(c.heads * c.features), pairs = static_cast<std::size_t>(c.features / 2);
  const auto tokens = static_cast<std::size_t>(c.batch * c.tokens);
  const auto qkv = draw(type, tokens * 3 * row, 1, c.skipped);
  const auto angle_type = type == Type::f64 ? Type::f64 : Type::f32;
  const auto angles = (c.turns_of_batch ? tokens : static_cast<std::size_t>(c.tokens)) * pairs;
  const auto cos = draw(angle_type, angles, 2), sin = draw(angle_type, angles, 3);
  const auto results = in_any_order([&] {
    std::vector<Values> parts;
    cuda::Rotary in;
    in.type = type;
    in.batch = c.batch;
    in.tokens = c.tokens;
    in.heads = c.heads;
    in.features = c.features;
    in.cos = cos.data();
    in.sin = sin.data();
    in.turn_batch = c.turns_of_batch ? c.tokens * c.features / 2 : 0;
    in.turn_token = c.features / 2;
    in.turn_pair = 1;
    in.back = back;
    for (std::size_t p = 0; p < 3; ++p) {
      parts.emplace_back(type, tokens * row);
      in.part[in.parts++] = {.from = qkv.data<char>() + p * row * bytes_of(type),
                             .from_batch = c.tokens * 3 * c.heads * c.features,
                             .from_token = 3 * c.heads * c.features,
                             .from_head = c.features,
                             .to = parts.back().data(),
                             .to_batch = c.tokens * c.heads * c.features,
                             .to_token = c.heads * c.features,
                             .to_head = c.features,
                             .turns = p < 2};
    }
    EXPECT_EQ(cuda::rotary(in, nullptr), cudaSuccess);
    return parts;
  });
  for (std::size_t p = 0; p < 3; ++p) {
    std::vector<Sum> want(tokens * row);
    for (std::size_t i = 0; i < want.size(); i += 2) {
      const auto token = i / row, from = (token * 3 + p) * row + i % row;
      const double even = qkv[from], odd = qkv[from + 1];
      if (p == 2) {
        want[i] += even;
        want[i + 1] += odd;
        continue;
      }
      const auto turn = (c.turns_of_batch ? token : token % static_cast<std::size_t>(c.tokens)) * pairs +
                        i % row % static_cast<std::size_t>(c.features) / 2;
      const double s = back ? -sin[turn] : sin[turn];
      want[i] += even * cos[turn];
      want[i] += -odd * s;
      want[i + 1] += even * s;
      want[i + 1] += odd * cos[turn];
    }
    SCOPED_TRACE(p);
    expect_near(results[p], want, p == 2 ? 0 : 2);
  }
}

TEST(CudaRotary, IsTheFormulaInStridedParts) {
  for (const auto type : {Type::f64, Type::f32, Type::bf16, Type::f16}) {
    for (const auto& c : kCases) {
      for (const bool back : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name_of(type) << " " << c.features << " features, back " << back);
        expect_turned(type, c, back);
      }
    }
  }
}

}  // namespace
}  // namespace contextpool::testing
