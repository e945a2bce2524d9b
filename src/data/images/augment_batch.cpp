#include "contextpool/data/images/augment_batch.h"

#include <torch/torch.h>

#include <map>
#include <mutex>

#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

enum Column : std::int64_t { kFlip, kShiftX, kShiftY, kLeft, kTop, kWidth, kHeight, kKey, kColumns };
constexpr std::int64_t kLevels = 1 << 16;  // of the noise

using at::indexing::None;
using at::indexing::Slice;

void check_pictures(const at::Tensor& pictures) {
  TORCH_CHECK_VALUE(pictures.scalar_type() == at::kByte && pictures.dim() == 4 && pictures.size(1) == kColours,
                    "augment_batch: pictures must be uint8 [N, 3, H, W], but are ", pictures.scalar_type(), " ",
                    pictures.sizes());
}

void check_choices(const at::Tensor& choices, std::int64_t rows, const at::Tensor& batch) {
  TORCH_CHECK_VALUE(choices.scalar_type() == at::kLong && choices.sizes() == at::IntArrayRef({rows, kColumns}),
                    "augment_batch: choices must be int64 [", rows, ", ", static_cast<std::int64_t>(kColumns),
                    "], but are ", choices.scalar_type(), " ", choices.sizes());
  TORCH_CHECK_VALUE(choices.device() == batch.device(), "augment_batch: choices are on ", choices.device(),
                    ", the pictures on ", batch.device());
}

void check_batch(const at::Tensor& batch) {
  TORCH_CHECK_VALUE(batch.is_floating_point() && batch.dim() == 4,
                    "images: a batch must be float [B, 3, H, W], but is ", batch.scalar_type(), " ", batch.sizes());
}

at::Tensor column(const at::Tensor& choices, Column which) { return choices.select(1, which).view({-1, 1}); }

// Multiplied and added one after the other, so that no device may round once where others round twice.
at::Tensor normalized(const at::Tensor& bytes, const Normalization& normalization) {
  std::array<float, kColours> scale{}, shift{};
  for (std::size_t c = 0; c < kColours; ++c) {
    scale[c] = static_cast<float>(1 / (255 * normalization.deviation[c]));
    shift[c] = static_cast<float>(-normalization.mean[c] / normalization.deviation[c]);
  }
  // From pinned memory, so that nobody waits for the copy, and for the device before it.
  const auto on_device = [&](const std::array<float, kColours>& values) {
    const auto here = torch::tensor(at::ArrayRef<float>(values.data(), values.size())).view({1, kColours, 1, 1});
    return bytes.is_cpu() ? here : here.pin_memory().to(bytes.device(), /*non_blocking=*/true);
  };
  return bytes.to(at::kFloat).mul_(on_device(scale)).add_(on_device(shift));
}

// Quantiles of the normal distribution at (k + 1/2) / levels: 16 random bits become a number without a logarithm, whose
// last bit differs from device to device. Made on the CPU, kept on each device.
at::Tensor normal_table(const at::Device& device) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceType, int>, at::Tensor> tables;
  const std::scoped_lock lock(mutex);
  auto& table = tables[{device.type(), static_cast<int>(device.index())}];
  if (!table.defined()) {
    const auto p = torch::arange(kLevels, torch::kDouble).add(0.5).div(static_cast<double>(kLevels));
    table = p.mul(2).sub(1).erfinv().mul(std::sqrt(2.0)).to(at::kFloat).to(device);
  }
  return table;
}

// splitmix64 on a tensor, as base/splitmix64.h has it on a number; >> keeps the sign there, so the upper bits are cut.
at::Tensor finalized(const at::Tensor& numbers) {
  const auto shifted = [](const at::Tensor& z, int by) {
    return z.__rshift__(by).bitwise_and((std::int64_t{1} << (64 - by)) - 1);
  };
  constexpr auto kGamma = static_cast<std::int64_t>(0x9e3779b97f4a7c15ULL);
  constexpr auto kFirst = static_cast<std::int64_t>(0xbf58476d1ce4e5b9ULL);
  constexpr auto kSecond = static_cast<std::int64_t>(0x94d049bb133111ebULL);
  auto z = numbers.add(kGamma);
  z = z.bitwise_xor(shifted(z, 30)).mul(kFirst);
  z = z.bitwise_xor(shifted(z, 27)).mul(kSecond);
  return z.bitwise_xor(shifted(z, 31));
}

// Normal numbers for each pixel and colour [B, 3, H, W], a function of the rows' keys.
at::Tensor noise_of(const at::Tensor& keys, std::int64_t height, std::int64_t width) {
  const auto places = torch::arange(kColours * height * width, keys.options());
  const auto bits = finalized(keys.view({-1, 1}).bitwise_xor(finalized(places)));
  const auto levels = bits.bitwise_and(kLevels - 1);
  return normal_table(keys.device()).index({levels}).view({-1, kColours, height, width});
}

}  // namespace

