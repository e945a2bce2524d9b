// Random numbers as a pure function of what they are for, so that nothing has to be saved to draw them again.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace contextpool::data {

// 64 well-mixed bits of a list of numbers, such as {seed, step, row}: a chain of SplitMix64 finalizers.
std::uint64_t random_bits(std::initializer_list<std::uint64_t> numbers);

// A number in 0 .. count - 1 from 64 random bits, each as likely but for one part in 2^64 / count.
std::int64_t below(std::int64_t count, std::uint64_t bits);

}  // namespace contextpool::data
