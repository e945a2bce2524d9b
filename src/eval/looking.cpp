#include "contextpool/eval/looking.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "eval/looking_page.h"

namespace contextpool::eval {
namespace {

using Json = nlohmann::ordered_json;
using torch::Tensor;

constexpr double kLightest = -30;  // below the heaviest: a log weight that no page can show; -inf is no JSON

// Five significant digits: the page shows three, and its sums stay exact enough to be compared with ours.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const auto scale = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json numbers(const Tensor& values) {
  const auto flat = values.to(torch::kDouble).flatten(1).contiguous();  // [groups, places]
  Json all = Json::array();
  for (std::int64_t g = 0; g < flat.size(0); ++g) {
    const auto* row = flat[g].const_data_ptr<double>();
    Json group = Json::array();
    for (std::int64_t i = 0; i < flat.size(1); ++i) group.push_back(rounded(row[i]));
    all.push_back(std::move(group));
  }
  return all;
}

// A picture of uint8 [height, width, 3].
Json pixels(const Tensor& picture) {
  if (!picture.defined()) return nullptr;
  const auto flat = picture.contiguous();
  return {{"side", flat.size(0)},
          {"rgb", to_base64({reinterpret_cast<const char*>(flat.const_data_ptr<std::uint8_t>()),
                             static_cast<std::size_t>(flat.numel())})}};
}

Json layer_json(const LookedAtLayer& layer, bool row) {
  const bool map = layer.sigma.dim() == 3;
  const auto height = [&](const Tensor& t) { return map ? t.size(1) : 1; };
  const auto width = [](const Tensor& t) { return t.size(-1); };
  const auto& l = layer.log_weight;
  const auto lowest = l.amax(l.dim() == 3 ? c10::IntArrayRef{1, 2} : c10::IntArrayRef{1}, /*keepdim=*/true) + kLightest;
  return {{"height", height(l)},
          {"width", width(l)},
          {"targetHeight", height(layer.sigma)},
          {"targetWidth", width(layer.sigma)},
          {"stride", nn::stride_of(width(l), width(layer.sigma))},
          {"logWeight", numbers(torch::maximum(l, lowest))},
          {"sigma", numbers(layer.sigma)},
          {"step", row ? nn::target_step({layer.sigma[0].numel()}) : nn::target_step(layer.sigma[0].sizes())},
          {"tokens", rounded(layer.statistics.tokens)},
          {"top", layer.sizes.top()},
          {"counts", layer.sizes.counts()}};
}

}  // namespace

void SizeHistogram::add(const Tensor& sizes) {
  const auto flat = sizes.detach().to(torch::kCPU, torch::kDouble).flatten().contiguous();
  const auto* values = flat.const_data_ptr<double>();
  const auto count = flat.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i]) || values[i] < 0) continue;
    if (top_ == 0) top_ = std::exp2(std::ceil(std::log2(std::max(values[i], 1e-6))));
    while (values[i] > top_) {
      for (std::int64_t b = 0; b < kBins; ++b) {
        counts_[b] = b < kBins / 2 ? counts_[2 * b] + counts_[2 * b + 1] : 0;
      }
      top_ *= 2;
    }
    const auto bin = static_cast<std::int64_t>(values[i] / top_ * kBins);
    ++counts_[std::min(bin, kBins - 1)];
  }
}

LookedAtLayer look_at(const nn::ContextPoolOptions& options, const nn::Windows& windows, std::int64_t dims) {
  const auto statistics =
      nn::window_statistics(options, {windows.log_weight.slice(0, 0, 1), windows.sigma.slice(0, 0, 1)}, dims);
  TORCH_CHECK_VALUE(statistics, "look_at: windows of locality ", options.locality, " and weights ", options.weights,
                    "; expected gaussian, and softmax or uniform");
  const auto first = [&](const Tensor& values) {
    const auto row = values[0].detach().to(torch::kCPU, torch::kFloat);
    return row.dim() == dims ? row.unsqueeze(0) : row;
  };
  LookedAtLayer layer{first(windows.log_weight), first(windows.sigma), *statistics, {}};
  layer.sizes.add(layer.sigma);
  return layer;
}

std::string looking_page(const Looking& looking) {
  Json data = {{"model", looking.model},       {"input", looking.input},      {"causal", looking.causal},
               {"row", looking.row},           {"sizesOf", looking.sizes_of}, {"picture", pixels(looking.picture)},
               {"seen", pixels(looking.seen)}, {"tokens", looking.tokens},    {"answers", Json::array()},
               {"layers", Json::array()}};
  for (const auto& [name, share] : looking.answers) data["answers"].push_back({name, rounded(share)});
  for (const auto& layer : looking.layers) data["layers"].push_back(layer_json(layer, looking.row));
  auto text = data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  // Inside <script> only "<" can end the data: "</script>", "<!--".
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) text.replace(at, 1, "\\u003c");
  const auto mark = kLookingPage.find(kLookingMark);
  TORCH_INTERNAL_ASSERT(mark != std::string_view::npos);
  std::string page(kLookingPage.substr(0, mark));
  return page.append(text).append(kLookingPage.substr(mark + kLookingMark.size()));
}

}  // namespace contextpool::eval
