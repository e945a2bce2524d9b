// pool2d for one instruction set (CONTEXTPOOL_ARCH): unpacks the batch, the storage type and the order of the features.
#include "kernels/cpu/pool2d_arch.h"

#include "kernels/cpu/batch.h"
#include "kernels/cpu/pool2d_layout.h"
#include "kernels/cpu/pool2d_map.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {
namespace {

template <class S>
MapInput<S> map_input(const Pool2d& in, std::int64_t b, const S* x) {
  using T = typename SumOf<S>::Type;
  return {in.channels,
          in.height,
          in.width,
          in.out_height,
          in.out_width,
          in.stride_h,
          in.stride_w,
          in.algorithm == Algorithm::dense,
          x,
          static_cast<const T*>(in.log_weight) + b * in.pixels(),
          static_cast<const T*>(in.sigma) + b * in.targets()};
}

}  // namespace

void pool2d(const Pool2d& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    const std::int64_t pixels = in.pixels();
    const std::int64_t targets = in.targets();
    for_batch(in.batch, parallel, [&](std::int64_t b, const Parallel& threads) {
      const PixelRows<S> x(static_cast<const S*>(in.x) + b * pixels * in.channels, in.channels, pixels,
                           in.channels_last, threads);
      PixelRowsOut<S> out(static_cast<S*>(y) + b * targets * in.channels, in.channels, targets, in.channels_last);
      Map<S>(map_input<S>(in, b, x.data()), threads).forward(out.data());
      out.finish(threads);
    });
  });
}

void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    using T = typename SumOf<S>::Type;
    const std::int64_t pixels = in.pixels();
    const std::int64_t targets = in.targets();
    for_batch(in.batch, parallel, [&](std::int64_t b, const Parallel& threads) {
      const PixelRows<S> x(static_cast<const S*>(in.x) + b * pixels * in.channels, in.channels, pixels,
                           in.channels_last, threads);
      const PixelRows<S> g(static_cast<const S*>(dy) + b * targets * in.channels, in.channels, targets,
                           in.channels_last, threads);
      PixelRowsOut<S> out(static_cast<S*>(dx) + b * pixels * in.channels, in.channels, pixels, in.channels_last);
      Map<S>(map_input<S>(in, b, x.data()), threads)
          .backward(g.data(), out.data(), static_cast<T*>(dlog_weight) + b * pixels,
                    static_cast<T*>(dsigma) + b * targets);
      out.finish(threads);
    });
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
