// A fixed number of threads that divide numbered work among themselves. Which thread does what is not defined; what is
// done is. No torch needed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace contextpool::data {

class ThreadPool {
 public:
  // The caller of run() works too: 1 starts no thread.
  explicit ThreadPool(std::int64_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(threads_.size()) + 1; }

  // Calls work(i) for each i in 0 ... count - 1, on all threads, and returns when all are done. If some throw, the rest
  // is still done, and the exception of the lowest i is thrown. One run at a time: a second caller
  // waits, and work must not call run().
  void run(std::int64_t count, const std::function<void(std::int64_t)>& work);

 private:
  struct Job;
  void serve(const std::stop_token& stop);

  std::mutex one_run_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Job* job_ = nullptr;
  std::uint64_t jobs_ = 0;  // ever begun
  std::int64_t busy_ = 0;   // threads in the current one
  std::vector<std::jthread> threads_;
};

}  // namespace contextpool::data
