// Augmentation of small pictures in batches, on tensors of any device: shift with padding, flip, normalise, erase, mix.
// What is chosen for a picture is made on the CPU (a row of numbers); what is done gives the same bits on every device.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "contextpool/data/images/choices.h"

namespace contextpool::data {

// y = (x / 255 - mean) / deviation, a colour each.
struct Normalization {
  std::array<double, 3> mean = {0.485, 0.456, 0.406};  // ImageNet's
  std::array<double, 3> deviation = {0.229, 0.224, 0.225};
};
inline constexpr Normalization kCifarNormalization = {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};

struct BatchOptions {
  std::int64_t pad = 4;  // black pixels around, out of which a picture of the same size is cut
  double flip_probability = 0.5;
  EraseOptions erase = {.probability = 0};
};

// What was chosen for each row of a batch.
struct BatchChoices {
  // int64 [rows, 8]: flip, shift along x and y (-pad ... pad), left, top, width, height of what is erased, key of its
  // noise.
  at::Tensor numbers;
  bool erases = false;  // whether anything may be erased

  BatchChoices to(const at::Device& device) const { return {numbers.to(device, /*non_blocking=*/true), erases}; }
};
// On the CPU; each row a function of (seed, epoch, index) alone.
BatchChoices choose_for_batch(const BatchOptions& options, std::int64_t width, std::int64_t height, std::int64_t seed,
                              std::int64_t epoch, std::span<const std::int64_t> indices);

// float32 [B, 3, H, W] from uint8 pictures [N, 3, H, W]: row b is picture rows[b] (int64 [B]; without it, picture b) by
// row b of the choices. Erased pixels are normal noise, mean 0 and variance 1. All tensors are on one device.
at::Tensor augment_batch(const at::Tensor& pictures, const BatchChoices& choices, const Normalization& normalization,
                         const std::optional<at::Tensor>& rows = std::nullopt);

// The same without choices: for evaluation.
at::Tensor normalize_batch(const at::Tensor& pictures, const Normalization& normalization);

// Only the erasing, in a float batch [B, 3, H, W] that is normalized already.
at::Tensor erase_batch(const at::Tensor& batch, const BatchChoices& choices);

// Mixes a float batch [B, 3, H, W] with its reverse, and labels [B] to targets [B, classes] whose true class has
// 1 - smoothing + smoothing / classes before mixing, the others smoothing / classes.
at::Tensor mix_batch(const at::Tensor& batch, const Mix& mix);
at::Tensor mix_targets(const at::Tensor& labels, std::int64_t classes, const Mix& mix, double smoothing);

}  // namespace contextpool::data
