// contextpool import: weights of timm, torchvision or Microsoft (models/foreign.h) as a model of this program, with
// what such files do not say: which model it is, how pictures are normalized and cropped, and the names of the classes.
// eval, classify, inspect and train --weights read the result.
#include "cli/import.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "cli/option_flags.h"
#include "contextpool/io/safetensors.h"
#include "contextpool/models/foreign.h"
#include "contextpool/models/registry.h"
#include "contextpool/tasks/image_classifier.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kLeastRatio = 0.01;

struct ImportFlags {
  std::string file, model, out, classes, normalization = "imagenet";
  double central_ratio = 0.875;

  void add_to(CLI::App& app) {
    app.option_defaults()->always_capture_default()->take_last();
    app.add_option("file", file, "safetensors file (scripts/convert_weights.py makes one of a .pth)");
    app.add_option("--model", model, "name of the model that the weights are of, or of its cp- or dw- form");
    app.add_option("--out", out, "file to write");
    app.add_option("--classes", classes, "names of the classes: a file with a line for each");
    app.add_option("--normalization", normalization, "of pixels: imagenet, half (mean and deviation 0.5) or cifar");
    app.add_option("--central-ratio", central_ratio, "share of the short side in the central crop");
  }
};

// Which flags of models there are depends on the model.
ImportFlags look_ahead(const Arguments& arguments) {
  ImportFlags flags;
  CLI::App app;
  flags.add_to(app);
  app.set_help_flag();
  app.allow_extras();
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  return flags;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError("--classes " + path + ": cannot be read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // a byte-order mark
  if (!lines.empty() && lines.front().starts_with(kMark)) lines.front().erase(0, kMark.size());
  as_command([&] { tasks::check_class_names(lines, "--classes " + path); });
  return lines;
}

void check(const ImportFlags& f) {
  if (f.file.empty()) throw UsageError("a safetensors FILE is needed");
  if (f.model.empty())
    throw UsageError("--model NAME is needed: which model the weights are of (`contextpool models`)");
  if (f.out.empty()) throw UsageError("--out FILE is needed: the file to write");
  if (fs::exists(f.out)) throw UsageError(f.out + ": exists; --out names another");
  if (!(f.central_ratio >= kLeastRatio && f.central_ratio <= 1))
    throw UsageError("--central-ratio is " + std::to_string(f.central_ratio) + ", expected 0.01 to 1");
}

// All options of the family but the number of classes, which the file says.
OptionList free_options(const models::FoundModel& found) {
  OptionList free;
  for (const auto& option : found.model.options) {
    if (option.name != "classes") free.add(option);
  }
  return free;
}

struct Imported {
  std::shared_ptr<torch::nn::Module> model;
  models::ForeignReport report;
};

// A model of as many classes as the file has. Its options are completed with them.
Imported build(const models::Family& family, OptionList& options, const fs::path& file) {
  const auto tensors = io::SafetensorsFile(file).tensors();
  const models::ForeignOptions how{.drop_head = false, .replace_head = true, .who = file.string()};
  const auto load = [&] {
    const auto model = family.build(options);
    return Imported{model, models::load_foreign(*model, tensors, how)};
  };
  auto imported = load();
  const auto classes = imported.report.classes;
  TORCH_CHECK_VALUE(classes > 0, file.string(), ": has no head, and so no classes; `contextpool train --weights` can ",
                    "start from it");
  if (classes == options.get<std::int64_t>("classes")) return imported;
  options.set("classes", classes);
  return load();
}

}  // namespace

int import_weights(const Arguments& arguments) {
  const auto ahead = look_ahead(arguments);
  CLI::App app("Writes the weights of others as a model of this program. (--model NAME --help: the options of it.)",
               "contextpool import");
  ImportFlags f;
  f.add_to(app);
  const auto found =
      as_command([&] { return models::find_model(ahead.model.empty() ? "vit-base-patch16" : ahead.model); });
  if (!found.model.options.has("classes")) throw UsageError("--model " + ahead.model + ": no classifier of pictures");
  const OptionFlags flags(app, free_options(found), "Model", OptionFlags::Defaults::hidden,
                          [&](const std::string& option) { return found.family.flag(option); });
  if (!parse(app, arguments)) return 0;
  check(f);
  const auto normalization = as_command([&] { return tasks::normalization_named(f.normalization); });
  auto options = flags.over(found.model.options);
  as_command([&] { found.family.cost(options, 0); });  // an error if it cannot be built
  const auto names = f.classes.empty() ? std::vector<std::string>() : lines_of(f.classes);

  torch::manual_seed(0);  // of what the file does not have
  const auto [model, report] = build(found.family, options, f.file);
  io::Metadata more{{tasks::kImagesKey, tasks::images_metadata(normalization, f.central_ratio)}};
  if (!f.classes.empty()) {
    TORCH_CHECK_VALUE(static_cast<std::int64_t>(names.size()) == report.classes, f.classes, ": has ", names.size(),
                      " names for the ", report.classes, " classes of ", f.file);
    more[tasks::kClassesKey] = tasks::classes_metadata(names);
  }
  io::write_safetensors(f.out, io::named_tensors(*model), models::model_metadata(found.family, options, more));
  std::cout << f.out << ": " << f.model << ", " << report.classes << " classes, from " << f.file << " (names of "
            << report.source << ")";
  if (!report.resized.empty()) std::cout << "; resized " << report.resized.size() << " tables of positions";
  if (!report.kept.empty()) std::cout << "; " << report.kept.size() << " tensors are new";
  std::cout << "\n";
  return 0;
}

}  // namespace contextpool::cli
