// Runs CUDA kernels on the CPU, in one thread: for tests of what kernels compute, where there is no GPU.
//
// A kernel is compiled as C++ against the headers of this folder, which stand in for CUDA's. The threads of a block are
// fibers that take turns at barriers and warp shuffles; blocks run one after another. So results are the same in every
// run, and in a wrong kernel the same wrong ones:
//
//   - a barrier or a shuffle that some of its threads never reach, or reach at another line, aborts with a message;
//   - __shared__ arrays hold NaN when a block begins;
//   - threads and blocks run in the order that set_order names. What a kernel leaves must not depend on it: if it does,
//     a barrier is missing, or two blocks write to the same place.
//
// Device memory is the host's, so the address sanitizer sees each access outside of it. Not here: dynamic shared
// memory, atomics, streams (a launch has run when it returns), inline PTX, and what differs by a GPU's fast arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
// NOLINTEND(readability-identifier-naming)

namespace cuda_emulation {

constexpr unsigned kLanes = 32;

enum class Order : std::uint8_t { forwards, backwards };
void set_order(Order order);

// Every thread of every block.
void run(dim3 grid, dim3 block, const std::function<void()>& thread);

// For the thread that runs: waits until all of its block that have not returned are here.
void wait_for_block(std::source_location where);

// For the thread that runs: gives `value` to the lanes of `mask` and waits for theirs; what each lane gave.
const std::uint64_t* exchange(unsigned mask, std::uint64_t value, std::source_location where);

unsigned lane();

}  // namespace cuda_emulation
