// The models as a program, for tests/python/test_language_model.py.
//   write FOLDER   for every case: NAME.safetensors, a random model with its options; NAME.logits.safetensors, what it
//                  says of some tokens
//   read FOLDER    for every NAME.safetensors: reads it and NAME.tokens.safetensors, writes NAME.logits.safetensors
#include <iostream>

#include "cases.h"
#include "contextpool/io/safetensors.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& folder) {
  torch::manual_seed(1);
  for (const auto& [name, options] : model_cases()) {
    auto model = random_model(options);
    const auto tokens = random_tokens(2, 70);
    const torch::NoGradGuard no_grad;
    io::write_safetensors(folder / (name + ".safetensors"), io::named_tensors(*model),
                          {{"contextpool.model", models::to_json(options)}});
    io::write_safetensors(folder / (name + ".logits.safetensors"), {{"tokens", tokens}, {"logits", model(tokens)}});
  }
}

void read(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().stem().extension().empty()) files.push_back(entry.path());
  }
  for (const auto& path : files) {
    const io::SafetensorsFile file(path);
    std::string text;
    for (const auto& [key, value] : file.metadata()) {
      if (key == "contextpool.model") text = value;
    }
    models::LanguageModel model(models::from_json(text, path));
    model->eval();
    const torch::NoGradGuard no_grad;
    io::load_into(io::named_tensors(*model), file.tensors(), path.string());
    const io::SafetensorsFile given(folder / (path.stem().string() + ".tokens.safetensors"));
    io::write_safetensors(folder / (path.stem().string() + ".logits.safetensors"),
                          {{"logits", model(given.tensor("tokens").clone())}});
  }
}

}  // namespace
}  // namespace contextpool::testing

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: contextpool_models_tool write|read FOLDER");
  std::string(argv[1]) == "write" ? contextpool::testing::write(argv[2]) : contextpool::testing::read(argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
