// The models as a program, for tests/python/test_language_model.py and test_option_tables.py.
//   write FOLDER   for every case: NAME.safetensors, a random model with its options; NAME.logits.safetensors, what it
//                  says of some tokens
//   read FOLDER    for every NAME.safetensors: reads it and NAME.tokens.safetensors, writes NAME.logits.safetensors
//   options FOLDER for every family: FAMILY.json, its options at their defaults; FAMILY.txt, for each option that is a
//                  word the message that refuses "?"
#include <fstream>
#include <iostream>

#include "cases.h"
#include "contextpool/io/safetensors.h"
#include "contextpool/models/registry.h"

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

std::string refusal(const models::Family& family, OptionList options, const std::string& option) {
  options.set("mixer", std::string("context_pool"));
  if (options.has("vocabulary")) options.set("vocabulary", std::int64_t{30});
  options.set(option, std::string("?"));
  try {
    family.build(options);
    return "accepted";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

void list_options(const fs::path& folder) {
  for (const auto* family : models::families()) {
    const auto defaults = family->defaults();
    std::ofstream(folder / (family->name() + ".json")) << to_json(defaults);
    std::ofstream refusals(folder / (family->name() + ".txt"));
    for (const auto& option : defaults) {
      if (!std::holds_alternative<std::string>(option.value)) continue;
      refusals << option.name << " " << refusal(*family, defaults, option.name) << "\n";
    }
  }
}

void run(const std::string& verb, const fs::path& folder) {
  if (verb == "write") return write(folder);
  if (verb == "read") return read(folder);
  if (verb == "options") return list_options(folder);
  throw std::runtime_error("there is no verb \"" + verb + "\"");
}

}  // namespace
}  // namespace contextpool::testing

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: contextpool_models_tool write|read|options FOLDER");
  contextpool::testing::run(argv[1], argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
