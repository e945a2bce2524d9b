// contextpool average: the mean of several checkpoints of one model, in float64, as one file.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/cli.h"
#include "contextpool/io/checkpoint.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;

// The last `count` checkpoints of a run, verified.
std::vector<fs::path> last_checkpoints(const std::string& run, std::int64_t count) {
  auto steps = io::checkpoint_steps(run);
  if (static_cast<std::int64_t>(steps.size()) < count) {
    throw UsageError(run + ": has " + std::to_string(steps.size()) + " checkpoints, not " + std::to_string(count) +
                     "; a run keeps the last few (train --keep)");
  }
  steps.erase(steps.begin(), steps.end() - count);
  std::vector<fs::path> files;
  for (const auto step : steps) {
    const auto folder = io::checkpoint_folder(run, step);
    io::load_checkpoint(folder);  // an error unless it is whole
    files.push_back(folder / "model.safetensors");
  }
  return files;
}

// Metadata that must agree: which model it is, and what it is used with.
void check_same_model(const io::Metadata& a, const io::Metadata& b, const fs::path& first, const fs::path& other) {
  for (const auto* one : {&a, &b}) {
    for (const auto& [key, value] : *one) {
      const auto in_a = a.find(key), in_b = b.find(key);
      TORCH_CHECK_VALUE(in_a != a.end() && in_b != b.end() && in_a->second == in_b->second, other.string(),
                        ": not a checkpoint of the same model as ", first.string(), ": their \"", key, "\" differ");
    }
  }
}

}  // namespace

int average(const Arguments& arguments) {
  std::string run, out;
  std::int64_t last = 10;
  std::vector<std::string> named;
  CLI::App app("Averages checkpoints of one model into a safetensors file.", "contextpool average");
  app.option_defaults()->always_capture_default();
  app.add_option("--run", run, "folder of a training run, whose last checkpoints are averaged")->take_last();
  app.add_option("--last", last, "how many of them")->take_last();
  app.add_option("--out", out, "file to write")->take_last();
  app.add_option("files", named, "safetensors files to average, instead of --run")->take_all();
  if (!parse(app, arguments)) return 0;
  if (out.empty()) throw UsageError("--out FILE is needed: the file to write");
  if (run.empty() == named.empty()) throw UsageError("one of --run DIR and safetensors FILES is needed");
  if (last < 1) throw UsageError("--last is " + std::to_string(last) + ", expected at least 1");
  if (!run.empty() && !fs::is_directory(run)) throw UsageError(run + ": is not a run folder");

  const auto files = run.empty() ? std::vector<fs::path>(named.begin(), named.end()) : last_checkpoints(run, last);
  const io::SafetensorsFile newest(files.back());
  contextpool::models::describe_model(newest.metadata(), files.back());  // an error unless it is a model
  io::NamedTensors mean;
  for (const auto& [name, tensor] : newest.tensors()) {
    mean.emplace_back(name,
                      tensor.is_floating_point() ? tensor.to(torch::kDouble, false, /*copy=*/true) : tensor.clone());
  }
  for (std::size_t i = 0; i + 1 < files.size(); ++i) {
    const io::SafetensorsFile file(files[i]);
    check_same_model(newest.metadata(), file.metadata(), files.back(), files[i]);
    io::NamedTensors here;
    for (const auto& [name, tensor] : mean) here.emplace_back(name, torch::empty_like(tensor));
    io::load_into(here, file.tensors(), files[i].string());
    for (std::size_t k = 0; k < mean.size(); ++k) {
      if (mean[k].second.is_floating_point()) mean[k].second += here[k].second;
    }
  }
  const auto before = newest.tensors();
  for (std::size_t k = 0; k < mean.size(); ++k) {
    auto& tensor = mean[k].second;
    if (tensor.is_floating_point())
      tensor = (tensor / static_cast<double>(files.size())).to(before[k].second.scalar_type());
  }
  io::write_safetensors(out, mean, newest.metadata());
  std::cout << "averaged " << files.size() << " checkpoints into " << out << "\n";
  return 0;
}

}  // namespace contextpool::cli