BatchChoices choose_for_batch(const BatchOptions& options, std::int64_t width, std::int64_t height, std::int64_t seed,
                              std::int64_t epoch, std::span<const std::int64_t> indices) {
  auto choices = torch::zeros({static_cast<std::int64_t>(indices.size()), kColumns}, torch::kLong);
  auto* row = choices.mutable_data_ptr<std::int64_t>();
  for (const auto index : indices) {
    const auto draws = [&](Purpose purpose) { return Draws(seed, epoch, index, purpose); };
    row[kFlip] = draws(Purpose::flip).chance(options.flip_probability) ? 1 : 0;
    auto shift = draws(Purpose::pad_crop);
    row[kShiftX] = shift.below(2 * options.pad + 1) - options.pad;
    row[kShiftY] = shift.below(2 * options.pad + 1) - options.pad;
    const auto box = random_erasing(width, height, options.erase, draws(Purpose::erase));
    row[kLeft] = box.left;
    row[kTop] = box.top;
    row[kWidth] = box.width;
    row[kHeight] = box.height;
    row[kKey] = static_cast<std::int64_t>(draws(Purpose::erase_noise).bits());
    row += kColumns;
  }
  return {choices, options.erase.probability > 0};
}

at::Tensor augment_batch(const at::Tensor& pictures, const BatchChoices& chosen, const Normalization& normalization,
                         const std::optional<at::Tensor>& rows) {
  check_pictures(pictures);
  const auto height = pictures.size(2), width = pictures.size(3);
  const auto count = rows ? rows->size(0) : pictures.size(0);
  const auto& choices = chosen.numbers;
  check_choices(choices, count, pictures);
  const auto places = [&](std::int64_t n) { return torch::arange(n, choices.options()).view({1, n}); };
  // Pixel x of the result is pixel x (or its mirror image) plus the shift of the picture; outside it is black.
  const auto x = places(width);
  const auto from_x =
      torch::where(column(choices, kFlip).eq(1), x.neg().add(width - 1), x).add(column(choices, kShiftX));
  const auto from_y = places(height).add(column(choices, kShiftY));
  const auto inside_x = from_x.ge(0).logical_and(from_x.lt(width));
  const auto inside_y = from_y.ge(0).logical_and(from_y.lt(height));
  const auto b = rows ? *rows : torch::arange(count, choices.options());
  auto bytes = pictures.index({b.view({-1, 1, 1, 1}), torch::arange(kColours, choices.options()).view({1, -1, 1, 1}),
                               from_y.clamp(0, height - 1).view({-1, 1, height, 1}),
                               from_x.clamp(0, width - 1).view({-1, 1, 1, width})});
  bytes = bytes.mul_(inside_y.view({-1, 1, height, 1}).logical_and(inside_x.view({-1, 1, 1, width})));
  return erase_batch(normalized(bytes, normalization), chosen);
}

at::Tensor normalize_batch(const at::Tensor& pictures, const Normalization& normalization) {
  check_pictures(pictures);
  return normalized(pictures, normalization);
}

at::Tensor erase_batch(const at::Tensor& batch, const BatchChoices& chosen) {
  check_batch(batch);
  const auto& choices = chosen.numbers;
  check_choices(choices, batch.size(0), batch);
  if (!chosen.erases) return batch;
  const auto height = batch.size(2), width = batch.size(3);
  const auto within = [&](std::int64_t n, Column from, Column length) {
    const auto place = torch::arange(n, choices.options()).view({1, n}).sub(column(choices, from));
    return place.ge(0).logical_and(place.lt(column(choices, length)));
  };
  const auto erased = within(height, kTop, kHeight)
                          .view({-1, 1, height, 1})
                          .logical_and(within(width, kLeft, kWidth).view({-1, 1, 1, width}));
  return torch::where(erased, noise_of(choices.select(1, kKey), height, width).to(batch.scalar_type()), batch);
}

at::Tensor mix_batch(const at::Tensor& batch, const Mix& mix) {
  check_batch(batch);
  if (mix.lambda == 1) return batch;
  const auto other = batch.flip(0);
  if (mix.box.width == 0 || mix.box.height == 0) return batch.mul(mix.lambda).add_(other.mul(1 - mix.lambda));
  auto mixed = batch.clone();
  const auto part = [&](const at::Tensor& t) {
    return t.slice(2, mix.box.top, mix.box.top + mix.box.height).slice(3, mix.box.left, mix.box.left + mix.box.width);
  };
  part(mixed).copy_(part(other));
  return mixed;
}

at::Tensor mix_targets(const at::Tensor& labels, std::int64_t classes, const Mix& mix, double smoothing) {
  TORCH_CHECK_VALUE(labels.scalar_type() == at::kLong && labels.dim() == 1,
                    "mix_targets: labels must be int64 [B], but are ", labels.scalar_type(), " ", labels.sizes());
  const double off = smoothing / static_cast<double>(classes), on = 1 - smoothing + off;
  const auto target = torch::full({labels.size(0), classes}, off, labels.options().dtype(at::kFloat))
                          .scatter_(1, labels.view({-1, 1}), on);
  return target.mul(mix.lambda).add_(target.flip(0).mul(1 - mix.lambda));
}

}  // namespace contextpool::data
