#include "contextpool/runtime/device.h"

#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace contextpool::runtime {

torch::Device device_named(const std::string& name) {
  const bool cuda = torch::cuda::is_available();
  if (name == "auto") return cuda ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  if (name == "cpu") return torch::kCPU;
  int64_t index = 0;
  const bool plain = name == "cuda";
  const std::string prefix = "cuda:";
  const auto digits = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : "";
  const bool numbered =
      !digits.empty() && digits.size() < 3 && digits.find_first_not_of("0123456789") == std::string::npos;
  TORCH_CHECK_VALUE(plain || numbered, "contextpool: device is \"", name, "\", expected auto, cpu, cuda or cuda:N");
  if (numbered) index = std::stoi(digits);
  const auto count = cuda ? static_cast<int64_t>(torch::cuda::device_count()) : 0;
  TORCH_CHECK_VALUE(index < count, "contextpool: device ", name,
                    " does not exist; this machine and this build of PyTorch have ", count, " GPUs");
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(index)};
}

std::int64_t peak_memory(torch::Device device) {
  if (!device.is_cpu()) {
    const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  }
  constexpr std::int64_t kKibi = 1024;
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * kKibi;
}

std::int64_t total_memory(torch::Device device) {
  if (!device.is_cpu()) {
    try {
      return static_cast<std::int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
    } catch (const c10::Error&) {  // a backend that does not say
      return 0;
    }
  }
  const auto physical = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  std::int64_t container = std::numeric_limits<std::int64_t>::max();
  std::ifstream("/sys/fs/cgroup/memory.max") >> container;  // "max", or a number
  return container > 0 ? std::min<std::int64_t>(physical, container) : physical;
}

Autocast::Autocast(torch::Device device, bool on)
    : type_(device.type()),
      enabled_before_(at::autocast::is_autocast_enabled(type_)),
      type_before_(at::autocast::get_autocast_dtype(type_)) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(type_, on);
  at::autocast::set_autocast_dtype(type_, torch::kBFloat16);
}

Autocast::~Autocast() {
  // The cache of cast weights would be wrong after they are updated.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, enabled_before_);
  at::autocast::set_autocast_dtype(type_, type_before_);
}

}  // namespace contextpool::runtime
