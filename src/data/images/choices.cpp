#include "contextpool/data/images/choices.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace contextpool::data {
namespace {

constexpr int kAttempts = 10;
constexpr double kStrongest = 10;  // of RandAugment's magnitudes

// Python's round(): halves to the even number.
std::int64_t rounded(double x) { return std::llrint(x); }

// A factor, an angle or a shift for each strength in 0 ... 10; signs are drawn where both make sense.
Operation strengthened(OperationKind kind, double strength, Draws& draws) {
  const double level = strength / kStrongest;
  const auto with_sign = [&](double x) { return draws.chance(0.5) ? -x : x; };
  switch (kind) {
    case OperationKind::autocontrast:
    case OperationKind::equalize:
    case OperationKind::invert: return {kind};
    case OperationKind::rotate: return {kind, with_sign(level * 30)};
    case OperationKind::posterize: return {kind, 4 - std::floor(level * 4)};
    case OperationKind::solarize: return {kind, 256 - std::min(256.0, std::floor(level * 256))};
    case OperationKind::solarize_add: return {kind, std::min(128.0, std::floor(level * 110))};
    case OperationKind::colour:
    case OperationKind::contrast:
    case OperationKind::brightness:
    case OperationKind::sharpness: return {kind, std::max(0.1, 1 + with_sign(level * 0.9))};
    case OperationKind::shear_x:
    case OperationKind::shear_y: return {kind, with_sign(level * 0.3)};
    case OperationKind::translate_x:
    case OperationKind::translate_y: return {kind, with_sign(level * 0.45)};
  }
  throw io::Error("RandAugment: no such operation");
}

}  // namespace

Box random_resized_crop(std::int64_t width, std::int64_t height, const CropOptions& options, Draws draws) {
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double area = w * h * draws.uniform(options.min_area, options.max_area);
    const double ratio = std::exp(draws.uniform(std::log(options.min_ratio), std::log(options.max_ratio)));
    const auto across = rounded(std::sqrt(area * ratio)), down = rounded(std::sqrt(area / ratio));
    if (across < 1 || down < 1 || across > width || down > height) continue;
    const auto top = draws.below(height - down + 1);
    return {draws.below(width - across + 1), top, across, down};
  }
  Box box{0, 0, width, height};
  if (w / h < options.min_ratio) box.height = std::clamp<std::int64_t>(rounded(w / options.min_ratio), 1, height);
  if (w / h > options.max_ratio) box.width = std::clamp<std::int64_t>(rounded(h * options.max_ratio), 1, width);
  box.left = (width - box.width) / 2;
  box.top = (height - box.height) / 2;
  return box;
}

RealBox central_box(std::int64_t width, std::int64_t height, std::int64_t size, double ratio) {
  const auto small =
      std::max<std::int64_t>(size, static_cast<std::int64_t>(std::floor(static_cast<double>(size) / ratio)));
  const auto side = [&](std::int64_t length) {  // of the resized picture: exact for the shorter one
    return length == std::min(width, height) ? small : small * length / std::min(width, height);
  };
  const auto part = [&](std::int64_t length, double& from, double& to) {
    const auto resized = side(length);
    const auto first = rounded(static_cast<double>(resized - size) / 2);
    const double scale = static_cast<double>(length) / static_cast<double>(resized);
    from = static_cast<double>(first) * scale;
    to = std::min(static_cast<double>(first + size) * scale, static_cast<double>(length));
  };
  RealBox box{};
  part(width, box.left, box.right);
  part(height, box.top, box.bottom);
  return box;
}

Repeat repeated(std::int64_t place, std::int64_t repeats) { return {place / repeats, place % repeats}; }

std::int64_t repeated_epoch(std::int64_t pictures) {
  constexpr std::int64_t kRound = 256;
  return pictures < kRound ? pictures : pictures / kRound * kRound;
}

std::int64_t index_of_copy(std::int64_t picture, std::int64_t copy) {
  constexpr std::int64_t kMostPictures = std::int64_t{1} << 40;
  return picture + copy * kMostPictures;
}

