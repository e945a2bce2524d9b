// Which machine this is, in words, without touching a GPU.
#pragma once

#include <string>
#include <vector>

namespace contextpool::runtime {

// "Intel(R) Xeon(R) ..."; empty where it is not known.
std::string cpu_model();
// Of every NVIDIA GPU that the driver knows, in its order.
std::vector<std::string> gpu_models();

// Cores that this process may use: by its affinity, and by the quota of its container.
struct Cores {
  int affinity = 0;
  double quota = 0;  // 0: none
  double usable() const { return quota > 0 && quota < affinity ? quota : affinity; }
};
Cores cores();

}  // namespace contextpool::runtime
