// Makes what the next steps need on other threads. next() gives the results in order, whatever the number of threads;
// an error of making one is thrown by the next() that would have given it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace contextpool::data {

template <typename T>
class Prefetch {
 public:
  // make(i) for i = first, ..., end - 1, called on `threads` threads, at most `ahead` results before they are asked
  // for. With no threads each is made when it is asked for.
  Prefetch(std::function<T(std::int64_t)> make, std::int64_t first, std::int64_t end, int threads, std::int64_t ahead)
      : make_(std::move(make)), next_(first), begun_(first), end_(end), ahead_(ahead) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Prefetch() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  T next() {
    if (threads_.empty()) return make_(next_++);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(next_); });
    auto result = std::move(done_.extract(next_++).mapped());
    lock.unlock();
    changed_.notify_all();
    if (result.error) std::rethrow_exception(result.error);
    return std::move(*result.value);
  }

 private:
  struct Result {
    std::unique_ptr<T> value;
    std::exception_ptr error;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || (begun_ < end_ && begun_ < next_ + ahead_); });
      if (stop_) return;
      const auto index = begun_++;
      lock.unlock();
      Result result;
      try {
        result.value = std::make_unique<T>(make_(index));
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      done_.emplace(index, std::move(result));
      changed_.notify_all();
    }
  }

  std::function<T(std::int64_t)> make_;
  std::int64_t next_, begun_, end_, ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Result> done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace contextpool::data
