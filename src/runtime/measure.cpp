#include "contextpool/runtime/measure.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <string_view>

#include "contextpool/runtime/machine.h"

namespace contextpool::runtime {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

c10::Event event_here(torch::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with its time
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

// Counts what PyTorch's allocator for the CPU hands out and takes back in this thread.
class CpuMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    now_ += bytes;  // less than 0 where memory is given back
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

struct Peak {
  std::string_view name;  // part of a driver's name
  double bfloat16, float32;
};
// The makers' data sheets, without sparsity. The first that fits counts.
constexpr std::array<Peak, 16> kPeaks = {{
    {"H100 PCIe", 756, 51.2},
    {"H100 NVL", 835, 60},
    {"H100", 989, 66.9},
    {"H200 NVL", 835, 60},
    {"H200", 989, 66.9},
    {"GH200", 989, 66.9},
    {"A100", 312, 19.5},
    {"A800", 312, 19.5},
    {"L40S", 362, 91.6},
    {"L40", 181, 90.5},
    {"L4", 121, 30.3},
    {"A40", 149.7, 37.4},
    {"A30", 165, 10.3},
    {"A10", 125, 31.2},
    {"RTX 4090", 165.2, 82.6},
    {"RTX 3090", 71, 35.6},
}};

}  // namespace

void synchronize(torch::Device device) {
  if (!device.is_cpu()) torch::cuda::synchronize(device.index());
}

std::string device_name(torch::Device device) {
  if (device.is_cpu()) return "";
  const auto names = gpu_models();
  // Which of them is which is not said; mostly they are all of a kind.
  const bool alike = std::all_of(names.begin(), names.end(), [&](const auto& name) { return name == names.front(); });
  return !names.empty() && alike ? names.front() : "";
}

std::optional<double> peak_teraflops(const std::string& device_name, bool bfloat16) {
  for (const auto& peak : kPeaks) {
    const auto at = device_name.find(peak.name);
    if (at == std::string::npos) continue;
    const auto end = at + peak.name.size();  // an A10 is no A100
    if (end < device_name.size() && std::isalnum(static_cast<unsigned char>(device_name[end])) != 0) continue;
    return bfloat16 ? peak.bfloat16 : peak.float32;
  }
  return std::nullopt;
}

Times time_calls(torch::Device device, int calls, const std::function<void()>& work) {
  TORCH_CHECK_VALUE(calls >= 1, "contextpool: ", calls, " calls to time, expected at least 1");
  Times times;
  std::optional<c10::Event> before, after;
  synchronize(device);
  const auto processor = std::clock();
  const auto start = now();
  for (int call = 0; call < calls; ++call) {
    const bool last = call + 1 == calls;
    if (last && !device.is_cpu()) before = event_here(device);
    work();
    if (call == 0) times.host_seconds = now() - start;
    if (last && !device.is_cpu()) after = event_here(device);
  }
  synchronize(device);
  times.seconds = (now() - start) / calls;
  constexpr double kMilli = 1e-3;
  if (before) {
    times.device_seconds = kMilli * before->elapsedTime(*after);
  } else {
    times.processor_seconds = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC / calls;
  }
  return times;
}

std::int64_t peak_of(torch::Device device, const std::function<void()>& work) {
  if (device.is_cpu()) {
    const auto memory = std::make_shared<CpuMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    work();
    return memory->peak();
  }
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto* allocator = at::getDeviceAllocator(device.type());
  const auto index =
      device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
  synchronize(device);
  allocator->resetPeakStats(index);
  const auto before = allocator->getDeviceStats(index).allocated_bytes[kAll].current;
  work();
  synchronize(device);
  return allocator->getDeviceStats(index).allocated_bytes[kAll].peak - before;
}

}  // namespace contextpool::runtime
