// What the kernels of every operator unpack first: the storage type and the batch.
#pragma once

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"
#include "kernels/type.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// body(a value of the storage type)
template <class Body>
void with_type(Type type, const Body& body) {
  switch (type) {
    case Type::f64: return body(double{});
    case Type::f32: return body(float{});
    case Type::bf16: return body(bf16{});
    case Type::f16: return body(f16{});
  }
}

// body(b, threads) for each b < batch. A batch that can occupy all threads is dealt out; else the threads share each
// of its items.
template <class Body>
void for_batch(std::int64_t batch, const Parallel& parallel, const Body& body) {
  if (batch < parallel.threads) {
    for (std::int64_t b = 0; b < batch; ++b) body(b, parallel);
    return;
  }
  const Parallel alone{1, [](std::int64_t n, std::int64_t, const auto& piece) {
                         if (n > 0) piece(0, n);
                       }};
  parallel.run(batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) body(b, alone);
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
