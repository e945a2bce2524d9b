#include "emulator.h"

#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulation {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;

// Where execution stands, and on what stack.
struct Context {
  ucontext_t state{};
  const void* stack = nullptr;
  std::size_t bytes = 0;
  void* frames = nullptr;  // the sanitizer's
};

void switch_context(Context& from, Context& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.frames, to.stack, to.bytes);
#endif
  swapcontext(&from.state, &to.state);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.frames, nullptr, nullptr);
#endif
}

enum class State : std::uint8_t { ready, at_barrier, at_exchange, returned };

// A thread of a block; it is used again for the next block.
struct Thread {
  Thread() {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) std::abort();
    context.stack = stack;
    context.bytes = kStackBytes;
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = kStackBytes;
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { munmap(const_cast<void*>(context.stack), kStackBytes); }

  Context context;
  uint3 index;
  State state = State::returned;
  std::source_location where;
  unsigned mask = 0;                 // of the exchange
  std::uint64_t value = 0;           // given to it
  std::uint64_t received[kLanes]{};  // what each lane gave
};

// The launch that runs.
std::vector<std::unique_ptr<Thread>> threads;
std::size_t count = 0, current = 0;
Context host;
const std::function<void()>* kernel = nullptr;
Order order = Order::forwards;

[[noreturn]] void fail(const Thread& thread, std::source_location where, const char* what) {
  std::fprintf(stderr, "%s:%u: block %u %u %u, thread %u %u %u: %s\n", where.file_name(), where.line(), blockIdx.x,
               blockIdx.y, blockIdx.z, thread.index.x, thread.index.y, thread.index.z, what);
  std::abort();
}

void begin_thread() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &host.stack, &host.bytes);
#endif
  for (;;) {
    (*kernel)();
    threads[current]->state = State::returned;
    switch_context(threads[current]->context, host);
  }
}

// Ends the turn of the thread that runs, until another has made it ready.
void wait(State state, std::source_location where) {
  Thread& thread = *threads[current];
  thread.state = state;
  thread.where = where;
  switch_context(thread.context, host);
}

// Those that wait at a barrier go on when every thread that has not returned is there.
void open_barrier() {
  const Thread* first = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    const Thread& thread = *threads[i];
    if (thread.state == State::returned) continue;
    if (thread.state != State::at_barrier) return;
    if (first == nullptr) first = &thread;
    if (thread.where.line() != first->where.line()) {
      fail(thread, thread.where, "a barrier, but other threads of the block are at another one");
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (threads[i]->state == State::at_barrier) threads[i]->state = State::ready;
  }
}

// __shared__ arrays are the program's thread-local memory: all bits one is NaN in every type.
void poison_shared_memory() {
  dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void*) {
        for (int i = 0; i < program->dlpi_phnum; ++i) {
          const auto& segment = program->dlpi_phdr[i];
          if (segment.p_type == PT_TLS && program->dlpi_tls_data != nullptr) {
            std::memset(program->dlpi_tls_data, 0xff, segment.p_memsz);
          }
        }
        return 1;  // the first is the program itself, without libraries
      },
      nullptr);
}

// Threads take turns in order, each until it waits or returns.
void run_block() {
  poison_shared_memory();
  for (std::size_t i = 0; i < count; ++i) {
    const auto t = static_cast<unsigned>(i);
    threads[i]->state = State::ready;
    threads[i]->index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t turn = 0; turn < count; ++turn) {
      current = order == Order::forwards ? turn : count - 1 - turn;
      Thread& thread = *threads[current];
      if (thread.state != State::ready) continue;
      threadIdx = thread.index;
      switch_context(host, thread.context);
      progress = true;
    }
    open_barrier();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Thread& thread = *threads[i];
    if (thread.state == State::at_barrier) fail(thread, thread.where, "a barrier that other threads never reach");
    if (thread.state == State::at_exchange) fail(thread, thread.where, "a shuffle that lanes of its mask never reach");
  }
}

}  // namespace

void set_order(Order of_threads) { order = of_threads; }

void run(dim3 grid, dim3 block, const std::function<void()>& thread) {
  kernel = &thread;
  gridDim = grid;
  blockDim = block;
  count = std::size_t{block.x} * block.y * block.z;
  while (threads.size() < count) {
    threads.push_back(std::make_unique<Thread>());
    makecontext(&threads.back()->context.state, begin_thread, 0);
  }
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  for (std::uint64_t turn = 0; turn < blocks; ++turn) {
    const auto b = order == Order::forwards ? turn : blocks - 1 - turn;
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    run_block();
  }
}

void wait_for_block(std::source_location where) { wait(State::at_barrier, where); }

unsigned lane() { return static_cast<unsigned>(current) % kLanes; }

const std::uint64_t* exchange(unsigned mask, std::uint64_t value, std::source_location where) {
  Thread& own = *threads[current];
  const std::size_t first = current / kLanes * kLanes;
  if ((mask >> lane() & 1) == 0) fail(own, where, "a shuffle of other lanes");
  own.mask = mask;
  own.value = value;
  own.where = where;
  own.state = State::at_exchange;
  for (unsigned i = 0; i < kLanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    if (first + i >= count || threads[first + i]->state == State::returned) {
      fail(own, where, "a shuffle with lanes that have returned");
    }
    const Thread& other = *threads[first + i];
    if (other.state != State::at_exchange) {  // the last lane to come lets all go on
      switch_context(own.context, host);
      return own.received;
    }
    if (other.mask != mask || other.where.line() != where.line()) {
      fail(own, where, "a shuffle, but other lanes of its mask are at another one");
    }
  }
  for (unsigned i = 0; i < kLanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    Thread& other = *threads[first + i];
    for (unsigned j = 0; j < kLanes; ++j) {
      if ((mask >> j & 1) != 0) other.received[j] = threads[first + j]->value;
    }
    other.state = State::ready;
  }
  return own.received;
}

}  // namespace cuda_emulation
