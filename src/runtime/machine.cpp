#include "contextpool/runtime/machine.h"

#include <sched.h>

#include <filesystem>
#include <fstream>

namespace contextpool::runtime {
namespace {

namespace fs = std::filesystem;

// What follows the colon in the first line of a file that begins with `key`.
std::string line_of(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const auto begin = line.find_first_not_of(" \t", line.find(':') + 1);
    const auto end = line.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
  }
  return {};
}

}  // namespace

std::string cpu_model() { return line_of("/proc/cpuinfo", "model name"); }

std::vector<std::string> gpu_models() {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", code)) {
    names.push_back(line_of(entry.path() / "information", "Model"));
  }
  return names;
}

Cores cores() {
  Cores cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores.affinity = CPU_COUNT(&set);
  double quota = 0, period = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0) cores.quota = quota / period;
  return cores;
}

}  // namespace contextpool::runtime
