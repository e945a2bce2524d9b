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

void Counter::mixer(const MapMixer::Options& o, int64_t height, int64_t width) {
  torch::nn::Module owner;
  const MapMixer mixer(owner, o);
  if (!mixer.active()) return;
  const auto sources = height * width;
  const auto targets = ((height + o.stride - 1) / o.stride) * ((width + o.stride - 1) / o.stride);
  const bool pools = o.mixer.kind == "context_pool";
  for (const auto& parameter : owner.parameters()) {
    cost_.parameters += parameter.numel();
    if (parameter.dim() > 1) cost_.macs += product(parameter.numel(), pools ? sources : targets, 1);
  }
  if (!pools) return;
  const auto sum = product(sources, targets, o.mixer.features);
  cost_.pooling_macs += nn::pairwise_weights(o.mixer.pool) ? 2 * sum : sum;
}

}  // namespace contextpool::models
