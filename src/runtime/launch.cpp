#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "contextpool/runtime/processes.h"

namespace contextpool::runtime {
namespace {

constexpr int kMostPorts = 65535;

const char* variable(const char* name) { return std::getenv(name); }

int number(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  TORCH_CHECK_VALUE(whole && value >= least && value <= most, "contextpool: the environment has ", name, "=", text,
                    ", expected a whole number from ", least, " to ", most,
                    "; start several processes with torchrun, or one without that variable");
  return value;
}

int number_or(const char* name, int otherwise, int most) {
  return variable(name) == nullptr ? otherwise : number(name, 0, most);
}

}  // namespace

std::optional<Launch> launch_from_environment() {
  constexpr int kMaxNumber = 1 << 20;
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (variable(name) == nullptr) return std::nullopt;
  }
  Launch launch;
  launch.size = number("WORLD_SIZE", 1, kMaxNumber);
  launch.rank = number("RANK", 0, launch.size - 1);
  launch.local_rank = number_or("LOCAL_RANK", launch.rank, launch.size - 1);
  launch.restarts = number_or("TORCHELASTIC_RESTART_COUNT", 0, kMaxNumber);
  launch.address = variable("MASTER_ADDR");
  launch.port = number("MASTER_PORT", 1, kMostPorts);
  const auto* runs = variable("TORCHELASTIC_USE_AGENT_STORE");
  launch.store_runs = runs != nullptr && std::string_view(runs) == "True";
  return launch;
}

std::string device_of(const Launch& launch, const std::string& asked) {
  if (asked == "cpu" || (asked == "auto" && !torch::cuda::is_available())) return "cpu";
  if (asked != "auto" && asked != "cuda") {
    TORCH_CHECK_VALUE(launch.size == 1, "contextpool: device is ", asked, " in each of ", launch.size,
                      " processes; with --device cuda each takes the GPU of its own number");
    return asked;
  }
  const auto count = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
  TORCH_CHECK_VALUE(launch.local_rank < count, "contextpool: process ", launch.local_rank,
                    " of this machine (from 0) has no GPU, there are ", count,
                    "; give torchrun a --nproc-per-node of at most that, or train on CPUs with --device cpu");
  return "cuda:" + std::to_string(launch.local_rank);
}

}  // namespace contextpool::runtime
