#include "contextpool/data/images/view.h"

#include <algorithm>
#include <cmath>

namespace contextpool::data {
namespace {

RealBox all_of(const Image& image) {
  return {0, 0, static_cast<double>(image.width()), static_cast<double>(image.height())};
}

}  // namespace

void view_for_training(std::span<const std::byte> bytes, const ViewOptions& options, std::int64_t seed,
                       std::int64_t epoch, std::int64_t index, std::uint8_t* out) {
  const auto draws = [&](Purpose purpose) { return Draws(seed, epoch, index, purpose); };
  ImageDecoder decoder(bytes, options.limits);
  const auto box = random_resized_crop(decoder.info().width, decoder.info().height, options.crop, draws(Purpose::crop));
  Image image(options.size, options.size);
  if (options.reduce) {
    const auto region = decoder.decode_region(box, options.size, options.size);
    resize_into(region.image, options.size, options.size, options.filter,
                {region.left, region.top, region.right, region.bottom}, image.bytes().data());
  } else {
    const auto part = decoder.decode(box);
    resize_into(part, options.size, options.size, options.filter, all_of(part), image.bytes().data());
  }
  if (draws(Purpose::flip).chance(options.flip_probability)) flip(image);
  if (options.use_rand_augment) {
    apply(image, rand_augment(options.rand_augment, draws(Purpose::operations)), options.operations);
  } else if (options.jitter > 0) {
    apply(image, colour_jitter(options.jitter, draws(Purpose::operations)), options.operations);
  }
  std::copy_n(image.bytes().data(), image.bytes().size(), out);
}

void view_for_evaluation(std::span<const std::byte> bytes, const ViewOptions& options, std::uint8_t* out) {
  ImageDecoder decoder(bytes, options.limits);
  const auto box = central_box(decoder.info().width, decoder.info().height, options.size, options.central_ratio);
  const auto image = decoder.decode();
  resize_into(image, options.size, options.size, options.filter, box, out);
}

}  // namespace contextpool::data
