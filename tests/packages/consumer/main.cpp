// Pools a constant sequence, which must come back as it was, then makes the operator refuse a bad call.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <contextpool/ops/pool1d.h>

#include <cstdio>
#include <exception>

int main() {
  const auto x = at::full({2, 10, 3}, 7.0);
  const auto y = contextpool::pool1d(x, at::zeros({2, 10}), at::full({2, 10}, 2.5), /*causal=*/true);
  if (!at::allclose(x, y)) return 1;
  try {
    contextpool::pool1d(x, at::zeros({2, 10}), at::full({2, 10}, 2.5), false, "fastest");
  } catch (const std::exception& error) {
    std::printf("pooled; refused: %s\n", error.what());
    return 0;
  }
  return 2;
}
