// How kernels reach the caller's threads without knowing what they are: run(n, grain, body) calls body(begin, end) on
// disjoint pieces of [0, n), each of at least `grain` items where there are that many, and returns when all are done.
#pragma once

#include <cstdint>
#include <functional>

namespace contextpool::cpu {

struct Parallel {
  int threads = 1;
  std::function<void(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body)>
      run;
};

}  // namespace contextpool::cpu
