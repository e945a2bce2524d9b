// Operations on values (tables of 256 entries a colour), mixtures with a plainer picture, and their table of names. The
// affine maps are in affine.cpp.
#include "contextpool/data/images/operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "data/images/affine.h"

namespace contextpool::data {
namespace {

constexpr int kValues = 256;
constexpr std::array<const char*, kOperationKinds> kNames = {
    "autocontrast", "equalize",   "invert",    "rotate",  "posterize", "solarize",    "solarize_add", "colour",
    "contrast",     "brightness", "sharpness", "shear_x", "shear_y",   "translate_x", "translate_y"};

using Table = std::array<std::uint8_t, kValues>;
using Histogram = std::array<std::int64_t, kValues>;

std::uint8_t to_byte(double x) { return static_cast<std::uint8_t>(std::clamp(x, 0.0, 255.0)); }

template <class F>
Table table_of(F value) {
  Table table;
  for (int i = 0; i < kValues; ++i) table[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value(i));
  return table;
}

void map(Image& image, const std::array<Table, 3>& tables) {
  auto* p = image.bytes().data();
  const auto pixels = image.width() * image.height();
  for (std::int64_t i = 0; i < pixels; ++i, p += kColours)
    for (int c = 0; c < kColours; ++c) p[c] = tables[static_cast<std::size_t>(c)][p[c]];
}

template <class F>
void map(Image& image, F value) {
  const auto table = table_of(value);
  for (auto& x : image.bytes()) x = table[x];
}

std::array<Histogram, 3> histograms(const Image& image) {
  std::array<Histogram, 3> counts{};
  const auto* p = image.bytes().data();
  const auto pixels = image.width() * image.height();
  for (std::int64_t i = 0; i < pixels; ++i, p += kColours)
    for (int c = 0; c < kColours; ++c) ++counts[static_cast<std::size_t>(c)][p[c]];
  return counts;
}

// The least and greatest value become 0 and 255.
Table stretched(const Histogram& counts) {
  int low = 0, high = kValues - 1;
  while (low < kValues && counts[static_cast<std::size_t>(low)] == 0) ++low;
  while (high >= 0 && counts[static_cast<std::size_t>(high)] == 0) --high;
  if (high <= low) return table_of([](int i) { return i; });
  const double scale = 255.0 / (high - low), offset = -low * scale;
  return table_of([&](int i) { return to_byte(i * scale + offset); });
}

// As many pixels at each value, as nearly as whole values can.
Table equalized(const Histogram& counts) {
  std::int64_t total = 0, last = 0;
  int used = 0;
  for (const auto n : counts) {
    if (n == 0) continue;
    total += n;
    last = n;
    ++used;
  }
  const auto step = (total - last) / 255;
  if (used <= 1 || step == 0) return table_of([](int i) { return i; });
  auto sum = step / 2;
  return table_of([&](int i) {
    const auto value = std::min<std::int64_t>(sum / step, 255);
    sum += counts[static_cast<std::size_t>(i)];
    return value;
  });
}

template <class F>
void map_by_histogram(Image& image, F table) {
  const auto counts = histograms(image);
  map(image, {table(counts[0]), table(counts[1]), table(counts[2])});
}

// Rec. 601 luminance in fixed point of 16 bits.
int luminance(const std::uint8_t* p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

// plain + factor (x - plain) in float, cut off to a whole value.
std::uint8_t blended(int plain, int x, float factor) {
  const float value = static_cast<float>(plain) + factor * static_cast<float>(x - plain);
  return static_cast<std::uint8_t>(static_cast<int>(std::max(0.0F, std::min(value, 255.0F))));
}

void colour(Image& image, float factor) {
  std::vector<std::uint8_t> grey(static_cast<std::size_t>(image.stride()));
  for (std::int64_t y = 0; y < image.height(); ++y) {
    auto* const row = image.row(y);
    for (std::int64_t x = 0; x < image.width(); ++x)
      std::fill_n(grey.data() + kColours * x, kColours, static_cast<std::uint8_t>(luminance(row + kColours * x)));
    for (std::int64_t b = 0; b < image.stride(); ++b)
      row[b] = blended(grey[static_cast<std::size_t>(b)], row[b], factor);
  }
}

void contrast(Image& image, float factor) {
  const auto* p = image.bytes().data();
  const auto pixels = image.width() * image.height();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < pixels; ++i, p += kColours) sum += luminance(p);
  const double rounded = static_cast<double>(sum) / static_cast<double>(pixels) + 0.5;
  const auto mean = static_cast<int>(rounded);
  map(image, [&](int x) { return blended(mean, x, factor); });
}

// Against a picture smoothed by (1 1 1; 1 5 1; 1 1 1) / 13, whose border is the picture's own.
void sharpness(Image& image, float factor) {
  const auto smooth = image.copy();
  const auto stride = image.stride();
  for (std::int64_t y = 1; y + 1 < image.height(); ++y) {
    const auto* in = smooth.row(y);
    auto* out = image.row(y);
    for (std::int64_t b = kColours; b < stride - kColours; ++b) {
      int sum = 4 * in[b];
      for (const auto up : {-stride, std::int64_t{0}, stride})
        sum += in[b + up - kColours] + in[b + up] + in[b + up + kColours];
      out[b] = blended((2 * sum + 13) / 26, in[b], factor);
    }
  }
}

}  // namespace

const char* name_of(OperationKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

OperationKind operation_named(const std::string& name) {
  for (int k = 0; k < kOperationKinds; ++k)
    if (name == kNames[static_cast<std::size_t>(k)]) return static_cast<OperationKind>(k);
  throw io::Error("images: there is no operation " + io::in_quotes(name));
}

void apply(Image& image, const Operation& operation, const OperationOptions& options) {
  const double x = operation.argument;
  const auto factor = static_cast<float>(x);
  const auto w = static_cast<double>(image.width()), h = static_cast<double>(image.height());
  const auto move = [&](const Affine& map) { image = transformed(image, map, options); };
  switch (operation.kind) {
    case OperationKind::autocontrast: return map_by_histogram(image, stretched);
    case OperationKind::equalize: return map_by_histogram(image, equalized);
    case OperationKind::invert: return map(image, [](int v) { return 255 - v; });
    case OperationKind::rotate: return move(rotation(x, w, h));
    case OperationKind::posterize: {
      const auto dropped = 8 - std::clamp(static_cast<int>(x), 0, 8);
      return map(image, [&](int v) { return v >> dropped << dropped; });
    }
    case OperationKind::solarize: return map(image, [&](int v) { return v < x ? v : 255 - v; });
    case OperationKind::solarize_add:
      return map(image, [&](int v) { return v < 128 ? std::min(255, v + static_cast<int>(x)) : v; });
    case OperationKind::colour: return colour(image, factor);
    case OperationKind::contrast: return contrast(image, factor);
    case OperationKind::brightness: return map(image, [&](int v) { return blended(0, v, factor); });
    case OperationKind::sharpness: return sharpness(image, factor);
    case OperationKind::shear_x: return move({1, x, 0, 0, 1, 0});
    case OperationKind::shear_y: return move({1, 0, 0, x, 1, 0});
    case OperationKind::translate_x: return move({1, 0, x * w, 0, 1, 0});
    case OperationKind::translate_y: return move({1, 0, 0, 0, 1, x * h});
  }
}

void apply(Image& image, const std::vector<Operation>& operations, const OperationOptions& options) {
  for (const auto& operation : operations) apply(image, operation, options);
}

void flip(Image& image) {
  for (std::int64_t y = 0; y < image.height(); ++y) {
    auto* const row = image.row(y);
    for (std::int64_t a = 0, b = image.width() - 1; a < b; ++a, --b)
      std::swap_ranges(row + kColours * a, row + kColours * (a + 1), row + kColours * b);
  }
}

}  // namespace contextpool::data
