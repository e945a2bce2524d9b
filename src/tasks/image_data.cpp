#include "tasks/image_data.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/words.h"
#include "contextpool/data/images/cifar.h"
#include "contextpool/data/images/folder.h"
#include "contextpool/data/images/shapes.h"
#include "contextpool/data/images/tar.h"
#include "contextpool/data/permutation.h"
#include "contextpool/io/crc32c.h"
#include "contextpool/tasks/image_classifier.h"

namespace contextpool::tasks {
namespace {

namespace fs = std::filesystem;
using data::BatchChoices;
using torch::Tensor;

constexpr std::int64_t kMostNotes = 10;      // pictures that are named; the rest are counted
constexpr std::uint64_t kShuffleKey = 2022;  // of the held-out pictures: the same in every run
constexpr std::int64_t kShapeTrain = 10'000, kShapeTest = 2'000;
constexpr std::int64_t kNoiseBytes = std::int64_t{1} << 27, kMostNoise = 4096, kLeastNoise = 512, kNoiseClasses = 1000;

std::uint32_t checksum(const Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return io::crc32c(std::as_bytes(std::span(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes())));
}

struct Labelled {
  Tensor pictures, labels;  // uint8 [N, 3, S, S], int64 [N]
};

Labelled labelled(const data::LabelledBytes& bytes) {
  const auto size = bytes.size();
  return {torch::tensor(c10::ArrayRef<std::uint8_t>(bytes.pixels), torch::kByte)
              .view({size, data::kColours, data::kCifarSide, data::kCifarSide}),
          torch::tensor(c10::ArrayRef<std::int64_t>(bytes.labels), torch::kLong)};
}

// What is chosen for each row of a training batch. Rows of one epoch are chosen for together; a batch has parts of two
// at most, but where epochs are shorter than a batch.
Tensor choices_for(const data::BatchOptions& options, std::int64_t side, std::int64_t seed,
                   const std::vector<ImageRow>& rows) {
  std::vector<Tensor> choices;
  for (std::size_t begin = 0; begin < rows.size();) {
    const auto epoch = rows[begin].epoch;
    std::vector<std::int64_t> indices;
    for (; begin < rows.size() && rows[begin].epoch == epoch; ++begin) {
      indices.push_back(data::index_of_copy(rows[begin].picture, rows[begin].copy));
    }
    choices.push_back(data::choose_for_batch(options, side, side, seed, epoch, indices).numbers);
  }
  return torch::cat(choices);
}

// Pictures that are in memory whole.
class TensorImages : public ImageData {
 public:
  TensorImages(const Labelled& train, Labelled test, std::vector<std::string> names,
               const ClassificationOptions& options, const data::Normalization& normalization)
      : test_(std::move(test)), names_(std::move(names)), normalization_(normalization) {
    const auto all = train.labels.size(0), held = options.dev_images;
    TORCH_CHECK_VALUE(held >= 0 && held < all, "contextpool: dev-images is ", held, ", expected 0 to ", all - 1,
                      " of the ", all, " training pictures");
    identity_ = nlohmann::ordered_json{{"pictures", all},
                                       {"held_out", held},
                                       {"crc32c", checksum(train.pictures)},
                                       {"labels_crc32c", checksum(train.labels)}}
                    .dump();
    std::vector<std::int64_t> order(static_cast<std::size_t>(all));
    for (std::int64_t i = 0; i < all; ++i) order[static_cast<std::size_t>(i)] = data::permuted(i, all, kShuffleKey);
    const auto shuffled = torch::tensor(order);
    const auto take = [&](std::int64_t begin, std::int64_t end) {
      const auto rows = std::get<0>(shuffled.slice(0, begin, end).sort());
      return Labelled{train.pictures.index_select(0, rows), train.labels.index_select(0, rows)};
    };
    train_ = take(0, all - held);
    dev_ = held > 0 ? take(all - held, all) : test_;
    batch_.pad = options.pad;
    batch_.flip_probability = options.flip;
    batch_.erase.probability = options.erase;
    on_device_ = train_.pictures;
  }

  const std::vector<std::string>& class_names() const override { return names_; }
  std::int64_t size(ImageSplit split) const override { return of(split).labels.size(0); }
  std::string identity() const override { return identity_; }
  const data::Normalization& normalization() const override { return normalization_; }
  void to(torch::Device device) override { on_device_ = train_.pictures.to(device); }

  std::vector<Tensor> training_rows(std::int64_t seed, const std::vector<ImageRow>& rows) const override {
    std::vector<std::int64_t> pictures;
    for (const auto& row : rows) pictures.push_back(row.picture);
    const auto index = torch::tensor(pictures);
    return {index, choices_for(batch_, train_.pictures.size(3), seed, rows), train_.labels.index_select(0, index)};
  }

