#include "tasks/image_looking.h"

#include <algorithm>
#include <span>

#include "contextpool/io/files.h"
#include "contextpool/models/model_file.h"
#include "contextpool/tasks/image_classifier.h"
#include "tasks/image_data.h"
#include "tasks/looking.h"

namespace contextpool::tasks {
namespace {

constexpr std::int64_t kSide = 384;  // the picture for the eye has at least so many pixels a side
constexpr std::int64_t kAnswers = 5, kAtOnce = 32;

nn::Windows flat(const nn::Windows& windows) { return {windows.log_weight.flatten(-2), windows.sigma.flatten(-2)}; }

std::unique_ptr<ImageData> validation_pictures(const LookRequest& request, const TrainedClassifier& trained) {
  ClassificationOptions options;
  options.data = request.options.get<std::string>("data");
  options.format = request.options.get<std::string>("format");
  options.dev_images = request.options.get<std::int64_t>("dev_images");
  options.central_ratio = trained.central_ratio();
  const auto open = [&] { return open_images(options, trained.image_size(), trained.normalization()); };
  if (!request.data_may_be_gone) return open();
  try {
    return open();
  } catch (const std::exception& e) {  // a run is often looked at where its data are not
    const std::string why = e.what();
    if (request.note) {
      request.note(why.substr(0, why.find('\n')) + "; sizes are counted on this picture alone (--data names others)");
    }
    return nullptr;
  }
}

// The histograms of the page, of validation pictures instead of the one that is looked at.
void count_sizes(const LookRequest& request, TrainedClassifier& trained, eval::Looking& looking) {
  const auto data = validation_pictures(request, trained);
  if (data == nullptr) return;
  const auto all = std::min(request.most, data->size(ImageSplit::dev));
  if (all < 1) return;
  std::vector<eval::SizeHistogram> sizes(looking.layers.size());
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < all; first += kAtOnce) {
    if (request.progress) request.progress(first, all);
    const auto [images, labels] =
        data->scored(ImageSplit::dev, first, std::min(kAtOnce, all - first), trained.device());
    const auto readable = (labels >= 0).nonzero().squeeze(1);
    counted += readable.size(0);
    const auto windows = trained.model().forward_with_windows(images.index_select(0, readable)).second;
    for (std::size_t i = 0; i < windows.size(); ++i) sizes[i].add(windows[i].sigma);
  }
  if (request.progress) request.progress(all, all);
  if (request.note) {
    for (const auto& note : data->take_notes()) request.note(note);
  }
  if (counted == 0) return;  // none can be read, as the notes say
  for (std::size_t i = 0; i < sizes.size(); ++i) looking.layers[i].sizes = sizes[i];
  looking.sizes_of = std::to_string(counted) + " validation pictures";
}

}  // namespace

LookedAtForm looked_at_form(const OptionList& model_options) {
  LookedAtForm form;
  form.pool.locality = model_options.get<std::string>("pool_locality");
  form.pool.weights = model_options.get<std::string>("pool_weights");
  // The predictor "attention" is another name of these weights.
  if (model_options.get<std::string>("pool_predictor") == "attention") form.pool.weights = "nonlocal";
  form.row = model_options.has("windows") && model_options.get<std::string>("windows") == "row";
  return form;
}

std::optional<nn::WindowStatistics> statistics_of(const LookedAtForm& form, const nn::Windows& windows) {
  if (!windows.sigma.defined() || !windows.log_weight.defined()) return std::nullopt;
  return form.row ? nn::window_statistics(form.pool, flat(windows)) : nn::window_statistics(form.pool, windows, 2);
}

eval::Looking look_at_picture(const LookRequest& request) {
  const auto description = models::describe_model(request.file);
  const auto form = looked_at_form(description.options);
  check_pool(request.file, description.options, form.pool);
  TrainedClassifier trained(request.file, request.device);
  const auto file = io::read_file(request.image);
  const auto bytes = std::as_bytes(std::span(file));
  const torch::NoGradGuard no_grad;
  eval::Looking looking;
  looking.model = described(description);
  looking.input = std::filesystem::path(request.image).filename().string();
  looking.row = form.row;
  try {
    looking.seen = trained.pixels(bytes, trained.image_size())[0];
  } catch (const data::ImageError& e) {
    TORCH_CHECK_VALUE(false, request.image, ": ", e.what());
  }
  const auto times = std::max<std::int64_t>(1, (kSide + trained.image_size() - 1) / trained.image_size());
  looking.picture = times == 1 ? looking.seen : trained.pixels(bytes, times * trained.image_size())[0];
  looking.answers = trained.classify(bytes, kAnswers);
  for (const auto& windows : trained.model().forward_with_windows(trained.view(bytes)).second) {
    looking.layers.push_back(eval::look_at(form.pool, windows, 2));
    looking.layers.back().statistics = statistics_of(form, windows).value();
  }
  check_layers(request.file, looking);
  looking.sizes_of = "this picture";
  if (request.most > 0 && !request.options.get<std::string>("data").empty()) count_sizes(request, trained, looking);
  return looking;
}

}  // namespace contextpool::tasks
