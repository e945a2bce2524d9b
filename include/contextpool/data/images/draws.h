// Random numbers for one picture, or one batch: a stream that is a pure function of (seed, epoch, index, purpose), so
// that threads, ranks and the order of work change nothing, and one more choice leaves the others as they were.
#pragma once

#include <cstdint>

namespace contextpool::data {

// What a stream is for. Runs depend on the numbers: never renumber.
enum class Purpose : std::uint64_t { crop = 1, flip, pad_crop, operations, erase, erase_noise, mix, order, shape };

class Draws {
 public:
  Draws(std::int64_t seed, std::int64_t epoch, std::int64_t index, Purpose purpose);

  std::uint64_t bits();
  double uniform();  // in [0, 1), 53 bits
  double uniform(double low, double high);
  std::int64_t below(std::int64_t count);  // in 0 ... count - 1
  bool chance(double probability) { return uniform() < probability; }
  double normal();                  // mean 0, variance 1
  double beta(double a, double b);  // by two gamma variates

 private:
  double gamma(double shape);

  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

}  // namespace contextpool::data
