// The translators as a program, for tests/python/test_translator.py.
//   write FOLDER   for every case: NAME.safetensors, a random model with its options; NAME.logits.safetensors, what it
//                  says of some sentences, and how it translates them
//   read FOLDER    for every NAME.safetensors: reads it and NAME.tokens.safetensors, writes NAME.logits.safetensors
#include <iostream>
#include <nlohmann/json.hpp>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/translate.h"
#include "translator_cases.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;
using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

std::string to_json(const models::TranslatorOptions& options) {
  nlohmann::json json;
  for_each_option(options, [&](const char* name, const auto& value, const char*) { json[name] = value; });
  return json.dump();
}

models::TranslatorOptions from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  models::TranslatorOptions options;
  for_each_option(options, [&](const char* name, auto& value, const char*) {
    value = json.at(name).get<std::decay_t<decltype(value)>>();
  });
  return options;
}

torch::Tensor real_symbols() { return torch::arange(11).unsqueeze(0) < torch::tensor({{11}, {4}, {1}}); }

// The translations of a sentence one after the other, each with its end, and their scores.
void add_translations(Tensors& tensors, models::Translator& model, const torch::Tensor& source) {
  std::vector<std::vector<int64_t>> sentences;
  for (const int64_t length : {11, 4, 1}) {
    const auto row = source[static_cast<int64_t>(sentences.size())].slice(0, 0, length).contiguous();
    sentences.emplace_back(row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + length);
  }
  std::vector<int64_t> symbols;
  std::vector<double> scores;
  for (const auto& found : models::translate(model, sentences, {.n_best = 2, .extra_length = 6})) {
    for (const auto& hypothesis : found) {
      symbols.insert(symbols.end(), hypothesis.tokens.begin(), hypothesis.tokens.end());
      symbols.push_back(model->options().end);
      scores.push_back(hypothesis.score);
    }
  }
  tensors.emplace_back("symbols", torch::tensor(symbols, torch::kInt64));
  tensors.emplace_back("scores", torch::tensor(scores, torch::kFloat64));
}

void write(const fs::path& folder) {
  torch::manual_seed(1);
  for (const auto& [name, options] : translator_cases()) {
    auto model = random_translator(options);
    const auto source = random_symbols(3, 11), target = random_symbols(3, 13);
    const torch::NoGradGuard no_grad;
    io::write_safetensors(folder / (name + ".safetensors"), io::named_tensors(*model),
                          {{"contextpool.family", "translator"}, {"contextpool.model", to_json(options)}});
    Tensors tensors{{"source", source},
                    {"real", real_symbols()},
                    {"target", target},
                    {"logits", model(source, real_symbols(), target)}};
    add_translations(tensors, model, source);
    io::write_safetensors(folder / (name + ".logits.safetensors"), tensors);
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
    models::Translator model(from_json(text));
    model->eval();
    const torch::NoGradGuard no_grad;
    io::load_into(io::named_tensors(*model), file.tensors(), path.string());
    const io::SafetensorsFile given(folder / (path.stem().string() + ".tokens.safetensors"));
    const auto logits =
        model(given.tensor("source").clone(), given.tensor("real").clone(), given.tensor("target").clone());
    io::write_safetensors(folder / (path.stem().string() + ".logits.safetensors"), {{"logits", logits}});
  }
}

}  // namespace
}  // namespace contextpool::testing

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: contextpool_translators_tool write|read FOLDER");
  std::string(argv[1]) == "write" ? contextpool::testing::write(argv[2]) : contextpool::testing::read(argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
