// contextpool doctor: what this build and this machine have, and what is wrong with it. Exit status 1 if the operator
// does not compute what its formula says; what only costs speed is a note.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "cli/cli.h"
#include "contextpool/ops/pool1d.h"
#include "contextpool/runtime/device.h"
#include "contextpool/runtime/machine.h"
#include "kernels/cpu/instructions.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kGibi = 1024.0 * 1024 * 1024;

class Report {
 public:
  void row(const std::string& name, const std::string& value) {
    std::cout << name << std::string(10 - name.size(), ' ') << value << "\n";
  }
  void problem(const std::string& what) { problems_.push_back(what); }
  void broken(const std::string& what) {
    problem(what);
    broken_ = true;
  }
  int finish() {
    if (problems_.empty()) row("problems", "none found");
    for (const auto& what : problems_) row("problem", what);
    return broken_ ? kFailed : 0;
  }

 private:
  std::vector<std::string> problems_;
  bool broken_ = false;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT: nothing else runs yet
  return value == nullptr ? "" : value;
}

// 0 where there is none.
int number_in(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string in_gibi(double bytes) { return std::to_string(std::llround(bytes / kGibi)) + " GiB"; }

std::string instruction_set() {
  switch (cpu::instructions()) {
    case cpu::Instructions::avx512: return "avx512";
    case cpu::Instructions::avx2: return "avx2";
    case cpu::Instructions::portable: break;
  }
  return "portable";
}

std::string cpu_features() {
  std::string all;
#ifdef __x86_64__
  const auto add = [&](bool has, const char* name) {
    if (has) all += (all.empty() ? "" : " ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
#endif
  return all.empty() ? "no vector features known here" : all;
}

void examine_cpu(Report& report) {
  const auto model = runtime::cpu_model();
  report.row("CPU", (model.empty() ? "unknown model" : model) + "; " + cpu_features());
  const auto forced = variable("CONTEXTPOOL_CPU");
  const auto set = instruction_set();
  report.row("kernels", set + (forced.empty() ? "" : " (by CONTEXTPOOL_CPU)"));
  if (set == "portable" && forced.empty())
    report.problem("the CPU has no AVX2: the operators use their portable kernels, which are several times slower");
  if (!forced.empty()) report.problem("CONTEXTPOOL_CPU chooses the kernels; without it the fastest are taken");
  report.row("memory", in_gibi(static_cast<double>(runtime::total_memory(torch::kCPU))));
}

void examine_threads(Report& report) {
  const auto there = runtime::cores();
  const auto threads = at::get_num_threads();
  std::string row = std::to_string(threads) + "; " + std::to_string(there.affinity) + " cores usable";
  if (there.quota > 0) row += ", the container's quota is " + CLI::detail::to_string(there.quota);
  for (const auto* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY"}) {
    if (!variable(name).empty()) row += std::string("; ") + name + "=" + variable(name);
  }
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  report.row("threads", row + "; load " + CLI::detail::to_string(load));
  const auto fewer = std::to_string(std::max(1, static_cast<int>(there.usable())));
  const auto wanted = std::max(threads, number_in(variable("OMP_NUM_THREADS")));  // torch may take fewer
  if (wanted > there.usable())
    report.problem(std::to_string(wanted) + " threads for " + CLI::detail::to_string(there.usable()) +
                   " cores: they wait for each other; use --threads " + fewer + " or OMP_NUM_THREADS=" + fewer);
  if (threads == 1 && there.usable() >= 2)
    report.problem("one thread only, though " + fewer + " cores are usable" +
                   (variable("OMP_NUM_THREADS") == "1" ? ": OMP_NUM_THREADS=1 is set" : ""));
  if (load > there.affinity && threads > 1 && variable("OMP_WAIT_POLICY") != "passive")
    report.problem("other programs use the cores (load " + CLI::detail::to_string(load) +
                   "), and threads wait actively: small models lose most of their speed; set OMP_WAIT_POLICY=passive");
}

// Whether the torch that was loaded comes with its CUDA library.
bool torch_has_cuda() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0 || info.dli_fname == nullptr)
    return false;
  return fs::exists(fs::path(info.dli_fname).parent_path() / "libtorch_cuda.so");
}

void examine_gpu(Report& report) {
  const bool driver = fs::exists("/proc/driver/nvidia/version");
  const std::size_t count = torch::cuda::is_available() ? torch::cuda::device_count() : 0;
  if (count == 0) report.row("GPU", "none in use");
  const auto names = runtime::gpu_models();
  for (std::size_t i = 0; i < count; ++i) {
    const auto memory = runtime::total_memory({torch::kCUDA, static_cast<torch::DeviceIndex>(i)});
    report.row("GPU", "cuda:" + std::to_string(i) + (names.size() == count ? " " + names[i] : "") + ", " +
                          in_gibi(static_cast<double>(memory)));
  }
  if (count > 0) return;
  if (torch_has_cuda() && !driver)
    report.problem("torch is built with CUDA, but no NVIDIA driver is loaded: everything runs on the CPU");
  if (torch_has_cuda() && driver)
    report.problem(CONTEXTPOOL_WITH_CUDA
                       ? "there is an NVIDIA driver, but torch finds no GPU: is the driver new enough, "
                         "and CUDA_VISIBLE_DEVICES right?"
                       : "there is an NVIDIA driver, but ContextPool was built without CUDA: a build "
                         "with the CUDA toolkit (nvcc) uses the GPU");
  if (!torch_has_cuda() && driver)
    report.problem(
        "there is an NVIDIA driver, but torch is built for the CPU only: install one with CUDA to use the GPU");
}

// The largest difference between pool1d and its formula, over max |x|.
double error_on(torch::Device device) {
  const torch::NoGradGuard no_grad;
  const auto options = torch::dtype(torch::kDouble);
  const auto generator = at::detail::createCPUGenerator(1);
  const auto draw = [&](at::IntArrayRef sizes) { return torch::randn(sizes, generator, options); };
  const auto x = draw({2, 64, 8}), log_weight = draw({2, 64}), sigma = draw({2, 64}).exp() * 4;
  const auto place = torch::arange(64, options);
  const auto distance = place.unsqueeze(1) - place;
  const auto score = log_weight.unsqueeze(1) - distance.square() / (2 * sigma.square().unsqueeze(2));
  const auto expected = score.masked_fill(distance < 0, -std::numeric_limits<double>::infinity()).softmax(2).matmul(x);
  const auto there = [&](const torch::Tensor& t) { return t.to(device, torch::kFloat); };
  const auto y = contextpool::pool1d(there(x), there(log_weight), there(sigma), /*causal=*/true);
  return ((y.to(torch::kCPU, torch::kDouble) - expected).abs().max() / x.abs().max()).item<double>();
}

void examine_operator(Report& report, torch::Device device) {
  constexpr double kTolerance = 1e-5;
  const auto where = "pool1d on " + device.str();
  try {
    const auto error = error_on(device);
    const bool good = error < kTolerance;
    report.row("check", where + (good ? " agrees with its formula" : " differs from its formula") + " (error " +
                            CLI::detail::to_string(error) + " of max |x|)");
    if (!good) report.broken(where + " is wrong on this machine; please report it with this output");
  } catch (const c10::Error& e) {
    report.row("check", where + " fails");
    const std::string message = e.what_without_backtrace();
    report.broken(where + ": " + message.substr(0, message.find('\n')));
  }
}

}  // namespace

int doctor(const Arguments& arguments) {
  CLI::App app("Shows what this build and this machine have, and what is wrong with it.", "contextpool doctor");
  if (!parse(app, arguments)) return 0;
  Report report;
  report.row("version", version());
  report.row("build", std::string("torch ") + (torch_has_cuda() ? "with CUDA" : "for the CPU only") + ", ContextPool " +
                          (CONTEXTPOOL_WITH_CUDA ? "with CUDA" : "without CUDA"));
  examine_cpu(report);
  examine_threads(report);
  examine_gpu(report);
  examine_operator(report, torch::kCPU);
  if (torch::cuda::is_available()) examine_operator(report, {torch::kCUDA, 0});
  return report.finish();
}

}  // namespace contextpool::cli
