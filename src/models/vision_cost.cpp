#include "models/vision_cost.h"

#include "nn/context_pool_options.h"

namespace contextpool::models {
namespace {

double product(int64_t a, int64_t b, int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

}  // namespace

void Counter::linear(int64_t in, int64_t out, int64_t positions, bool bias) {
  cost_.parameters += in * out + (bias ? out : 0);
  cost_.macs += product(in, out, positions);
}

void Counter::convolution(int64_t in, int64_t out, int64_t kernel, int64_t positions, bool bias, int64_t groups) {
  linear(in / groups * kernel * kernel, out, positions, bias);
}

void Counter::attention(int64_t queries, int64_t keys, int64_t features) {
  cost_.macs += 2 * product(queries, keys, features);
}

void Counter::pool(const MapMixer::Options& o, int64_t sources, int64_t targets) {
  const auto channels = nn::predicted_channels(o.pool);
  const auto taps = o.pool.predictor == "mlp" ? 1 : o.row ? o.pool.kernel : o.pool.kernel * o.pool.kernel;
  if (channels > 0) {
    linear(o.features * taps, o.pool.hidden, sources);
    linear(o.pool.hidden * taps, channels, sources);
  }
  cost_.pooling_macs += product(sources, targets, o.features);
  if (!nn::pairwise_weights(o.pool)) return;
  linear(o.features, o.features, targets, /*bias=*/false);
  linear(o.features, o.features, sources, /*bias=*/false);
  cost_.pooling_macs += product(sources, targets, o.features);
}

void Counter::mixer(const MapMixer::Options& o, int64_t height, int64_t width) {
  const auto sources = height * width;
  const auto targets = ((height + o.stride - 1) / o.stride) * ((width + o.stride - 1) / o.stride);
  if (o.kind == "context_pool") pool(o, sources, targets);
  const auto taps = o.taps == 0 ? 3 : o.taps;
  if (o.kind == "depthwise") linear(o.row ? taps : taps * taps, o.features, targets);
}

}  // namespace contextpool::models
