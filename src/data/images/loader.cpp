#include "contextpool/data/images/loader.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace contextpool::data {
namespace {

constexpr std::int64_t kTries = 16;

// Where rows go. A picture is made with its colours side by side, which is channels-last already.
class Target {
 public:
  Target(const at::Tensor& pixels, const at::Tensor& labels, std::int64_t rows, std::int64_t size) : size_(size) {
    TORCH_CHECK_VALUE(pixels.scalar_type() == at::kByte && pixels.device().is_cpu() &&
                          pixels.sizes() == at::IntArrayRef({rows, kColours, size, size}),
                      "images: pixels must be uint8 [", rows, ", 3, ", size, ", ", size, "] on the CPU, but are ",
                      pixels.scalar_type(), " ", pixels.sizes(), " on ", pixels.device());
    TORCH_CHECK_VALUE(labels.scalar_type() == at::kLong && labels.device().is_cpu() && labels.is_contiguous() &&
                          labels.sizes() == at::IntArrayRef({rows}),
                      "images: labels must be int64 [", rows, "] on the CPU, but are ", labels.scalar_type(), " ",
                      labels.sizes(), " on ", labels.device());
    beside_ = pixels.is_contiguous(at::MemoryFormat::ChannelsLast) && !pixels.is_contiguous();
    TORCH_CHECK_VALUE(beside_ || pixels.is_contiguous(), "images: pixels must be contiguous or channels-last");
    pixels_ = pixels.mutable_data_ptr<std::uint8_t>();
    labels_ = labels.mutable_data_ptr<std::int64_t>();
  }

  // Calls make(out) to fill the row.
  template <class Make>
  void put(std::int64_t row, std::int64_t label, Make make) const {
    const auto area = size_ * size_;
    auto* const out = pixels_ + row * kColours * area;
    if (beside_) {
      make(out);
    } else {
      const auto scratch = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(kColours * area));
      make(scratch.get());
      for (std::int64_t c = 0; c < kColours; ++c)
        for (std::int64_t i = 0; i < area; ++i) out[c * area + i] = scratch[static_cast<std::size_t>(i * kColours + c)];
    }
    labels_[row] = label;
  }

 private:
  std::int64_t size_;
  bool beside_ = false;
  std::uint8_t* pixels_ = nullptr;
  std::int64_t* labels_ = nullptr;
};

void check_rows(const PictureCollection& pictures, std::span<const PictureRow> rows) {
  for (const auto& row : rows)
    TORCH_CHECK_VALUE(row.picture >= 0 && row.picture < pictures.size(), "images: picture ", row.picture,
                      " was asked for; there are ", pictures.size());
}

// Each row on some thread; what is broken, in the order of rows.
template <class Load>
std::vector<BrokenPicture> load(std::span<const PictureRow> rows, ThreadPool& pool, Load load_row) {
  std::vector<std::vector<BrokenPicture>> broken(rows.size());
  pool.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t r) {
    load_row(r, rows[static_cast<std::size_t>(r)], broken[static_cast<std::size_t>(r)]);
  });
  std::vector<BrokenPicture> all;
  for (auto& of_row : broken) std::move(of_row.begin(), of_row.end(), std::back_inserter(all));
  return all;
}

std::string reason(const PictureCollection& pictures, std::int64_t picture, const io::Error& error) {
  const bool unnamed = dynamic_cast<const ImageError*>(&error) != nullptr;
  return unnamed ? pictures.name(picture) + ": " + error.what() : error.what();
}

}  // namespace

std::vector<BrokenPicture> load_for_training(const PictureCollection& pictures, std::span<const PictureRow> rows,
                                             const ViewOptions& options, std::int64_t seed, ThreadPool& pool,
                                             const at::Tensor& pixels, const at::Tensor& labels) {
  check_rows(pictures, rows);
  const Target target(pixels, labels, static_cast<std::int64_t>(rows.size()), options.size);
  return load(rows, pool, [&](std::int64_t r, const PictureRow& row, std::vector<BrokenPicture>& broken) {
    for (std::int64_t k = 0; k < kTries; ++k) {
      const auto picture = (row.picture + k) % pictures.size();
      try {
        const auto bytes = pictures.bytes(picture);
        target.put(r, pictures.label(picture), [&](std::uint8_t* out) {
          view_for_training(std::as_bytes(std::span(bytes)), options, seed, row.epoch, index_of_copy(picture, row.copy),
                            out);
        });
        return;
      } catch (const io::Error& error) {
        broken.push_back({picture, reason(pictures, picture, error)});
      }
    }
    throw io::Error("images: " + std::to_string(kTries) +
                    " pictures in a row cannot be read, the first: " + broken.front().reason);
  });
}

std::vector<BrokenPicture> load_for_evaluation(const PictureCollection& pictures, std::span<const PictureRow> rows,
                                               const ViewOptions& options, ThreadPool& pool, const at::Tensor& pixels,
                                               const at::Tensor& labels) {
  check_rows(pictures, rows);
  const Target target(pixels, labels, static_cast<std::int64_t>(rows.size()), options.size);
  return load(rows, pool, [&](std::int64_t r, const PictureRow& row, std::vector<BrokenPicture>& broken) {
    try {
      const auto bytes = pictures.bytes(row.picture);
      target.put(r, pictures.label(row.picture),
                 [&](std::uint8_t* out) { view_for_evaluation(std::as_bytes(std::span(bytes)), options, out); });
    } catch (const io::Error& error) {
      broken.push_back({row.picture, reason(pictures, row.picture, error)});
      target.put(r, -1, [&](std::uint8_t* out) { std::fill_n(out, kColours * options.size * options.size, 0); });
    }
  });
}

LabelledTensors as_tensors(LabelledBytes records) {
  const auto count = records.size();
  const auto owner = std::make_shared<LabelledBytes>(std::move(records));
  const auto keep = [owner](void*) {};  // until the last tensor goes
  return {at::from_blob(owner->pixels.data(), {count, kColours, kCifarSide, kCifarSide}, keep, at::kByte),
          at::from_blob(owner->labels.data(), {count}, keep, at::kLong)};
}

}  // namespace contextpool::data
