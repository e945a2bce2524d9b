#include "contextpool/runtime/processes.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/gradient_sum.h"
#include "runtime/group.h"

namespace contextpool::runtime {
namespace {

// A process that dies is noticed by its closed connection. The limit is for one that hangs, and longer than what the
// others may wait for while the first one scores or saves.
constexpr std::chrono::hours kLongestWait{24};
constexpr std::chrono::seconds kNoticeTime{2};  // in which all that live notice that one does not
constexpr std::chrono::milliseconds kNoticePause{50};
constexpr const char* kPrefix = "contextpool";

std::vector<std::uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

void keep_forever(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>;
  const std::lock_guard lock(mutex);
  kept.push_back(group);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

class Processes::Group {
 public:
  explicit Group(const Launch& launch) : launch_(launch) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(launch.port);
    options.isServer = launch.rank == 0 && !launch.store_runs;
    options.numWorkers = static_cast<std::size_t>(launch.size);
    options.waitWorkers = false;
    try {
      const Store tcp = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
      job_ = c10::make_intrusive<c10d::PrefixStore>(kPrefix, tcp);
    } catch (const std::exception& e) {
      throw LostProcess("contextpool: rank " + std::to_string(launch.rank) +
                        " does not reach the store of the job at " + launch.address + ":" +
                        std::to_string(launch.port) + " (MASTER_ADDR, MASTER_PORT): " + first_line(e.what()));
    }
    attempt_ = c10::make_intrusive<c10d::PrefixStore>("attempt-" + std::to_string(launch.restarts), job_);
  }

  ~Group() {
    // NCCL wants to be told of a normal end; after an error it could wait for ever to hear of the others.
    if (!group_ || lost_ || std::uncaught_exceptions() > 0) return;
    try {
      group_->shutdown();
    } catch (const std::exception&) {  // the process ends all the same
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void connect(torch::Device device) {
    guarded("the processes were connected", [&] {
      const auto part = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, attempt_); };
      const auto [rank, size] = std::pair(launch_.rank, launch_.size);
      group_ = c10::make_intrusive<c10d::ProcessGroup>(part("group"), rank, size);
      using Type = c10d::ProcessGroup::BackendType;
      group_->setDefaultBackend(device.is_cpu() ? Type::GLOO : Type::NCCL);
      group_->setBackend(torch::kCPU, Type::GLOO, make_gloo(part("gloo"), rank, size, kLongestWait));
      if (!device.is_cpu()) group_->setBackend(torch::kCUDA, Type::NCCL, make_nccl(part("nccl"), rank, size, device));
    });
  }

  // What `call` says, or LostProcess where it failed because another process did.
  template <typename F>
  auto guarded(const char* what, F&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const c10::DistError& e) {
      lose(what, e.what_without_backtrace());
    } catch (const c10::Error&) {  // of this process itself
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {  // Gloo's
      lose(what, e.what());
    }
  }

  void all_reduce(const torch::Tensor& tensor, c10d::ReduceOp::RedOpType operation) {
    std::vector<torch::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    group_->allreduce(tensors, options)->wait();
  }

  void broadcast(const torch::Tensor& tensor, int from) {
    std::vector<torch::Tensor> tensors = {tensor.detach()};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    group_->broadcast(tensors, options)->wait();
  }

  const Store& job() const { return job_; }
  const Store& attempt() const { return attempt_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  std::string next_name() { return "same-" + std::to_string(names_++); }

 private:
  [[noreturn]] void lose(const char* what, const std::string& why) {
    lost_ = true;
    keep_forever(group_);  // its threads may wait for peers that wait for this one; they end with the program
    const auto silent = silent_ranks();
    std::string who;
    for (const auto rank : silent) who += (who.empty() ? " " : ", ") + std::to_string(rank);
    const auto lost = silent.empty() ? "its connection to the others" : (silent.size() == 1 ? "rank" : "ranks") + who;
    throw LostProcess("contextpool: rank " + std::to_string(launch_.rank) + " of " + std::to_string(launch_.size) +
                      " lost " + lost + " while " + what +
                      ": a process was killed, failed or cannot be reached (torchrun says how it ended); --resume "
                      "continues from the newest checkpoint (" +
                      first_line(why) + ")");
  }

  // The ranks that do not notice the loss themselves: those that are lost.
  std::vector<int> silent_ranks() {
    std::set<int> silent;
    try {
      attempt_->set("noticed-" + std::to_string(launch_.rank), bytes("1"));
      for (int rank = 0; rank < launch_.size; ++rank) silent.insert(rank);
      const auto end = std::chrono::steady_clock::now() + kNoticeTime;
      while (!silent.empty() && std::chrono::steady_clock::now() < end) {
        std::erase_if(silent, [&](int rank) { return attempt_->check({"noticed-" + std::to_string(rank)}); });
        if (!silent.empty()) std::this_thread::sleep_for(kNoticePause);
      }
    } catch (const std::exception&) {  // the store went with the process that kept it
      return launch_.store_runs ? std::vector<int>{} : std::vector<int>{0};
    }
    return {silent.begin(), silent.end()};
  }

  Launch launch_;
  Store job_, attempt_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int names_ = 0;
  bool lost_ = false;
};

namespace {

// Says of a failing backward which process was lost.
template <typename G>
class GuardedSum : public GradientSum {
 public:
  GuardedSum(std::shared_ptr<G> group, const std::vector<torch::Tensor>& parameters)
      : group_(std::move(group)), sum_(make_gradient_sum(group_->group(), parameters)) {}
  void backward(const torch::Tensor& loss) override {
    group_->guarded("gradients were summed", [&] { sum_->backward(loss); });
  }

 private:
  std::shared_ptr<G> group_;
  std::unique_ptr<GradientSum> sum_;
};

}  // namespace

Processes::Processes() = default;
Processes::Processes(const Launch& launch) : launch_(launch), group_(std::make_shared<Group>(launch)) {}
Processes::~Processes() = default;

void Processes::note(const std::string& key, const std::string& value) {
  if (alone()) return;
  group_->guarded("noting", [&] {
    group_->job()->set(key, bytes(value));
    // set only sends. An answer says that the store has come past it, and whoever asks from now on finds the value.
    TORCH_CHECK(group_->job()->check({key}), "contextpool: the store of the job does not keep what it is given");
  });
}

std::optional<std::string> Processes::noted(const std::string& key) {
  if (alone()) return std::nullopt;
  return group_->guarded("asking the store", [&]() -> std::optional<std::string> {
    if (!group_->job()->check({key})) return std::nullopt;
    const auto value = group_->job()->get(key);
    return std::string(value.begin(), value.end());
  });
}

void Processes::connect(torch::Device device) {
  if (!alone()) group_->connect(device);
}

std::vector<double> Processes::sum(std::vector<double> values) {
  if (alone()) return values;
  const auto tensor = torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kDouble);
  group_->guarded("a step was agreed on", [&] { group_->all_reduce(tensor, c10d::ReduceOp::SUM); });
  return values;
}

void Processes::sum_in_place(const torch::Tensor& tensor) {
  if (alone()) return;
  group_->guarded("losses were summed", [&] { group_->all_reduce(tensor, c10d::ReduceOp::SUM); });
}

bool Processes::any(bool value) {
  if (alone()) return value;
  return sum({value ? 1.0 : 0.0}).front() > 0;
}

void Processes::broadcast(const torch::Tensor& tensor, int from) {
  if (alone()) return;
  group_->guarded("weights were sent", [&] { group_->broadcast(tensor, from); });
}

void Processes::barrier() { any(false); }

void Processes::check_same(const std::string& what, const std::string& value) {
  if (alone()) return;
  const auto name = group_->next_name();
  const auto key = [&](int rank) { return name + "-" + std::to_string(rank); };
  bool differs = false;
  std::string list;
  group_->guarded("they compared what they have", [&] { group_->attempt()->set(key(rank()), bytes(value)); });
  barrier();
  for (int other = 0; other < size(); ++other) {
    const auto has =
        group_->guarded("they compared what they have", [&] { return group_->attempt()->get(key(other)); });
    differs = differs || has != bytes(value);
    list +=
        (other == 0 ? "" : ", ") + ("rank " + std::to_string(other) + " has ") + std::string(has.begin(), has.end());
  }
  barrier();  // so that all of them say so before the first one ends
  TORCH_CHECK_VALUE(!differs, "contextpool: the processes of this job do not have the same ", what, ": ", list,
                    "; they need the same command, program, data and run folder");
}

std::unique_ptr<GradientSum> Processes::sum_gradients(const std::vector<torch::Tensor>& parameters) {
  if (alone()) return nullptr;
  return std::make_unique<GuardedSum<Group>>(group_, parameters);
}

}  // namespace contextpool::runtime
