#include "contextpool/tasks/classification.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/words.h"
#include "contextpool/data/batch.h"
#include "contextpool/data/sampler.h"
#include "contextpool/models/vision.h"
#include "contextpool/runtime/device.h"
#include "tasks/classification_eval.h"
#include "tasks/image_data.h"
#include "tasks/image_looking.h"
#include "tasks/starting_weights.h"

namespace contextpool::tasks {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr std::int64_t kLookedAt = 16;  // dev pictures whose windows are logged
constexpr std::int64_t kMostRepeats = 100;

class Classification : public Task {
 public:
  Classification(const TaskKind& kind, const models::Family& family, const OptionList& model, const OptionList& options)
      : Task(kind, family, model, options) {
    assign_options(options_, options);
    size_ = model.get<std::int64_t>("image_size");
    data_ = open_images(options_, size_);
    classes_ = static_cast<std::int64_t>(data_->class_names().size());
    set_model_option("classes", classes_);
    mix_.mixup = options_.mixup;
    mix_.cutmix = options_.cutmix;
  }

  std::string data_identity() const override { return data_->identity(); }
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override {
    TORCH_CHECK_VALUE(trained_on == data_->identity(), options_.data, ": not the pictures of this run: ", checkpoint,
                      " was trained on ", trained_on, ", these are ", data_->identity());
  }
  io::Metadata metadata(const StepPlace& /*place*/) const override {
    return {{kClassesKey, classes_metadata(data_->class_names())},
            {kImagesKey, images_metadata(data_->normalization(), options_.central_ratio)}};
  }
  void check_stage(std::int64_t /*length*/, std::int64_t batch) const override {
    TORCH_CHECK_VALUE(batch <= data_->size(ImageSplit::train), "contextpool: a batch of ", batch,
                      " pictures, but only ", data_->size(ImageSplit::train), " are there to train on");
  }
  std::int64_t steps_per_epoch(std::int64_t /*length*/, std::int64_t batch) const override {
    return (epoch_places() + batch - 1) / batch;
  }
  double units_per_step(std::int64_t /*length*/, std::int64_t batch) const override {
    return static_cast<double>(batch);
  }

  // Tensors: those of the pictures, then the mix (lambda, box) of the part. The mix stays on the CPU: reading it from a
  // device would mean to wait for all work before it.
  Batch batch(const StepPlace& place, Part part) const override {
    const auto rows = data::part_of({0, place.batch}, part.index, part.count);
    const auto count = rows.end - rows.begin;
    std::vector<ImageRow> wanted;
    wanted.reserve(static_cast<std::size_t>(count));
    for (auto row = rows.begin; row < rows.end; ++row) wanted.push_back(row_at(place.seed, place.items_before + row));
    auto tensors = data_->training_rows(place.seed, wanted);
    const auto mix =
        data::choose_mix(size_, size_, mix_, data::Draws(place.seed, place.step, part.index, data::Purpose::mix));
    tensors.push_back(torch::tensor({mix.lambda, static_cast<double>(mix.box.left), static_cast<double>(mix.box.top),
                                     static_cast<double>(mix.box.width), static_cast<double>(mix.box.height)},
                                    torch::kDouble));
    return {std::move(tensors), static_cast<double>(count), count, /*stay=*/1};
  }

  // The augmented pictures and their labels; where pictures may be mixed, targets [rows, classes] instead.
  std::vector<Tensor> inputs(std::vector<Tensor> batch) override {
    auto images = data_->images(batch);
    const auto& labels = batch[batch.size() - 2];
    if (mix_.mixup == 0 && mix_.cutmix == 0) return {formatted(images), labels};
    const auto mix = mix_of(batch.back());
    if (mix.lambda < 1) images = data::mix_batch(images, mix);
    return {formatted(images), data::mix_targets(labels, classes_, mix, options_.label_smoothing).to(torch::kFloat)};
  }

  bool replayable() const override { return true; }

