// numpy.random.default_rng(seed): PCG64 (PCG XSL RR 128/64, O'Neill 2014), seeded through numpy's SeedSequence, and its
// integers below a bound (Lemire 2019), so that resamples drawn here are those that a Python program draws.
#pragma once

#include <cstdint>

namespace contextpool::eval {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed);

  std::uint64_t next64();
  std::uint32_t next32();                    // halves of a next64(), the lower first
  std::uint32_t below(std::uint32_t count);  // rng.integers(count), for 1 <= count < 2^32

 private:
  __extension__ using Uint128 = unsigned __int128;

  Uint128 state_, increment_;
  std::uint32_t half_ = 0;
  bool has_half_ = false;
};

}  // namespace contextpool::eval