  Tensor images(const std::vector<Tensor>& tensors) const override {
    return data::augment_batch(on_device_, BatchChoices{tensors[1], batch_.erase.probability > 0}, normalization(),
                               tensors[0]);
  }

  Scored scored(ImageSplit split, std::int64_t first, std::int64_t count, torch::Device device) const override {
    const auto& from = of(split);
    return {data::normalize_batch(from.pictures.slice(0, first, first + count).to(device), normalization()),
            from.labels.slice(0, first, first + count).to(device)};
  }

 private:
  const Labelled& of(ImageSplit split) const {
    return split == ImageSplit::train ? train_ : split == ImageSplit::dev ? dev_ : test_;
  }

  Labelled train_, dev_, test_;
  Tensor on_device_;  // the training pictures
  std::vector<std::string> names_;
  data::Normalization normalization_;
  std::string identity_;
  data::BatchOptions batch_;
};

std::unique_ptr<data::PictureCollection> open_collection(const fs::path& folder, std::vector<std::string> names) {
  TORCH_CHECK_VALUE(fs::is_directory(folder), folder.string(), ": there is no such folder of pictures");
  const auto shards = data::tar_files(folder);
  if (!shards.empty()) return std::make_unique<data::TarShards>(shards, std::move(names));
  return std::make_unique<data::PictureFolder>(folder, std::move(names));
}

// Pictures in files.
class FileImages : public ImageData {
 public:
  FileImages(const fs::path& folder, const ClassificationOptions& options, std::int64_t image_size,
             const data::Normalization& normalization)
      : train_(open_collection(folder / "train", {})),
        val_(open_collection(folder / "val", train_->class_names())),
        normalization_(normalization) {
    for (const auto* set : {train_.get(), val_.get()}) {
      TORCH_CHECK_VALUE(set->size() > 0, folder.string(), ": no pictures in it (train/CLASS/*.jpg, val/CLASS/*.jpg)");
    }
    check_class_names(train_->class_names(), folder.string());
    TORCH_CHECK_VALUE(train_->class_names().size() > 1, folder.string(), ": pictures of one class only, \"",
                      train_->class_names().front(), "\"; there is nothing to tell apart");
    view_.size = image_size;
    view_.crop.min_area = options.min_area;
    view_.flip_probability = options.flip;
    view_.central_ratio = options.central_ratio;
    view_.jitter = options.jitter;
    view_.use_rand_augment = !options.rand_augment.empty();
    if (view_.use_rand_augment) view_.rand_augment = data::rand_augment_named(options.rand_augment);
    batch_.pad = 0;
    batch_.flip_probability = 0;  // done when the picture is decoded
    batch_.erase.probability = options.erase;
    const auto above = (folder / "train").string().size();  // wherever that is now
    std::string names;
    for (std::int64_t i = 0; i < train_->size(); ++i)
      names += train_->name(i).substr(above) + '\n' + std::to_string(train_->label(i));
    identity_ = nlohmann::ordered_json{{"pictures", train_->size()},
                                       {"names_crc32c", io::crc32c(std::as_bytes(std::span(names)))}}
                    .dump();
  }

  const std::vector<std::string>& class_names() const override { return train_->class_names(); }
  std::int64_t size(ImageSplit split) const override { return of(split).size(); }
  std::string identity() const override { return identity_; }
  const data::Normalization& normalization() const override { return normalization_; }

  std::vector<Tensor> training_rows(std::int64_t seed, const std::vector<ImageRow>& rows) const override {
    std::vector<data::PictureRow> wanted;
    for (const auto& row : rows) wanted.push_back({row.picture, row.epoch, row.copy});
    const auto count = static_cast<std::int64_t>(rows.size());
    auto pixels = torch::empty({count, data::kColours, view_.size, view_.size},
                               torch::TensorOptions(torch::kByte).memory_format(torch::MemoryFormat::ChannelsLast));
    auto labels = torch::empty({count}, torch::kLong);
    data::ThreadPool here(1);  // the loaders are the threads
    note(data::load_for_training(*train_, wanted, view_, seed, here, pixels, labels));
    return {pixels, choices_for(batch_, view_.size, seed, rows), labels};
  }

  Tensor images(const std::vector<Tensor>& tensors) const override {
    const auto normal = data::normalize_batch(tensors[0], normalization_);
    return batch_.erase.probability > 0 ? data::erase_batch(normal, BatchChoices{tensors[1], true}) : normal;
  }

