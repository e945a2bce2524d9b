// Where U and w, or their gradients, are while dynamic_convolution works on them, and how they get there and back.
#pragma once

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/dynamic_convolution.h"
#include "kernels/cpu/dynamic_convolution_tile.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH::dynamic {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A panel for each vector of channels, [1 + rank, taps, lanes]: row 0 is w, the others U.
template <class T>
struct Panels {
  explicit Panels(const DynamicConvolution& in)
      : row(in.taps * kLanes<T>), size((1 + in.rank) * row), count(ceil_div(in.channels, kLanes<T>)) {}
  std::int64_t row, size, count;
};

// The channels of a panel.
template <class T>
int lanes_of(const DynamicConvolution& in, std::int64_t panel) {
  return static_cast<int>(least(kLanes<T>, in.channels - panel * kLanes<T>));
}

// f(tap, lane, the lane's channel or -1)
template <class T, class F>
void for_panel(const DynamicConvolution& in, std::int64_t panel, const F& f) {
  const int lanes = lanes_of<T>(in, panel);
  for (std::int64_t k = 0; k < in.taps; ++k) {
    for (int lane = 0; lane < kLanes<T>; ++lane) f(k, lane, lane < lanes ? panel * kLanes<T> + lane : -1);
  }
}

template <class T>
void pack(const DynamicConvolution& in, const Panels<T>& panels, T* to) {
  const auto* up = static_cast<const T*>(in.up);
  const auto* weight = static_cast<const T*>(in.weight);
  for (std::int64_t panel = 0; panel < panels.count; ++panel, to += panels.size) {
    for_panel<T>(in, panel, [&](std::int64_t k, int lane, std::int64_t channel) {
      T* const column = to + k * kLanes<T> + lane;
      if (channel < 0) {
        for (std::int64_t r = 0; r <= in.rank; ++r) column[r * panels.row] = 0;
        return;
      }
      const T* const u = up + (k * in.channels + channel) * in.rank;
      column[0] = weight[channel * in.taps + k];
      for (std::int64_t r = 0; r < in.rank; ++r) column[(1 + r) * panels.row] = u[r];
    });
  }
}

// U with the rank along the vector, filled up with 0: [panel, taps, lanes, width].
template <class T>
void pack_ranks(const DynamicConvolution& in, const Panels<T>& panels, std::int64_t width, T* to) {
  const auto* up = static_cast<const T*>(in.up);
  for (std::int64_t panel = 0; panel < panels.count; ++panel) {
    for_panel<T>(in, panel, [&](std::int64_t k, int, std::int64_t channel) {
      for (std::int64_t r = 0; r < width; ++r) {
        to[r] = channel < 0 || r >= in.rank ? T{} : up[(k * in.channels + channel) * in.rank + r];
      }
      to += width;
    });
  }
}

// The sums of the panels of all chunks, in order, in double.
template <class T>
void unpack(const DynamicConvolution& in, const Panels<T>& panels, const T* partial, std::int64_t chunks, T* up,
            T* weight, const Parallel& parallel) {
  constexpr std::int64_t kElements = 32768;  // what is worth a thread
  parallel.run(panels.count, most(1, kElements / (chunks * panels.size)), [&](std::int64_t begin, std::int64_t end) {
    Buffer<double> sums(panels.size);
    for (auto panel = begin; panel < end; ++panel) {
      for (std::int64_t j = 0; j < panels.size; ++j) sums[j] = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const T* const p = partial + (chunk * panels.count + panel) * panels.size;
        for (std::int64_t j = 0; j < panels.size; ++j) sums[j] += static_cast<double>(p[j]);
      }
      for_panel<T>(in, panel, [&](std::int64_t k, int lane, std::int64_t channel) {
        if (channel < 0) return;
        const double* const column = sums.data() + k * kLanes<T> + lane;
        weight[channel * in.taps + k] = static_cast<T>(column[0]);
        T* const u = up + (k * in.channels + channel) * in.rank;
        for (std::int64_t r = 0; r < in.rank; ++r) u[r] = static_cast<T>(column[(1 + r) * panels.row]);
      });
    }
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH::dynamic