  Tensor loss(const std::vector<Tensor>& inputs, bool bfloat16) override {
    const auto &images = inputs[0], &targets = inputs[1];
    Tensor logits;
    {
      const runtime::Autocast autocast(device(), bfloat16);
      logits = classifier().forward(images);
    }
    logits = logits.to(torch::kFloat);
    const bool smoothed = targets.dim() == 2;
    const auto options =
        F::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(smoothed ? 0 : options_.label_smoothing);
    const auto sum = [&](const Tensor& of) { return F::cross_entropy(of, targets, options); };
    // Without a teacher both heads of a distilled model learn from the labels.
    return logits.dim() == 3 ? (sum(logits.select(1, 0)) + sum(logits.select(1, 1))) / 2 : sum(logits);
  }

  std::vector<std::string> take_notes() override {
    auto notes = data_->take_notes();
    if (!started_from_.empty()) notes.insert(notes.begin(), std::exchange(started_from_, {}));
    return notes;
  }

  std::optional<Score> score_dev(const StepPlace& /*place*/, bool bfloat16) override {
    const auto score = score_images(classifier(), *data_, ImageSplit::dev, options_.eval_batch, device(), bfloat16,
                                    options_.channels_last);
    if (score.images == 0) return std::nullopt;  // none can be read, as the notes say
    return Score{{{"accuracy", score.top1()}, {"loss", score.loss}}, /*higher_is_better=*/true};
  }

  std::vector<nn::WindowStatistics> windows(const StepPlace& /*place*/, bool bfloat16) override {
    const auto form = looked_at_form(model_options());
    if (!nn::has_gaussian_windows(form.pool)) return {};
    const torch::NoGradGuard no_grad;
    const auto count = std::min(kLookedAt, data_->size(ImageSplit::dev));
    const auto images = data_->scored(ImageSplit::dev, 0, count, device()).images;
    classifier().eval();
    const runtime::Autocast autocast(device(), bfloat16);
    std::vector<nn::WindowStatistics> all;
    for (const auto& layer : classifier().forward_with_windows(formatted(images)).second) {
      if (const auto statistics = statistics_of(form, layer)) all.push_back(*statistics);
    }
    return all;
  }

