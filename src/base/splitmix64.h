// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): 64 well-mixed bits of a number, the same on every machine.
#pragma once

#include <cstdint>

namespace contextpool {

constexpr std::uint64_t splitmix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace contextpool