  Scored scored(ImageSplit split, std::int64_t first, std::int64_t count, torch::Device device) const override {
    std::vector<data::PictureRow> rows;
    for (auto i = first; i < first + count; ++i) rows.push_back({i});
    auto pixels = torch::empty({count, data::kColours, view_.size, view_.size}, torch::kByte);
    auto labels = torch::empty({count}, torch::kLong);
    data::ThreadPool pool(at::get_num_threads());
    note(data::load_for_evaluation(of(split), rows, view_, pool, pixels, labels));
    return {data::normalize_batch(pixels.to(device), normalization_), labels.to(device)};
  }

 private:
  const data::PictureCollection& of(ImageSplit split) const { return split == ImageSplit::train ? *train_ : *val_; }

  std::unique_ptr<data::PictureCollection> train_, val_;
  data::ViewOptions view_;
  data::BatchOptions batch_;
  data::Normalization normalization_;
  std::string identity_;
};

std::unique_ptr<ImageData> noise(const ClassificationOptions& options, std::int64_t side,
                                 const data::Normalization& normalization) {
  const auto count = std::clamp(kNoiseBytes / (data::kColours * side * side), kLeastNoise, kMostNoise);
  const auto generator = at::detail::createCPUGenerator(/*seed_val=*/1);
  const Labelled all{torch::randint(0, 256, {count, data::kColours, side, side}, generator, torch::kByte),
                     torch::randint(0, kNoiseClasses, {count}, generator, torch::kLong)};
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < kNoiseClasses; ++i) names.push_back("class " + std::to_string(i));
  return std::make_unique<TensorImages>(all, all, std::move(names), options, normalization);
}

std::string format_of(const ClassificationOptions& options) {
  check_format(options.format);
  if (options.format != "auto") return options.format;
  if (options.data == "shapes" || fs::path(options.data).filename() == "shapes") return "shapes";
  if (options.data == kNoisePictures) return kNoisePictures;
  const fs::path folder = options.data;
  if (fs::is_directory(folder / "train")) return "folder";
  for (const auto& place : {folder, folder / "cifar-10-batches-bin"}) {
    if (fs::exists(place / "data_batch_1.bin")) return "cifar10";
  }
  for (const auto& place : {folder, folder / "cifar-100-binary"}) {
    if (fs::exists(place / "train.bin")) return "cifar100";
  }
  TORCH_CHECK_VALUE(false, options.data,
                    ": no pictures found; expected train/ and val/ with a folder for each class or ",
                    "tar shards, or CIFAR's binary files (data_batch_1.bin or train.bin, unpacked)");
}

}  // namespace

void check_format(const std::string& format) {
  check_word("contextpool", "format", format, {"auto", "cifar10", "cifar100", "folder", "shapes", kNoisePictures});
}

bool is_central_ratio(double ratio) {
  constexpr double kLeast = 0.01;
  return ratio >= kLeast && ratio <= 1;
}

ImageSplit image_split_named(const std::string& name) {
  check_word("contextpool", "split", name, {"train", "dev", "test"});
  return name == "train" ? ImageSplit::train : name == "dev" ? ImageSplit::dev : ImageSplit::test;
}

std::vector<std::string> ImageData::take_notes() const {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

void ImageData::note(const std::vector<data::BrokenPicture>& broken) const {
  if (broken.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& picture : broken) {
    if (++broken_ <= kMostNotes) notes_.push_back("skipped a picture that cannot be read: " + picture.reason);
    if (broken_ == kMostNotes) notes_.emplace_back("more such pictures are skipped without a word");
  }
}

std::unique_ptr<ImageData> open_images(const ClassificationOptions& options, std::int64_t image_size,
                                       const std::optional<data::Normalization>& normalization) {
  const auto format = format_of(options);
  const std::string usual = format == "folder" ? "imagenet" : "cifar";
  const auto chosen =
      normalization.value_or(normalization_named(options.normalization == "auto" ? usual : options.normalization));
  if (format == "folder") return std::make_unique<FileImages>(options.data, options, image_size, chosen);
  if (format == kNoisePictures) return noise(options, image_size, chosen);
  TORCH_CHECK_VALUE(image_size == data::kCifarSide, "contextpool: the pictures of ", format, " have ", data::kCifarSide,
                    " x ", data::kCifarSide, " pixels, but the model is for ", image_size, "; give it --image-size ",
                    data::kCifarSide);
  if (format == "shapes") {
    const auto train = data::make_shapes(0, 0, kShapeTrain), test = data::make_shapes(0, kShapeTrain, kShapeTest);
    return std::make_unique<TensorImages>(Labelled{train.pictures, train.labels}, Labelled{test.pictures, test.labels},
                                          data::shape_names(), options, chosen);
  }
  const auto cifar = data::read_cifar(options.data, format == "cifar10" ? 10 : 100);
  return std::make_unique<TensorImages>(labelled(cifar.train), labelled(cifar.test), cifar.class_names, options,
                                        chosen);
}

}  // namespace contextpool::tasks
