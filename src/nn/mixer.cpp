#include "contextpool/nn/mixer.h"

#include <algorithm>
#include <array>

#include "base/words.h"
#include "nn/mixers/mixers.h"
#include "nn/mixers/residual.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

struct Kind {
  const char* name;
  MakeMixer* make;
  int64_t causal_taps, centred_taps, map_taps;  // unless given
  const char* residual;                         // unless given
};

// Every mixer there is.
constexpr std::array kKinds{
    Kind{"none", make_none, 0, 0, 0, "none"},
    Kind{"context_pool", make_context_pool, 0, 0, 0, "none"},
    Kind{"depthwise", make_depthwise, 15, 15, 3, "none"},
    Kind{"canon", make_canon, 4, 3, 3, "plain"},
    Kind{"dynamic", make_dynamic, 4, 3, 3, "plain"},
};

const Kind& find_kind(const std::string& name) {
  check_word("Mixer", "kind", name, mixer_kinds());
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& kind) { return name == kind.name; });
}

}  // namespace

MixerOptions MixerOptions::for_maps(const std::string& kind, int64_t features) {
  return {.kind = kind, .features = features, .dims = 2, .pool = ContextPool2dOptions(features)};
}

const std::vector<std::string>& mixer_kinds() {
  static const auto names = [] {
    std::vector<std::string> all;
    all.reserve(kKinds.size());
    for (const auto& kind : kKinds) all.emplace_back(kind.name);
    return all;
  }();
  return names;
}

namespace {

// The options with the kind's own values where none were given.
MixerOptions completed(const MixerOptions& options, const Kind& kind) {
  auto o = options;
  if (o.taps == 0) o.taps = o.dims == 2 ? kind.map_taps : o.causal ? kind.causal_taps : kind.centred_taps;
  if (o.residual.empty()) o.residual = kind.residual;
  return o;
}

}  // namespace

Mixer make_mixer(const MixerOptions& options) {
  const auto& kind = find_kind(options.kind);
  const auto o = completed(options, kind);
  TORCH_CHECK_VALUE(o.dims == 1 || o.dims == 2, "Mixer: dims must be 1 (rows) or 2 (maps), but is ", o.dims);
  TORCH_CHECK_VALUE(o.dims == 1 || !o.causal, "Mixer: a map has no order, so it cannot be causal");
  TORCH_CHECK_VALUE(o.taps >= 0, "Mixer: taps must not be negative, but are ", o.taps);
  TORCH_CHECK_VALUE(o.context_features >= 0, "Mixer: context_features must not be negative, but is ",
                    o.context_features);
  check_word("Mixer", "residual", o.residual, residual_kinds());
  return kind.make(o);
}

double least_parameters(const MixerOptions& options) {
  const auto o = completed(options, find_kind(options.kind));
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const auto square = [&](int64_t n) { return o.dims == 2 ? real(n) * real(n) : real(n); };
  const auto features = real(o.features), rank = real(o.rank), taps = square(o.taps);
  const auto context = o.context_features > 0 ? real(o.context_features) : features;
  double count = features * taps;
  if (o.kind == "dynamic") count += o.heads > 0 ? context * taps * real(o.heads) : rank * (context + taps * features);
  if (o.residual == "gated") count += rank * (context + features);
  if (o.kind == "context_pool" && o.pool.predictor != "attention") {
    count += features * real(o.pool.hidden) * (o.pool.predictor == "conv" ? square(o.pool.kernel) : 1);
  }
  return count;
}

std::pair<Tensor, Windows> MixerImpl::forward_with_windows(const Tensor& x, const Padding& padding,
                                                           const Tensor& context) {
  return {forward(x, padding, context), {}};
}

std::map<char, std::string> parse_places(std::string_view who, std::string_view text, std::string_view places) {
  std::map<char, std::string> found;
  std::string plain(text);
  std::erase(plain, ' ');
  for (std::size_t begin = 0; begin < plain.size();) {
    const auto end = std::min(plain.find(',', begin), plain.size());
    const auto part = plain.substr(begin, end - begin);
    const auto equals = part.find('=');
    TORCH_CHECK_VALUE(equals != std::string::npos && equals > 0, who,
                      ": mix must read PLACE=MIXER,..., as in \"A=canon\", but has \"", part, "\"");
    const auto mixer = part.substr(equals + 1);
    check_word(who, "a mixer of mix", mixer, mixer_kinds());
    for (const char place : part.substr(0, equals)) {
      TORCH_CHECK_VALUE(places.find(place) != std::string_view::npos, who, ": mix has the place \"", place,
                        "\", but the places are ", places);
      TORCH_CHECK_VALUE(found.emplace(place, mixer).second, who, ": mix has the place ", place, " twice");
    }
    begin = end + 1;
  }
  std::erase_if(found, [](const auto& item) { return item.second == "none"; });
  return found;
}

Tensor mask_of(const char* who, const Tensor& x, const Padding& padding, int64_t features, int64_t dims) {
  if (dims == 1) {
    TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == features, who, ": x must be [batch, tokens, ", features,
                      "], but is ", x.sizes());
    return padding.mask({x.size(0), x.size(1)}, x.device());
  }
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(1) == features, who, ": x must be [batch, ", features,
                    ", height, width], but is ", x.sizes());
  return padding.mask({x.size(0), x.size(2), x.size(3)}, x.device());
}

Tensor without_padding(const Tensor& x, const Tensor& mask, int64_t dims) {
  return mask.defined() ? x.masked_fill(mask.logical_not().unsqueeze(dims == 1 ? -1 : 1), 0) : x;
}

Tensor context_of(const char* who, const Tensor& context, const Tensor& x, const Tensor& mask, int64_t features,
                  int64_t dims) {
  const auto& h = context.defined() ? context : x;
  const int64_t channels = dims == 1 ? 2 : 1;
  auto expected = x.sizes().vec();
  expected[channels] = features;
  TORCH_CHECK_VALUE(h.sizes() == torch::IntArrayRef(expected), who, ": the context must be ", expected, ", but is ",
                    h.sizes(), context.defined() ? "" : " (x itself, since none was given)");
  const auto real = without_padding(h, mask, dims);
  return dims == 1 ? real : real.movedim(1, -1);
}

Tensor last_tokens(const MixerCache& cache, int64_t tokens, int64_t before) {
  const auto seen = std::min(cache.length() - tokens, before);
  const auto near = cache.read("features").slice(1, cache.length() - tokens - seen);
  return torch::constant_pad_nd(near, {0, 0, before - seen, 0});
}

}  // namespace contextpool::nn