 private:
  void on_built() override {
    data_->to(device());
    if (!options_.weights.empty()) {
      started_from_ = start_from(*model(), family(), options_.weights, data_->class_names());
    }
    if (!options_.channels_last) return;
    for (auto& p : model()->parameters()) {
      if (p.dim() == 4) p.set_data(p.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
  // Places of an epoch: a picture each, or with repeated augmentation a copy of one.
  std::int64_t epoch_places() const {
    const auto pictures = data_->size(ImageSplit::train);
    return options_.repeats > 1 ? data::repeated_epoch(pictures) : pictures;
  }
  // What stands at a place of the run, counted over all epochs.
  ImageRow row_at(std::int64_t seed, std::int64_t place) const {
    const auto pictures = data_->size(ImageSplit::train), epoch = place / epoch_places();
    const auto [of_order, copy] = data::repeated(place % epoch_places(), options_.repeats);
    const auto item = data::epoch_items(seed, pictures, epoch * pictures + of_order, 1).front();
    return {item.epoch, item.item, copy};
  }
  models::ImageClassifier& classifier() { return dynamic_cast<models::ImageClassifier&>(*model()); }
  Tensor formatted(const Tensor& images) const {
    return options_.channels_last ? images.contiguous(torch::MemoryFormat::ChannelsLast) : images.contiguous();
  }
  static data::Mix mix_of(const Tensor& numbers) {
    const auto here = numbers.cpu();
    const auto* n = here.const_data_ptr<double>();
    return {n[0],
            {static_cast<std::int64_t>(n[1]), static_cast<std::int64_t>(n[2]), static_cast<std::int64_t>(n[3]),
             static_cast<std::int64_t>(n[4])}};
  }

  ClassificationOptions options_;
  std::int64_t size_ = 0, classes_ = 0;
  std::unique_ptr<ImageData> data_;
  data::MixOptions mix_;
  std::string started_from_;  // a line for the user, until it is told
};

class ClassificationKind : public TaskKind {
 public:
  std::vector<std::string> families() const override { return {"vision_transformer", "swin", "resnet"}; }
  std::string unit() const override { return "images"; }
  std::string summary() const override { return "Trains a classifier of pictures."; }
  OptionList train_options() const override { return list_options(ClassificationOptions{}); }
  std::vector<std::string> derived_options() const override { return {"classes"}; }
  std::vector<std::string> path_options() const override { return {"data", "weights"}; }
  std::vector<std::string> fixed_options() const override {
    return {"format", "dev_images", "normalization", "repeats", "weights"};
  }

  void check(const OptionList& /*model*/, const OptionList& options, std::int64_t /*length*/, std::int64_t batch,
             std::int64_t parts) const override {
    ClassificationOptions o;
    assign_options(o, options);
    const auto check_range = [](const char* name, double value, double low, double high) {
      TORCH_CHECK_VALUE(value >= low && value <= high, "contextpool: ", name, " is ", value, ", expected ", low, " to ",
                        high);
    };
    check_range("flip", o.flip, 0, 1);
    check_range("erase", o.erase, 0, 1);
    check_range("jitter", o.jitter, 0, 1);
    check_range("label-smoothing", o.label_smoothing, 0, 1);
    check_range("min-area", o.min_area, 1e-6, 1);
    check_range("central-ratio", o.central_ratio, 0.01, 1);
    TORCH_CHECK_VALUE(o.mixup >= 0 && o.cutmix >= 0 && std::isfinite(o.mixup + o.cutmix), "contextpool: mixup is ",
                      o.mixup, " and cutmix ", o.cutmix, ", expected 0 or more");
    TORCH_CHECK_VALUE(o.eval_batch >= 1 && o.pad >= 0 && o.dev_images >= 0, "contextpool: eval-batch is ", o.eval_batch,
                      ", pad ", o.pad, ", dev-images ", o.dev_images, "; expected at least 1, 0 and 0");
    check_word("contextpool", "normalization", o.normalization, {"auto", "cifar", "imagenet", "half"});
    TORCH_CHECK_VALUE(o.repeats >= 1 && o.repeats <= kMostRepeats, "contextpool: repeats is ", o.repeats,
                      ", expected 1 to ", kMostRepeats);
    TORCH_CHECK_VALUE(o.weights.empty() || std::filesystem::exists(o.weights), "contextpool: weights: ", o.weights,
                      ": there is no such run or file");
    TORCH_CHECK_VALUE(parts <= batch, "contextpool: accumulate is ", parts, ", but a batch has only ", batch,
                      " pictures");
    if (o.rand_augment.empty()) return;
    try {
      data::rand_augment_named(o.rand_augment);
    } catch (const io::Error& e) {
      TORCH_CHECK_VALUE(false, "contextpool: rand-augment: ", e.what());
    }
  }
  double least_activations(const OptionList& model, std::int64_t /*length*/, double batch,
                           bool /*bfloat16*/) const override {
    constexpr double kFloat = 4;  // bytes; of the images alone
    const auto size = static_cast<double>(model.get<std::int64_t>("image_size"));
    return kFloat * static_cast<double>(data::kColours) * batch * size * size;
  }
  std::unique_ptr<Task> open(const models::Family& family, const OptionList& model,
                             const OptionList& options) const override {
    return std::make_unique<Classification>(*this, family, model, options);
  }
  OptionList generated_data(OptionList options) const override {
    options.set("data", std::string(kNoisePictures));
    options.set("dev_images", std::int64_t{0});
    options.set("pad", std::int64_t{0});  // which is the network's own step, without augmentation
    options.set("flip", 0.0);
    return options;
  }
  double flops_per_unit(const models::Family& family, const OptionList& model, std::int64_t /*length*/) const override {
    return family.cost(model, 0).flops;
  }
  OptionList eval_options() const override { return classification_eval_options(); }
  void check_eval(const EvalRequest& request) const override { check_classification_eval(request); }
  EvalResult evaluate(const EvalRequest& request) const override { return evaluate_classification(request); }
  std::string looks_at() const override { return "image"; }
  eval::Looking look(const LookRequest& request) const override { return look_at_picture(request); }
};

}  // namespace

std::unique_ptr<TaskKind> classification() { return std::make_unique<ClassificationKind>(); }

}  // namespace contextpool::tasks
