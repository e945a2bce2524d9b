#include "contextpool/data/noise.h"

#include "contextpool/data/random.h"

namespace contextpool::data {

std::string noise_text(std::int64_t size) {
  constexpr std::uint64_t kLetters = 26;
  std::string text(static_cast<std::size_t>(size), ' ');
  std::uint64_t i = 0;
  for (auto& c : text) c = static_cast<char>('a' + random_bits({i++}) % kLetters);
  return text;
}

}  // namespace contextpool::data
