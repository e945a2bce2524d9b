// ContextPool as a program, for tests/python/test_context_pool_languages.py: for each folder named, builds the module
// of options.txt ("name value" lines; "dims" 1 or 2), loads weights.safetensors if it is there, else scatters its own
// and writes them, and writes to output.safetensors what it makes of input.safetensors (x and, if there, lengths or
// mask).
#include <torch/torch.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "contextpool/io/safetensors.h"
#include "contextpool/nn/context_pool.h"

namespace contextpool {
namespace {

using Words = std::map<std::string, std::string>;

Words read_words(const std::filesystem::path& path) {
  std::ifstream file(path);
  Words words;
  for (std::string name, value; file >> name >> value;) words[name] = value;
  return words;
}

template <typename Options>
Options options_of(const Words& words) {
  Options o;
  const std::map<std::string, std::string*> texts{
      {"predictor", &o.predictor}, {"weights", &o.weights}, {"locality", &o.locality}, {"size_norm", &o.size_norm}};
  const std::map<std::string, int64_t*> counts{{"features", &o.features}, {"reference_length", &o.reference_length},
                                               {"hidden", &o.hidden},     {"kernel", &o.kernel},
                                               {"groups", &o.groups},     {"seed", &o.seed},
                                               {"layer", &o.layer}};
  for (const auto& [name, value] : words) {
    if (const auto text = texts.find(name); text != texts.end()) *text->second = value;
    if (const auto count = counts.find(name); count != counts.end()) *count->second = std::stoll(value);
    if (name == "ratio") o.ratio = std::stod(value);
    if (name == "initial_sigma") o.initial_sigma = std::stod(value);
    if (name == "size_range") o.size_range = std::stod(value);
    if (name == "size_floor") o.size_floor = std::stod(value);
    if (name == "causal") o.causal = value == "True";
  }
  return o;
}

template <typename Module>
void run(Module module, const std::filesystem::path& folder) {
  const auto weights = folder / "weights.safetensors";
  if (std::filesystem::exists(weights)) {
    io::load_into(io::named_tensors(*module), io::read_safetensors(weights), weights.string());
  } else {
    for (auto& parameter : module->parameters()) parameter.data().normal_(0, 0.4);
    io::write_safetensors(weights, io::named_tensors(*module));
  }
  torch::Tensor x;
  nn::Padding padding;
  for (const auto& [name, tensor] : io::read_safetensors(folder / "input.safetensors")) {
    if (name == "x") x = tensor;
    if (name == "lengths" || name == "mask") padding = tensor;
  }
  const auto [y, windows] = module->forward_with_windows(x, padding);
  io::NamedTensors output{{"y", y}};
  if (windows.log_weight.defined()) output.emplace_back("log_weight", windows.log_weight);
  if (windows.sigma.defined()) output.emplace_back("sigma", windows.sigma);
  io::write_safetensors(folder / "output.safetensors", output);
}

void run(const std::filesystem::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto words = read_words(folder / "options.txt");
  if (words.at("dims") == "1") return run(nn::ContextPool1d(options_of<nn::ContextPoolOptions>(words)), folder);
  run(nn::ContextPool2d(options_of<nn::ContextPool2dOptions>(words)), folder);
}

}  // namespace
}  // namespace contextpool

int main(int argc, char** argv) {
  try {
    for (int k = 1; k < argc; ++k) contextpool::run(argv[k]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
