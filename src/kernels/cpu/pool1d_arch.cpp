// pool1d for one instruction set (CONTEXTPOOL_ARCH): unpacks the batch and the storage type.
#include "kernels/cpu/pool1d_arch.h"

#include "kernels/cpu/batch.h"
#include "kernels/cpu/pool1d_row.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {
namespace {

template <class S>
RowInput<S> row_input(const Pool1d& in, std::int64_t b) {
  using T = typename SumOf<S>::Type;
  return {in.tokens,
          in.targets,
          in.channels,
          in.groups * in.channels,
          in.causal,
          in.algorithm,
          {static_cast<const S*>(in.x) + b / in.groups * in.x_batch_stride + b % in.groups * in.x_group_stride,
           in.x_token_stride, in.tokens},
          static_cast<const T*>(in.log_weight) + b * in.tokens,
          static_cast<const T*>(in.sigma) + b * in.targets};
}

// Where sequence b begins in y, dy or dx, which have so many rows a sequence.
std::int64_t start_of(const Pool1d& in, std::int64_t b, std::int64_t rows) {
  return (b / in.groups * rows * in.groups + b % in.groups) * in.channels;
}

}  // namespace

void pool1d(const Pool1d& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    for_batch(in.batch, parallel, [&](std::int64_t b, const Parallel& threads) {
      Row<S>(row_input<S>(in, b), threads).forward(static_cast<S*>(y) + start_of(in, b, in.targets));
    });
  });
}

void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    using T = typename SumOf<S>::Type;
    for_batch(in.batch, parallel, [&](std::int64_t b, const Parallel& threads) {
      Row<S>(row_input<S>(in, b), threads)
          .backward(static_cast<const S*>(dy) + start_of(in, b, in.targets),
                    static_cast<S*>(dx) + start_of(in, b, in.tokens), static_cast<T*>(dlog_weight) + b * in.tokens,
                    static_cast<T*>(dsigma) + b * in.targets);
    });
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
