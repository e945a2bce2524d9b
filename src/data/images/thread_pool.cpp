#include "contextpool/data/images/thread_pool.h"

#include <atomic>
#include <exception>
#include <limits>

#include "contextpool/io/error.h"

namespace contextpool::data {

struct ThreadPool::Job {
  Job(std::int64_t count, const std::function<void(std::int64_t)>& work) : count(count), work(work) {}

  std::int64_t count;
  const std::function<void(std::int64_t)>& work;
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::int64_t first_bad = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error;

  void take_part() {
    for (auto i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < first_bad) {
          first_bad = i;
          error = std::current_exception();
        }
      }
    }
  }
};

ThreadPool::ThreadPool(std::int64_t threads) {
  if (threads < 1 || threads > 1024)
    throw io::Error("ThreadPool: expected 1 ... 1024 threads, not " + std::to_string(threads));
  for (std::int64_t k = 1; k < threads; ++k)
    threads_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
}

ThreadPool::~ThreadPool() {
  for (auto& thread : threads_) thread.request_stop();  // all, before the first is joined
}

void ThreadPool::serve(const std::stop_token& stop) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, stop, [&] { return job_ != nullptr && jobs_ != seen; });
    if (stop.stop_requested()) return;
    seen = jobs_;
    auto& job = *job_;
    ++busy_;
    lock.unlock();
    job.take_part();
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

void ThreadPool::run(std::int64_t count, const std::function<void(std::int64_t)>& work) {
  const std::scoped_lock alone(one_run_);
  Job job(count, work);
  {
    const std::scoped_lock lock(mutex_);
    job_ = &job;
    ++jobs_;
  }
  changed_.notify_all();
  job.take_part();
  std::unique_lock lock(mutex_);
  job_ = nullptr;  // a thread that wakes only now finds nothing
  changed_.wait(lock, [&] { return busy_ == 0; });
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace contextpool::data
