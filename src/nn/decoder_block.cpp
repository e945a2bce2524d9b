#include "contextpool/nn/decoder_block.h"

#include "base/words.h"

namespace contextpool::nn {
namespace {

// What mixers_of says of the place O holds for X.
MixerOptions cross_mixer_of(const DecoderBlockOptions& options) {
  auto block = options.block;
  block.mix.places = "O=" + options.cross_mixer;
  block.pool.layer = options.cross_layer.value_or(block.pool.layer);
  return mixers_of(block).at('O');
}

}  // namespace

void DecoderBlockCache::crop(int64_t length) {
  block.crop(length);
  if (cross_mixer.rows()) cross_mixer.crop(length);
}

void DecoderBlockCache::select(const torch::Tensor& rows) {
  block.select(rows);
  if (cross_mixer.rows()) cross_mixer.select(rows);
  memory.select(rows);
}

void DecoderBlockCache::reorder(const torch::Tensor& rows, const torch::Tensor& sentences) {
  block.select(rows);
  if (cross_mixer.rows()) cross_mixer.select(rows);
  if (sentences.defined()) memory.select_shared(sentences);
}

void DecoderBlockCache::repeat(int64_t times) {
  block.repeat(times);
  if (cross_mixer.rows()) cross_mixer.repeat(times);
  memory.repeat(times);
}

DecoderBlockImpl::DecoderBlockImpl(DecoderBlockOptions options) : TransformerBlockImpl(options.block) {
  const auto& o = options.block;
  check_word("DecoderBlock", "cross_mixer", options.cross_mixer, mixer_kinds());
  cross_norm_ = register_module("cross_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  cross_attention_ = register_module(
      "cross_attention", CrossAttention(CrossAttentionOptions{.features = o.features,
                                                              .heads = o.heads,
                                                              .dropout = o.attention_dropout.value_or(o.dropout),
                                                              .kind = options.cross_attention,
                                                              .area_width = o.reach.area_width}));
  if (options.cross_mixer != "none") {
    cross_mixer_ = make_mixer(cross_mixer_of(options));
    register_module("cross_mixer", cross_mixer_.ptr());
  }
}

CrossMemory DecoderBlockImpl::remember(const torch::Tensor& memory, const Padding& padding) {
  return cross_attention_->remember(memory, padding);
}

torch::Tensor DecoderBlockImpl::forward(const torch::Tensor& x, const CrossMemory& memory, const Rotation& rotation,
                                        const Padding& padding) {
  return forward_with(x, rotation, padding, [&](const torch::Tensor& middle) {
    const auto c = cross_norm_(middle);
    const auto attended = cross_attention_(c, memory);
    return middle + drop(cross_mixer_ ? cross_mixer_->forward(attended, padding, c) : attended);
  });
}

torch::Tensor DecoderBlockImpl::step(const torch::Tensor& x, DecoderBlockCache& cache, const Rotation& rotation,
                                     const Padding& padding) {
  return step_with(x, cache.block, rotation, padding, [&](const torch::Tensor& middle) {
    const auto c = cross_norm_(middle);
    const auto attended = cross_attention_(c, cache.memory);
    return middle + drop(cross_mixer_ ? cross_mixer_->step(attended, cache.cross_mixer, padding, c) : attended);
  });
}

void DecoderBlockImpl::finish_initialisation() {
  TransformerBlockImpl::finish_initialisation();
  if (cross_mixer_) cross_mixer_->finish_initialisation();
}

}  // namespace contextpool::nn
