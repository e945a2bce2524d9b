// The vision models as a program, for tests/python/test_vision_models.py and test_foreign_weights.py.
//   names                for every named model, a line: family, name, parameters, MACs, pooling MACs, options as JSON
//   write FOLDER         for every case: NAME.safetensors, a random model; NAME.said.safetensors, its logits of images
//   read FOLDER          for every NAME.safetensors (metadata: family, options, foreign): loads it into a new model,
//                        reads images from NAME.images.safetensors, writes NAME.said.safetensors; a model that cannot
//                        be loaded gives NAME.error
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/foreign.h"
#include "vision_cases.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <typename Options>
json to_json(const Options& options) {
  json all;
  models::for_each_option(options, [&](const char* name, const auto& value, const char*) { all[name] = value; });
  return all;
}

template <typename Options>
Options options_of(const json& given) {
  Options options;
  models::for_each_option(options, [&](const char* name, auto& value, const char*) {
    if (given.contains(name)) value = given.at(name).get<std::decay_t<decltype(value)>>();
  });
  return options;
}

template <typename Named>
void print(const char* family, const std::vector<Named>& all) {
  for (const auto& model : all) {
    const auto cost = models::cost(model.options);
    std::cout << family << '\t' << model.name << '\t' << cost.parameters << '\t' << std::fixed << cost.macs << '\t'
              << cost.pooling_macs << '\t' << to_json(model.options) << '\n';
  }
}

template <typename Module, typename Options>
void write_cases(const fs::path& folder, const std::string& family) {
  for (const auto& [name, options] : vision_cases<Options>()) {
    Module model(options);
    randomise(*model);
    const torch::NoGradGuard no_grad;
    const auto images = torch::randn({2, 3, options.image_size, options.image_size});
    auto [logits, windows] = model->forward_with_windows(images);
    io::NamedTensors said{{"images", images}, {"logits", logits}};
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (windows[i].sigma.defined()) said.emplace_back("sigma." + std::to_string(i), windows[i].sigma);
    }
    io::write_safetensors(folder / (family + "_" + name + ".safetensors"), io::named_tensors(*model),
                          {{"family", family}, {"options", to_json(options).dump()}});
    io::write_safetensors(folder / (family + "_" + name + ".said.safetensors"), said);
  }
}

template <typename Module, typename Options>
torch::Tensor read_one(const fs::path& path, const io::SafetensorsFile& file, const json& metadata,
                       const torch::Tensor& images) {
  Module model(options_of<Options>(json::parse(metadata.at("options").get<std::string>())));
  const auto foreign = metadata.value("foreign", "");
  if (foreign.empty()) {
    io::load_into(io::named_tensors(*model), file.tensors(), path.string());
  } else {
    models::load_foreign(model, file.tensors(), {.drop_head = foreign == "drop_head", .who = path.filename().string()});
  }
  model->eval();
  return model->forward(images);
}

void read(const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().stem().extension().empty()) files.push_back(entry.path());
  }
  for (const auto& path : files) {
    const io::SafetensorsFile file(path);
    const auto name = path.stem().string();
    json metadata = json::object();
    for (const auto& [key, value] : file.metadata()) metadata[key] = value;
    const auto images = io::SafetensorsFile(folder / (name + ".images.safetensors")).tensor("images").clone();
    const auto family = metadata.at("family").get<std::string>();
    try {
      const auto logits =
          family == "vit"
              ? read_one<models::VisionTransformer, models::VisionTransformerOptions>(path, file, metadata, images)
          : family == "swin" ? read_one<models::Swin, models::SwinOptions>(path, file, metadata, images)
                             : read_one<models::ResNet, models::ResNetOptions>(path, file, metadata, images);
      io::write_safetensors(folder / (name + ".said.safetensors"), {{"logits", logits}});
    } catch (const c10::ValueError& error) {
      std::ofstream(folder / (name + ".error")) << error.what_without_backtrace();
    }
  }
}

void run(const std::vector<std::string>& arguments) {
  torch::manual_seed(1);
  if (arguments == std::vector<std::string>{"names"}) {
    print("vit", models::vision_transformers());
    print("swin", models::swins());
    print("resnet", models::resnets());
  } else if (arguments.size() == 2 && arguments[0] == "write") {
    write_cases<models::VisionTransformer, models::VisionTransformerOptions>(arguments[1], "vit");
    write_cases<models::Swin, models::SwinOptions>(arguments[1], "swin");
    write_cases<models::ResNet, models::ResNetOptions>(arguments[1], "resnet");
  } else if (arguments.size() == 2 && arguments[0] == "read") {
    read(arguments[1]);
  } else {
    throw std::runtime_error("usage: contextpool_vision_tool names | write FOLDER | read FOLDER");
  }
}

}  // namespace
}  // namespace contextpool::testing

int main(int argc, char** argv) try {
  contextpool::testing::run({argv + 1, argv + argc});
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
