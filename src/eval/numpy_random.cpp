#include "eval/numpy_random.h"

#include <array>
#include <bit>

namespace contextpool::eval {
namespace {

constexpr std::size_t kPool = 4;        // words of entropy in a SeedSequence
constexpr std::size_t kStateWords = 8;  // what PCG64 asks for: 4 of 64 bits
constexpr unsigned kHalf = 16, kWord = 32, kLong = 64;

// The hash of SeedSequence: a multiplicative one whose constants change with every call.
class Hash {
 public:
  Hash(std::uint32_t start, std::uint32_t factor) : constant_(start), factor_(factor) {}
  std::uint32_t operator()(std::uint32_t value) {
    value ^= constant_;
    constant_ *= factor_;
    value *= constant_;
    return value ^ (value >> kHalf);
  }

 private:
  std::uint32_t constant_, factor_;
};

std::uint32_t mix(std::uint32_t x, std::uint32_t y) {
  const std::uint32_t mixed = 0xCA01F9DDU * x - 0x4973F715U * y;
  return mixed ^ (mixed >> kHalf);
}

std::array<std::uint64_t, kStateWords / 2> seed_words(std::uint64_t seed) {
  const std::array<std::uint32_t, kPool> entropy = {static_cast<std::uint32_t>(seed),
                                                    static_cast<std::uint32_t>(seed >> kWord), 0, 0};
  std::array<std::uint32_t, kPool> pool{};
  Hash in(0x43B0D7E5U, 0x931E8875U);
  for (std::size_t i = 0; i < kPool; ++i) pool[i] = in(entropy[i]);
  for (std::size_t from = 0; from < kPool; ++from) {
    for (std::size_t to = 0; to < kPool; ++to) {
      if (from != to) pool[to] = mix(pool[to], in(pool[from]));
    }
  }
  Hash out(0x8B51F9DDU, 0x58F38DEDU);
  std::array<std::uint64_t, kStateWords / 2> words{};
  for (std::size_t i = 0; i < kStateWords; ++i) {
    words[i / 2] |= static_cast<std::uint64_t>(out(pool[i % kPool])) << (i % 2 * kWord);
  }
  return words;
}

}  // namespace

NumpyRandom::NumpyRandom(std::uint64_t seed) {
  constexpr std::uint64_t kMultiplierHigh = 0x2360ED051FC65DA4U, kMultiplierLow = 0x4385DF649FCCF645U;
  const auto words = seed_words(seed);
  increment_ = ((Uint128{words[2]} << kLong | words[3]) << 1U) | 1U;
  state_ =
      (increment_ + (Uint128{words[0]} << kLong | words[1])) * (Uint128{kMultiplierHigh} << kLong | kMultiplierLow) +
      increment_;
}

std::uint64_t NumpyRandom::next64() {
  constexpr std::uint64_t kMultiplierHigh = 0x2360ED051FC65DA4U, kMultiplierLow = 0x4385DF649FCCF645U;
  constexpr unsigned kTop = 122;  // the six highest bits say how far to rotate
  state_ = state_ * (Uint128{kMultiplierHigh} << kLong | kMultiplierLow) + increment_;
  const auto folded = static_cast<std::uint64_t>(state_ >> kLong) ^ static_cast<std::uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> kTop));
}

std::uint32_t NumpyRandom::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const auto both = next64();
  has_half_ = true;
  half_ = static_cast<std::uint32_t>(both >> kWord);
  return static_cast<std::uint32_t>(both);
}

std::uint32_t NumpyRandom::below(std::uint32_t count) {
  if (count <= 1) return 0;  // numpy draws nothing for it
  auto product = std::uint64_t{next32()} * count;
  if (static_cast<std::uint32_t>(product) < count) {
    const std::uint32_t threshold = (0U - count) % count;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next32()} * count;
  }
  return static_cast<std::uint32_t>(product >> kWord);
}

}  // namespace contextpool::eval
