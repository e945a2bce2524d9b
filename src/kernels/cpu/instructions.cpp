#include "kernels/cpu/instructions.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace contextpool::cpu {
namespace {

Instructions widest() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return has_avx512 ? Instructions::avx512 : Instructions::avx2;
  }
#endif
  return Instructions::portable;
}

Instructions named(std::string_view word) {
  if (word == "portable") return Instructions::portable;
  if (word == "avx2") return Instructions::avx2;
  if (word == "avx512") return Instructions::avx512;
  throw std::runtime_error("contextpool: CONTEXTPOOL_CPU must be portable, avx2 or avx512, but is " +
                           std::string(word));
}

Instructions choose() {
  const char* const word = std::getenv("CONTEXTPOOL_CPU");
  if (word == nullptr || *word == '\0') return widest();
  const Instructions asked = named(word);
  if (asked > widest()) {
    throw std::runtime_error("contextpool: CONTEXTPOOL_CPU is " + std::string(word) +
                             ", but this machine does not have these instructions: unset it");
  }
  return asked;
}

}  // namespace

Instructions instructions() {
  static const Instructions chosen = choose();
  return chosen;
}

}  // namespace contextpool::cpu
