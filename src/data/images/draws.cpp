#include "contextpool/data/images/draws.h"

#include <cmath>
#include <numbers>

#include "contextpool/data/random.h"

namespace contextpool::data {

Draws::Draws(std::int64_t seed, std::int64_t epoch, std::int64_t index, Purpose purpose)
    : key_(random_bits({static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch),
                        static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(purpose)})) {}

std::uint64_t Draws::bits() { return random_bits({key_, count_++}); }

double Draws::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double Draws::uniform(double low, double high) { return low + (high - low) * uniform(); }

std::int64_t Draws::below(std::int64_t count) { return data::below(count, bits()); }

double Draws::normal() {  // Box and Muller; the logarithm's argument is in (0, 1]
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// Marsaglia and Tsang (2000); shapes below 1 from shape + 1.
double Draws::gamma(double shape) {
  if (shape < 1) return gamma(shape + 1) * std::pow(1 - uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - uniform()) < 0.5 * x * x + d * (1 - v + std::log(v))) return d * v;
  }
}

double Draws::beta(double a, double b) {
  const double x = gamma(a), y = gamma(b);
  return x + y > 0 ? x / (x + y) : 0.5;  // both underflow only for tiny a and b
}

}  // namespace contextpool::data
