// The character language model: a pre-norm transformer decoder that predicts each next symbol from those before it.
//
//   x_0 = drop(token[t] + position),   x_(l+1) = block_l(x_l),   logits = head(norm(x_L))
//
// Embedding and head are separate matrices. Parameters, the same in Python: token.weight, position.weight (learned),
// blocks.I.{norm1,attention.{qkv,out,span},MIXERS,norm2,feedforward.up,feedforward.down}, norm, head; MIXERS are
// context_pool.*, depthwise.* and so on, or mixers.A.*, mixers.C.*, ... where there are several (nn/block.h). No bit of
// a logit depends on a later symbol.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include "contextpool/nn/block.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/positions.h"

namespace contextpool::models {

struct LanguageModelOptions {
  int64_t vocabulary = 256;
  int64_t layers = 12;
  int64_t features = 512;
  int64_t heads = 8;
  int64_t feedforward = 2048;
  double dropout = 0;
  std::string positions = "rotary";
  int64_t length = 2048;
  std::string attention = "full";
  int64_t window_first = 32;
  int64_t window_last = 8192;
  int64_t window_doublings = 0;
  int64_t dilated_heads = 2;
  int64_t span_limit = 8192;
  double span_loss = 5e-7;
  std::string mixer = "none";
  std::string placement = "after_attention";
  int64_t taps = 15;
  nn::MixOptions mix = {};
  nn::ContextPoolOptions pool{.reference_length = 2048};  // features, causal and layer are set by the model
};

// Calls f(name, value, help) for every option, value being a reference into `options` (int64_t, double or std::string).
// The one list behind the JSON below and the command line's flags.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, LanguageModelOptions>
void for_each_option(Options& options, F f) {
  f("vocabulary", options.vocabulary, "symbols: 256 for bytes, 27 for text8");
  f("layers", options.layers, "transformer blocks");
  f("features", options.features, "channels of a token");
  f("heads", options.heads, "attention heads");
  f("feedforward", options.feedforward, "channels inside the feed-forward branch");
  f("dropout", options.dropout, "of embeddings, attention weights and branches");
  f("positions", options.positions, "rotary, learned or sinusoidal");
  f("length", options.length, "the usual row, and the longest for learned positions");
  f("attention", options.attention, "full, window or adaptive_span");
  f("window_first", options.window_first,
    "tokens that the bottom layer sees; the layers between grow by powers of two");
  f("window_last", options.window_last, "tokens that the top layer sees");
  f("window_doublings", options.window_doublings,
    "how often windows double along a row: at the model's length, at twice that, ...");
  f("dilated_heads", options.dilated_heads,
    "heads of the upper half that skip 1, 2, then 3 tokens between two they see");
  f("span_limit", options.span_limit, "tokens that an adaptive span can reach");
  f("span_loss", options.span_loss, "training loss of a token of adaptive span, the mean over layers and heads");
  f("mixer", options.mixer, "none, context_pool, depthwise, canon or dynamic, in one place");
  f("placement", options.placement, "of the mixer: after_attention, after_block or before_attention");
  f("mix", options.mix.places,
    "mixers by place (docs/mixers.md), as A=canon,C=canon,O=context_pool, instead of mixer and placement");
  f("taps", options.taps, "of the depthwise mixer");
  f("mixer_taps", options.mix.taps, "of the canon and dynamic mixers");
  f("mixer_residual", options.mix.residual, "of depthwise and context_pool: none, plain, scale or gated");
  f("mixer_rank", options.mix.rank,
    "of coefficients that depend on the input: dynamic's, and those of a gated residual");
  f("mixer_heads", options.mix.heads, "slices of the features that share dynamic's coefficients; 0: low rank instead");
  f("pool_taps", options.mix.pool_taps, "of a short convolution beside ContextPool; 0: none");
  nn::for_each_pool_option(options.pool, f);
}

// What attention sees in a layer. Windows grow by equal factors from window_first at the bottom to window_last at the
// top, those between rounded to powers of two; the dilation is 0 in the lower half, then 1, 2 and 3 in a sixth of the
// layers each.
nn::Reach reach_of(const LanguageModelOptions& options, int64_t layer);

// What a layer is built of.
nn::TransformerBlockOptions block_of(const LanguageModelOptions& options, int64_t layer);

// Every option by name, as the text of a JSON object. from_json takes those missing at their default (pool_size_range,
// which files of version 0.1.0 lack, at 0, which is what they had) and refuses, with the nearest name, what it does not
// know. `who` opens its messages: a file's name, or the model's.
std::string to_json(const LanguageModelOptions& options);
LanguageModelOptions from_json(const std::string& text, const std::string& who = "language model");
// The options that a file has where it does not say.
LanguageModelOptions language_model_of_files();

// What the model remembers of the symbols seen so far: which of them are real, and the caches of its blocks.
class LanguageModelCache {
 public:
  int64_t length() const { return symbols_.length(); }
  std::optional<int64_t> rows() const;
  // As for nn::TokenCache.
  void crop(int64_t length);
  void select(const torch::Tensor& rows);
  void reorder(const torch::Tensor& rows) { select(rows); }
  void repeat(int64_t times);

 private:
  friend class LanguageModelImpl;
  nn::TokenCache symbols_;
  std::vector<nn::BlockCache> blocks_;
};

class LanguageModelImpl : public torch::nn::Module {
 public:
  explicit LanguageModelImpl(LanguageModelOptions options);

  // tokens [batch, length] int64, logits [batch, length, vocabulary]. A symbol's position is how many real ones come
  // before it, so that a row has the same logits however it is padded, on either side; those at padding mean nothing.
  torch::Tensor forward(const torch::Tensor& tokens, const nn::Padding& padding = {});

  // The next symbols of the rows in the cache (empty at the start): tokens [batch, new], logits [batch, new,
  // vocabulary] equal to the last of forward over all of them. In eval mode. padding is that of the new symbols; the
  // cache remembers it. With gradients each step keeps its graph: decode under torch::NoGradGuard.
  torch::Tensor step(const torch::Tensor& tokens, LanguageModelCache& cache, const nn::Padding& padding = {});

  // What each layer's ContextPool predicts for these tokens (the first, where a block has several); empty where there
  // is none.
  std::vector<nn::Windows> windows(const torch::Tensor& tokens);

  // Weights N(0, 0.02), biases 0, norms 1 and 0, spans 0; then what the mixers' start asks for:
  // ContextPool's sizes and so on (nn/mixer.h).
  void reset_parameters();

  // What training adds to its loss, so that a span grows only where that pays: span_loss * span_limit * the mean of all
  // spans. Undefined where there are none.
  torch::Tensor span_loss() const;
  // After a step of training: spans back into [0, 1], where they have a gradient.
  void clamp_spans();

  const LanguageModelOptions& options() const { return options_; }
  const std::vector<nn::TransformerBlock>& blocks() const { return blocks_; }

 private:
  torch::Tensor embed(const torch::Tensor& tokens, int64_t first, const torch::Tensor& at);
  std::vector<torch::Tensor> spans() const;

  LanguageModelOptions options_;
  torch::nn::Embedding token_{nullptr};
  nn::Positions position_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  std::vector<nn::TransformerBlock> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
};
TORCH_MODULE(LanguageModel);

}  // namespace contextpool::models