RandAugmentOptions rand_augment_named(const std::string& text) {
  const auto refuse = [&](std::string_view why) {
    throw io::Error("RandAugment: " + io::in_quotes(text) + ": " + std::string(why) +
                    "; expected something like \"rand-m9-mstd0.5-inc1\" (m, mstd, n, p, inc1)");
  };
  RandAugmentOptions options;
  bool increasing = false;
  std::string_view rest = text;
  if (!rest.starts_with("rand")) refuse("does not begin with rand");
  rest.remove_prefix(4);
  while (!rest.empty()) {
    if (rest[0] != '-') refuse("parts are divided by -");
    const std::string part(rest.substr(1, rest.find('-', 1) - 1));
    rest.remove_prefix(1 + part.size());
    const auto digits = part.find_first_of("0123456789.");
    const auto key = part.substr(0, digits);
    char* end = nullptr;
    const double value = digits == std::string::npos ? -1 : std::strtod(part.c_str() + digits, &end);
    if (end == nullptr || *end != '\0' || !(value >= 0) || value > 1000)
      refuse("the part " + io::in_quotes(part) + " has no good number");
    if (key == "m" && value <= kStrongest) {
      options.magnitude = value;
    } else if (key == "mstd") {
      options.deviation = value;
    } else if (key == "n" && value == std::floor(value)) {
      options.layers = static_cast<std::int64_t>(value);
    } else if (key == "p" && value <= 1) {
      options.probability = value;
    } else if (key == "inc" && value == 1) {
      increasing = true;
    } else {
      refuse("the part " + io::in_quotes(part) + " is not known");
    }
  }
  if (!increasing) refuse("only the increasing operations (inc1) are there");
  return options;
}

std::vector<Operation> rand_augment(const RandAugmentOptions& options, Draws draws) {
  std::vector<Operation> operations;
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const auto kind = static_cast<OperationKind>(draws.below(kOperationKinds));
    const bool done = draws.chance(options.probability);
    const double strength = std::clamp(options.magnitude + options.deviation * draws.normal(), 0.0, kStrongest);
    const auto operation = strengthened(kind, strength, draws);
    if (done) operations.push_back(operation);
  }
  return operations;
}

std::vector<Operation> colour_jitter(double strength, Draws draws) {
  std::vector<Operation> operations;
  for (const auto kind : {OperationKind::brightness, OperationKind::contrast, OperationKind::colour})
    operations.push_back({kind, draws.uniform(std::max(0.0, 1 - strength), 1 + strength)});
  for (std::size_t k = operations.size(); k > 1; --k)
    std::swap(operations[k - 1], operations[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(k)))]);
  return operations;
}

Box random_erasing(std::int64_t width, std::int64_t height, const EraseOptions& options, Draws draws) {
  if (!draws.chance(options.probability)) return {};
  const double all = static_cast<double>(width) * static_cast<double>(height), widest = -std::log(options.min_ratio);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double area = all * draws.uniform(options.min_area, options.max_area);
    const double ratio = std::exp(draws.uniform(-widest, widest));
    const auto down = rounded(std::sqrt(area * ratio)), across = rounded(std::sqrt(area / ratio));
    if (across < 1 || down < 1 || across >= width || down >= height) continue;
    const auto top = draws.below(height - down + 1);
    return {draws.below(width - across + 1), top, across, down};
  }
  return {};
}

Mix choose_mix(std::int64_t width, std::int64_t height, const MixOptions& options, Draws draws) {
  if ((options.mixup <= 0 && options.cutmix <= 0) || !draws.chance(options.probability)) return {};
  const bool both = options.mixup > 0 && options.cutmix > 0;
  const bool cut = both ? draws.chance(options.switch_probability) : options.cutmix > 0;
  const double alpha = cut ? options.cutmix : options.mixup;
  Mix mix{draws.beta(alpha, alpha), {}};
  if (!cut) return mix;
  const double side = std::sqrt(1 - mix.lambda);
  const auto part = [&](std::int64_t length, std::int64_t& from, std::int64_t& size) {
    const auto half = static_cast<std::int64_t>(static_cast<double>(length) * side) / 2;
    const auto centre = draws.below(length);
    from = std::max<std::int64_t>(0, centre - half);
    size = std::min(length, centre + half) - from;
  };
  part(height, mix.box.top, mix.box.height);
  part(width, mix.box.left, mix.box.width);
  mix.lambda = 1 - static_cast<double>(mix.box.width * mix.box.height) / static_cast<double>(width * height);
  return mix;
}

}  // namespace contextpool::data
