#include "tasks/classification_eval.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "contextpool/io/files.h"
#include "contextpool/models/model_file.h"
#include "contextpool/runtime/device.h"

namespace contextpool::tasks {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::int64_t kFive = 5;

struct ClassificationEvalOptions {
  std::string data, format = "auto", split = "test", per_class;
  std::int64_t dev_images = 5000, batch = 256;
  double central_ratio = 0.875;
  bool bfloat16 = false;
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, ClassificationEvalOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data, "pictures; else those that the run was trained on");
  f("format", options.format, "of the data: auto, cifar10, cifar100, folder or shapes; else the run's");
  f("split", options.split, "train, dev or test");
  f("per_class", options.per_class, "file to write with the figures of each class, as JSON");
  f("dev_images", options.dev_images, "training pictures that the run held out");
  f("batch", options.batch, "pictures at once");
  f("central_ratio", options.central_ratio, "folders: share of the short side in the central crop; else the model's");
  f("bfloat16", options.bfloat16, "matrix products in bfloat16");
}

ClassificationEvalOptions options_of(const EvalRequest& request) {
  ClassificationEvalOptions options;
  assign_options(options, request.options);
  return options;
}

bool is_given(const EvalRequest& request, const std::string& name) {
  return std::find(request.given.begin(), request.given.end(), name) != request.given.end();
}

void check_classes(const std::string& where, const std::vector<std::string>& names, const TrainedClassifier& trained) {
  const auto& expected = trained.class_names();
  const bool same = trained.knows_class_names() ? names == expected : names.size() == expected.size();
  TORCH_CHECK_VALUE(same, where, ": its ", names.size(), " classes are not those of the model, which has ",
                    expected.size(), " (\"", expected.front(), "\" first, here \"", names.front(), "\")");
}

Json class_figures(const ImageScore& score, const std::vector<std::string>& names) {
  Json all = Json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto images = score.class_images[i], right = score.class_right[i];
    all.push_back({{"class", names[i]},
                   {"images", images},
                   {"right", right},
                   {"accuracy", images > 0 ? Json(static_cast<double>(right) / static_cast<double>(images)) : Json()}});
  }
  return all;
}

}  // namespace

ImageScore score_images(models::ImageClassifier& model, const ImageData& data, ImageSplit split, std::int64_t batch,
                        torch::Device device, bool bfloat16, bool channels_last,
                        const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const bool training = model.is_training();
  model.eval();
  const torch::NoGradGuard no_grad;
  const auto all = data.size(split);
  ImageScore score;
  score.class_images.resize(data.class_names().size());
  score.class_right.resize(data.class_names().size());
  double loss = 0;
  for (std::int64_t first = 0; first < all; first += batch) {
    if (progress) progress(first, all);
    auto [images, labels] = data.scored(split, first, std::min(batch, all - first), device);
    if (channels_last) images = images.contiguous(torch::MemoryFormat::ChannelsLast);
    torch::Tensor logits;
    {
      const runtime::Autocast autocast(device, bfloat16);
      logits = model.forward(images);
    }
    logits = logits.to(torch::kFloat).cpu();
    const auto here = labels.cpu();
    const auto readable = (here >= 0).nonzero().squeeze(1);
    logits = logits.index_select(0, readable);
    const auto known = here.index_select(0, readable);
    loss += torch::nn::functional::cross_entropy(
                logits, known, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                .item<double>();
    const auto best = std::get<1>(logits.topk(std::min(kFive, logits.size(1)), 1));
    const auto hits = best == known.unsqueeze(1);
    score.images += known.size(0);
    score.right_of_five += hits.any(1).sum().item<std::int64_t>();
    for (std::int64_t i = 0; i < known.size(0); ++i) {
      const auto label = static_cast<std::size_t>(known[i].item<std::int64_t>());
      const bool right = hits[i][0].item<bool>();
      ++score.class_images[label];
      score.class_right[label] += right ? 1 : 0;
      score.right += right ? 1 : 0;
    }
  }
  score.loss = loss / static_cast<double>(std::max<std::int64_t>(1, score.images));
  model.train(training);
  return score;
}

OptionList classification_eval_options() { return list_options(ClassificationEvalOptions{}); }

void check_classification_eval(const EvalRequest& request) {
  const auto o = options_of(request);
  image_split_named(o.split);
  check_format(o.format);
  TORCH_CHECK_VALUE(!is_given(request, "central_ratio") || is_central_ratio(o.central_ratio), "--central-ratio is ",
                    o.central_ratio, ", expected 0.01 to 1");
  TORCH_CHECK_VALUE(o.batch >= 1, "--batch is ", o.batch, ", expected at least 1");
  TORCH_CHECK_VALUE(!o.data.empty(), "--data FOLDER is needed: the pictures to score");
}

EvalResult evaluate_classification(const EvalRequest& request) {
  const auto o = options_of(request);
  if (!o.per_class.empty()) io::check_replaceable(o.per_class);
  TrainedClassifier trained(request.file, request.device);
  ClassificationOptions options;
  options.data = o.data;
  options.format = o.format;
  options.dev_images = o.dev_images;
  options.central_ratio = is_given(request, "central_ratio") ? o.central_ratio : trained.central_ratio();
  const auto data = open_images(options, trained.image_size(), trained.normalization());
  check_classes(o.data, data->class_names(), trained);
  const auto start = std::chrono::steady_clock::now();
  const auto score = score_images(trained.model(), *data, image_split_named(o.split), o.batch, request.device,
                                  o.bfloat16, /*channels_last=*/false, request.progress);
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (request.note) {
    for (const auto& note : data->take_notes()) request.note(note);
  }
  TORCH_CHECK_VALUE(score.images > 0, o.data, ": none of the ", data->size(image_split_named(o.split)), " pictures of ",
                    o.split, " can be read");
  const auto rate = static_cast<double>(score.images) / seconds;
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(),
                "top-1 %.2f %%, top-5 %.2f %% of %lld images of %s (loss %.4f); %.0f images/s", 100 * score.top1(),
                100 * score.top5(), static_cast<long long>(score.images), o.split.c_str(), score.loss, rate);
  const auto classes = class_figures(score, data->class_names());
  const Json json{{"top1", score.top1()},
                  {"top5", score.top5()},
                  {"images", score.images},
                  {"loss", score.loss},
                  {"split", o.split},
                  {"images_per_second", rate},
                  {"memory", runtime::peak_memory(request.device)},
                  {"classes", classes}};
  EvalResult result{line.data(), json.dump()};
  if (!o.per_class.empty()) result.files.push_back({o.per_class, classes.dump(2) + "\n"});
  return result;
}

}  // namespace contextpool::tasks
