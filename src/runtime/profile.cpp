#include "contextpool/runtime/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "contextpool/runtime/measure.h"

namespace contextpool::runtime {
namespace {

using torch::autograd::profiler::KinetoEvent;
using torch::profiler::impl::ActivityType;

struct Kind {
  std::string_view part, kind;
};
// The first whose part is in the name counts.
constexpr std::array<Kind, 56> kKinds = {{
    {"contextpool::pool", "pooling"},
    {"contextpool::_pool", "pooling"},
    {"contextpool::", "fused operators"},
    {"attention", "attention"},
    {"flash", "attention"},
    {"conv", "convolutions"},
    {"addmm", "matrix products"},
    {"::mm", "matrix products"},
    {"bmm", "matrix products"},
    {"linear", "matrix products"},
    {"gemm", "matrix products"},
    {"cutlass", "matrix products"},
    {"nvjet", "matrix products"},
    {"_fused_adam", "optimizer"},
    {"_fused_sgd", "optimizer"},
    {"foreach", "optimizer"},
    {"multi_tensor", "optimizer"},
    {"softmax", "softmax and loss"},
    {"nll_loss", "softmax and loss"},
    {"cross_entropy", "softmax and loss"},
    {"layer_norm", "norms"},
    {"batch_norm", "norms"},
    {"gelu", "activations"},
    {"relu", "activations"},
    {"silu", "activations"},
    {"tanh", "activations"},
    {"sigmoid", "activations"},
    {"softplus", "activations"},
    {"dropout", "activations"},
    {"bernoulli", "activations"},
    {"copy", "copies and casts"},
    {"clone", "copies and casts"},
    {"contiguous", "copies and casts"},
    {"::cat", "copies and casts"},
    {"::pad", "copies and casts"},
    {"constant_pad", "copies and casts"},
    {"Memcpy", "copies and casts"},
    {"stack", "copies and casts"},
    {"fill", "fills"},
    {"zero", "fills"},
    {"Memset", "fills"},
    {"embedding", "look-ups"},
    {"gather", "look-ups"},
    {"scatter", "look-ups"},
    {"index", "look-ups"},
    {"::sum", "sums"},
    {"reduce", "sums"},
    {"mean", "sums"},
    {"norm", "sums"},
    {"::add", "element-wise"},
    {"::mul", "element-wise"},
    {"::div", "element-wise"},
    {"::sub", "element-wise"},
    {"elementwise", "element-wise"},
    {"Backward", "autograd"},
    {"autograd::", "autograd"},
}};

using Totals = std::map<std::string, OperatorTime>;

void add(Totals& totals, const std::string& name, double seconds, std::int64_t calls) {
  auto& total = totals[name];
  total.name = name;
  total.calls += calls;
  total.seconds += seconds;
}

constexpr double kNano = 1e-9;

double seconds_of(const KinetoEvent& event) { return kNano * static_cast<double>(event.durationNs()); }

// Calls of a thread are nested: what one takes is taken off the one around it.
Totals own_times(std::vector<const KinetoEvent*> events) {
  std::sort(events.begin(), events.end(), [](const auto* a, const auto* b) {
    return std::pair(a->startNs(), b->endNs()) < std::pair(b->startNs(), a->endNs());
  });
  Totals totals;
  std::vector<const KinetoEvent*> open;
  for (const auto* event : events) {
    while (!open.empty() && open.back()->endNs() <= event->startNs()) open.pop_back();
    if (!open.empty()) add(totals, open.back()->name(), -seconds_of(*event), 0);
    add(totals, event->name(), seconds_of(*event), 1);
    open.push_back(event);
  }
  return totals;
}

Totals host_times(const std::vector<KinetoEvent>& events) {
  std::map<std::uint64_t, std::vector<const KinetoEvent*>> by_thread;
  for (const auto& event : events) {
    if (event.deviceType() == c10::DeviceType::CPU && !event.isAsync()) {
      by_thread[event.startThreadId()].push_back(&event);
    }
  }
  Totals totals;
  for (auto& [thread, its] : by_thread) {
    for (const auto& [name, time] : own_times(std::move(its))) add(totals, name, time.seconds, time.calls);
  }
  return totals;
}

// A kernel belongs to the operator that launched it.
Totals device_times(const std::vector<KinetoEvent>& events) {
  std::unordered_map<std::uint64_t, std::string> operators;
  for (const auto& event : events) {
    if (event.deviceType() == c10::DeviceType::CPU && event.linkedCorrelationId() == 0) {
      operators.emplace(event.correlationId(), event.name());
    }
  }
  Totals totals;
  for (const auto& event : events) {
    if (event.deviceType() == c10::DeviceType::CPU) continue;
    const auto found = operators.find(event.linkedCorrelationId());
    const bool known = event.linkedCorrelationId() != 0 && found != operators.end();
    add(totals, known ? found->second : event.name(), seconds_of(event), 1);
  }
  return totals;
}

}  // namespace

std::vector<OperatorTime> profile(torch::Device device, const std::function<void()>& work) {
  namespace p = torch::autograd::profiler;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (!device.is_cpu()) activities.insert(ActivityType::CUDA);
  synchronize(device);
  p::prepareProfiler(config, activities);
  p::enableProfiler(config, activities);
  try {
    work();
    synchronize(device);
  } catch (...) {
    p::disableProfiler();
    throw;
  }
  const auto result = p::disableProfiler();
  std::vector<OperatorTime> times;
  for (auto& [name, time] : device.is_cpu() ? host_times(result->events()) : device_times(result->events())) {
    times.push_back(time);
  }
  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return times;
}

std::string kind_of_operator(const std::string& name) {
  // The node of a backward whose operators have names of their own does little itself.
  if (name.rfind("autograd::", 0) == 0) return "autograd";
  for (const auto& [part, kind] : kKinds) {
    if (name.find(part) != std::string::npos) return std::string(kind);
  }
  return "other";
}

}  // namespace contextpool::runtime
