// The instruction set of the CPU kernels: the widest that the machine has, or the one that the environment variable
// CONTEXTPOOL_CPU names (portable, avx2 or avx512), which is read once. Tests use it to run all of them on one machine.
#pragma once

#include <cstdint>

namespace contextpool::cpu {

enum class Instructions : std::uint8_t { portable, avx2, avx512 };

// Throws std::runtime_error for a word that is none of these, or instructions that the machine does not have.
Instructions instructions();

}  // namespace contextpool::cpu
