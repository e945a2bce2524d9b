// pool1d for one instruction set (CONTEXTPOOL_ARCH): unpacks the batch and the storage type. A batch that can occupy
// all threads is dealt out by sequence; else the threads share each sequence.
#include "kernels/cpu/pool1d_arch.h"

#include "kernels/cpu/pool1d_row.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {
namespace {

template <class S>
RowInput<S> row_input(const Pool1d& in, std::int64_t b) {
  using T = typename SumOf<S>::Type;
  return {in.tokens,
          in.targets,
          in.channels,
          in.causal,
          in.algorithm,
          {static_cast<const S*>(in.x) + b * in.x_batch_stride, in.x_token_stride, in.tokens},
          static_cast<const T*>(in.log_weight) + b * in.tokens,
          static_cast<const T*>(in.sigma) + b * in.targets};
}

template <class Body>
void for_sequences(const Pool1d& in, const Parallel& parallel, const Body& body) {
  if (in.batch < parallel.threads) {
    for (std::int64_t b = 0; b < in.batch; ++b) body(b, parallel);
    return;
  }
  const Parallel alone{1, [](std::int64_t n, std::int64_t, const auto& piece) {
                         if (n > 0) piece(0, n);
                       }};
  parallel.run(in.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) body(b, alone);
  });
}

template <class Body>
void with_type(Type type, const Body& body) {
  switch (type) {
    case Type::f64: return body(double{});
    case Type::f32: return body(float{});
    case Type::bf16: return body(bf16{});
    case Type::f16: return body(f16{});
  }
}

}  // namespace

void pool1d(const Pool1d& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    for_sequences(in, parallel, [&](std::int64_t b, const Parallel& threads) {
      Row<S>(row_input<S>(in, b), threads).forward(static_cast<S*>(y) + b * in.targets * in.channels);
    });
  });
}

void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    using T = typename SumOf<S>::Type;
    for_sequences(in, parallel, [&](std::int64_t b, const Parallel& threads) {
      Row<S>(row_input<S>(in, b), threads)
          .backward(static_cast<const S*>(dy) + b * in.targets * in.channels,
                    static_cast<S*>(dx) + b * in.tokens * in.channels, static_cast<T*>(dlog_weight) + b * in.tokens,
                    static_cast<T*>(dsigma) + b * in.targets);
    });
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
