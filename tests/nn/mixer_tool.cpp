// Mixers as a program, for tests/python/test_mixers.py: for every case of mixer_cases.h, FOLDER/NAME.safetensors: the
// random parameters of the mixer, as mixer.*, with x, context, mask and y, what the mixer makes of them. Its metadata
// has the options.
#include <iostream>

#include "contextpool/io/safetensors.h"
#include "mixer_cases.h"

namespace contextpool::testing {
namespace {

io::Metadata words_of(const nn::MixerOptions& o) {
  return {{"kind", o.kind},
          {"features", std::to_string(o.features)},
          {"causal", std::to_string(static_cast<int>(o.causal))},
          {"dims", std::to_string(o.dims)},
          {"taps", std::to_string(o.taps)},
          {"residual", o.residual},
          {"rank", std::to_string(o.rank)},
          {"heads", std::to_string(o.heads)},
          {"context_features", std::to_string(o.context_features)},
          {"pool.reference_length", std::to_string(o.pool.reference_length)},
          {"pool.hidden", std::to_string(o.pool.hidden)},
          {"pool.groups", std::to_string(o.pool.groups)}};
}

void write(const std::filesystem::path& folder) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, options] : all_mixer_cases()) {
    auto mixer = random_mixer(options, torch::kFloat32);
    const auto x = random_tokens_of(options, kMixed, 2, torch::kFloat32);
    const auto context = random_tokens_of(options, kContext, 2, torch::kFloat32);
    const auto mask =
        there(torch::rand(options.dims == 1 ? std::vector<int64_t>{2, 13} : std::vector<int64_t>{2, 5, 6})) > 0.3;
    io::NamedTensors tensors{{"x", x}, {"context", context}, {"mask", mask}, {"y", mixer(x, mask, context)}};
    for (const auto& [key, value] : io::named_tensors(*mixer)) tensors.emplace_back("mixer." + key, value);
    io::write_safetensors(folder / (name + ".safetensors"), tensors, words_of(options));
  }
}

}  // namespace
}  // namespace contextpool::testing

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("usage: contextpool_mixer_tool FOLDER");
  contextpool::testing::write(argv[1]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
