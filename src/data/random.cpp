#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr int kWord = 64;

std::uint64_t finalize(std::uint64_t z) {
  constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15, kFirst = 0xbf58476d1ce4e5b9, kSecond = 0x94d049bb133111eb;
  z += kGamma;
  z = (z ^ (z >> 30)) * kFirst;
  z = (z ^ (z >> 27)) * kSecond;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t random_bits(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t bits = 0;
  for (const auto number : numbers) bits = finalize(bits ^ finalize(number));
  return bits;
}

std::int64_t below(std::int64_t count, std::uint64_t bits) {
  return static_cast<std::int64_t>((Wide{bits} * static_cast<std::uint64_t>(count)) >> kWord);
}

}  // namespace contextpool::data
