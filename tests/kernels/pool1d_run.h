// Runs cpu::pool1d and its backward on a Problem, on plain memory, and watches the memory around what it may touch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/pool1d.h"
#include "pool1d_cases.h"
#include "pool1d_check.h"

namespace contextpool::testing {

inline cpu::Parallel serial() {
  return {1, [](std::int64_t n, std::int64_t, const auto& body) {
            if (n > 0) body(0, n);
          }};
}

// As many pieces at once as there are threads, no smaller than the grain.
inline cpu::Parallel threads(int count) {
  return {count, [count](std::int64_t n, std::int64_t grain, const auto& body) {
            const auto pieces = std::clamp<std::int64_t>(n / std::max<std::int64_t>(1, grain), 1, count);
            std::vector<std::thread> workers;
            for (std::int64_t k = 0; k < pieces && n > 0; ++k) {
              workers.emplace_back([&body, begin = n * k / pieces, end = n * (k + 1) / pieces] { body(begin, end); });
            }
            for (auto& worker : workers) worker.join();
          }};
}

// Uneven pieces, last first: a result that depends on where the cuts fall, or on their order, shows.
inline cpu::Parallel uneven_backwards(int count) {
  return {count, [](std::int64_t n, std::int64_t grain, const auto& body) {
            const auto least = std::max<std::int64_t>(1, grain);
            for (std::int64_t end = n, k = 0; end > 0; ++k) {
              const auto wanted = least + k % 3;
              const auto begin = end - wanted < least ? 0 : end - wanted;
              body(begin, end);
              end = begin;
            }
          }};
}

// Memory of exactly `bytes` bytes (so that a sanitizer sees the first byte beyond), filled with a pattern.
inline std::vector<std::byte> filled(std::size_t bytes) { return {bytes, std::byte{0xff}}; }  // 0xffff.. is a NaN

inline std::vector<std::byte> packed(Type type, const std::vector<double>& values) {
  auto memory = filled(values.size() * size_of(type));
  for (std::size_t k = 0; k < values.size(); ++k) put(type, memory.data(), k, values[k]);
  return memory;
}

inline std::vector<double> unpacked(Type type, const std::vector<std::byte>& memory) {
  std::vector<double> values(memory.size() / size_of(type));
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = get(type, memory.data(), k);
  return values;
}

// The outputs as bytes, for comparison to the bit.
struct Bytes {
  std::vector<std::byte> y, dx, dlog_weight, dsigma;
  bool operator==(const Bytes&) const = default;
};

inline Result values_of(const Bytes& bytes, Type type) {
  const Type fine = weight_type(type);
  return {unpacked(type, bytes.y), unpacked(type, bytes.dx), unpacked(fine, bytes.dlog_weight),
          unpacked(fine, bytes.dsigma)};
}

// Output memory between two guards that must keep their pattern.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : memory_(filled(bytes + 2 * kGuard)) {}
  void* data() { return memory_.data() + kGuard; }
  std::vector<std::byte> take() const {
    const auto intact = [](std::byte b) { return b == std::byte{0xff}; };
    EXPECT_TRUE(std::all_of(memory_.begin(), memory_.begin() + kGuard, intact)) << "wrote before an output";
    EXPECT_TRUE(std::all_of(memory_.end() - kGuard, memory_.end(), intact)) << "wrote beyond an output";
    return {memory_.begin() + kGuard, memory_.end() - kGuard};
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 128;
  std::vector<std::byte> memory_;
};

struct Kernels {
  decltype(&cpu::pool1d) forward = cpu::pool1d;
  decltype(&cpu::pool1d_backward) backward = cpu::pool1d_backward;
};

// Layouts on plain memory: contiguous; transposed = the rows of a batch interleaved, x[token][batch][channel];
// sliced = gaps after every token and every row, with NaN in them.
inline Bytes run(const Problem& p, const cpu::Parallel& parallel, const Kernels& kernels = {}) {
  const auto& c = p.spec;
  const Type fine = weight_type(c.type);
  const std::int64_t gap = c.layout == Layout::sliced ? 5 : 0;
  const bool interleaved = c.layout == Layout::transposed;
  const auto token_stride = interleaved ? c.batch * c.channels : c.channels + gap;
  const auto batch_stride = interleaved ? c.channels : c.tokens * token_stride + gap;
  const auto extent = (c.batch - 1) * batch_stride + (c.tokens - 1) * token_stride + c.channels;
  auto x = filled(static_cast<std::size_t>(extent) * size_of(c.type));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t j = 0; j < c.tokens; ++j) {
      for (std::int64_t d = 0; d < c.channels; ++d) {
        put(c.type, x.data(), static_cast<std::size_t>(b * batch_stride + j * token_stride + d),
            p.x[static_cast<std::size_t>((b * c.tokens + j) * c.channels + d)]);
      }
    }
  }
  const auto log_weight = packed(fine, p.log_weight);
  const auto sigma = packed(fine, p.sigma);
  const auto dy = packed(c.type, p.dy);
  Pool1d in;
  in.batch = c.batch;
  in.tokens = c.tokens;
  in.targets = c.targets;
  in.channels = c.channels;
  in.causal = c.causal;
  in.algorithm = c.algorithm;
  in.type = c.type;
  in.x = x.data();
  in.x_batch_stride = batch_stride;
  in.x_token_stride = token_stride;
  in.log_weight = log_weight.data();
  in.sigma = sigma.data();
  Guarded y(dy.size());
  Guarded dx(p.x.size() * size_of(c.type));
  Guarded dlog_weight(log_weight.size());
  Guarded dsigma(sigma.size());
  kernels.forward(in, y.data(), parallel);
  kernels.backward(in, dy.data(), dx.data(), dlog_weight.data(), dsigma.data(), parallel);
  return {y.take(), dx.take(), dlog_weight.take(), dsigma.take()};
}

}  // namespace contextpool::testing
