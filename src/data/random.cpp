#include "contextpool/data/random.h"

#include "base/splitmix64.h"

namespace contextpool::data {
namespace {

__extension__ using Uint128 = unsigned __int128;
constexpr int kWord = 64;

}  // namespace

std::uint64_t random_bits(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t bits = 0;
  for (const auto number : numbers) bits = splitmix64(bits ^ splitmix64(number));
  return bits;
}

std::int64_t below(std::int64_t count, std::uint64_t bits) {
  return static_cast<std::int64_t>((Uint128{bits} * static_cast<std::uint64_t>(count)) >> kWord);
}

}  // namespace contextpool::data
