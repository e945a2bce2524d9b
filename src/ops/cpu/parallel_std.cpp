// As many threads as PyTorch would use, but of the standard library: for the thread sanitizer, in place of
// parallel.cpp.
#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "ops/cpu/parallel.h"

namespace contextpool {
namespace {

thread_local bool inside = false;  // of a piece: what it runs in parallel runs on its own thread, as in PyTorch

void run(int threads, int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const auto pieces = inside ? 1 : std::clamp<int64_t>(n / std::max<int64_t>(1, grain), 1, threads);
  if (pieces == 1) {
    body(0, n);
    return;
  }
  std::vector<std::thread> workers;
  for (int64_t k = 0; k < pieces; ++k) {
    workers.emplace_back([&body, begin = n * k / pieces, end = n * (k + 1) / pieces] {
      inside = true;
      body(begin, end);
    });
  }
  for (auto& worker : workers) worker.join();
}

}  // namespace

cpu::Parallel torch_threads() {
  const int threads = at::get_num_threads();
  return {threads, [threads](int64_t n, int64_t grain, const auto& body) { run(threads, n, grain, body); }};
}

}  // namespace contextpool
