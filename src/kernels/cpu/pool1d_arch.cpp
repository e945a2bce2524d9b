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
          in.causal,
          in.algorithm,
          {static_cast<const S*>(in.x) + b * in.x_batch_stride, in.x_token_stride, in.tokens},
          static_cast<const T*>(in.log_weight) + b * in.tokens,
          static_cast<const T*>(in.sigma) + b * in.targets};
}

}  // namespace

void pool1d(const Pool1d& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    for_batch(in.batch, parallel, [&](std::int64_t b, const Parallel& threads) {
      Row<S>(row_input<S>(in, b), threads).forward(static_cast<S*>(y) + b * in.targets * in.channels);
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
          .backward(static_cast<const S*>(dy) + b * in.targets * in.channels,
                    static_cast<S*>(dx) + b * in.tokens * in.channels, static_cast<T*>(dlog_weight) + b * in.tokens,
                    static_cast<T*>(dsigma) + b * in.targets);
    });
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
