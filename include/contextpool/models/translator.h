// The translator: tensor2tensor's pre-norm transformer, an encoder of the source and a decoder that predicts each next
// symbol of the target from those before it and from the source. With E the embedding, d its features, p the positions:
//
//   s_0 = drop(sqrt(d) E[source] + p),   s_(l+1) = encoder_l(s_l),          m = encoder_norm(s_L)
//   t_0 = drop(sqrt(d) E[target] + p),   t_(l+1) = decoder_l(t_l, m),       logits = E decoder_norm(t_L)
//
// Source, target and softmax share one embedding, unless the source has a vocabulary of its own (source_vocabulary) or
// the head is not tied. Parameters, the same in Python: token.weight, source_token.weight, position.weight (learned),
// encoder.I.* (nn/block.h), encoder_norm, decoder.I.* (nn/decoder_block.h), decoder_norm, head.weight (not tied).
// Unlike tensor2tensor's, the projections of attention have biases, which start at 0.
//
// No bit of a logit depends on a later symbol of the target. What stands for padding in the source reaches nothing.
#pragma once

#include <torch/torch.h>

#include <string>
#include <type_traits>
#include <vector>

#include "contextpool/nn/decoder_block.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/positions.h"

namespace contextpool::models {

struct TranslatorOptions {
  int64_t vocabulary = 32000;
  int64_t source_vocabulary = 0;
  int64_t begin = 2;
  int64_t end = 1;
  int64_t layers = 6;
  int64_t decoder_layers = 0;
  int64_t features = 512;
  int64_t heads = 8;
  int64_t feedforward = 2048;
  std::string activation = "relu";
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double activation_dropout = 0.1;
  std::string positions = "sinusoidal";
  int64_t length = 256;
  bool tied = true;
  std::string encoder_attention = "full";
  std::string decoder_attention = "full";
  std::string cross_attention = "full";
  int64_t area_width = 5;
  std::string mixer = "none";
  std::string placement = "after_attention";
  std::string mixer_in = "encoder,decoder,cross";
  int64_t taps = 15;
  nn::MixOptions mix = {};
  int64_t pool_source_length = 0;
  nn::ContextPoolOptions pool{.reference_length = 64};  // features, causal and layer are set by the model
};

// Calls f(name, value, help) for every option, value being a reference into `options` (int64_t, double, bool or
// std::string). The one list behind JSON and the command line's flags.
template <typename Options, typename F>
requires std::is_same_v<std::remove_const_t<Options>, TranslatorOptions>
void for_each_option(Options& options, F f) {
  f("vocabulary", options.vocabulary, "symbols of the target, and of the source unless it has its own");
  f("source_vocabulary", options.source_vocabulary, "symbols of the source; 0: those of the target, one embedding");
  f("begin", options.begin, "the symbol before the first of a target");
  f("end", options.end, "the symbol after the last of a target");
  f("layers", options.layers, "blocks of the encoder");
  f("decoder_layers", options.decoder_layers, "blocks of the decoder; 0: as many");
  f("features", options.features, "channels of a token");
  f("heads", options.heads, "attention heads");
  f("feedforward", options.feedforward, "channels inside the feed-forward branch");
  f("activation", options.activation, "of the feed-forward branch: relu or gelu");
  f("dropout", options.dropout, "of embeddings and branches");
  f("attention_dropout", options.attention_dropout, "of attention weights");
  f("activation_dropout", options.activation_dropout, "inside the feed-forward branch");
  f("positions", options.positions, "sinusoidal, learned or rotary");
  f("length", options.length, "the longest row for learned positions");
  f("tied", options.tied, "whether the softmax has the weights of the target's embedding");
  f("encoder_attention", options.encoder_attention,
    "full, local or area; by layer from the bottom, the last for all above: local,local,full");
  f("decoder_attention", options.decoder_attention, "the same, of the decoder over its own symbols");
  f("cross_attention", options.cross_attention, "the same, of the decoder over the source");
  f("area_width", options.area_width, "tokens of the widest area");
  f("mixer", options.mixer, "none, context_pool, depthwise, canon or dynamic: in one place of a block, which is");
  f("placement", options.placement, "of the mixer: after_attention, after_block or before_attention");
  f("mixer_in", options.mixer_in, "blocks with mixers: encoder, decoder and cross, after attention over the source");
  f("mix", options.mix.places,
    "mixers by place (docs/mixers.md), X being that after attention over the source, instead of mixer and placement");
  f("taps", options.taps, "of the depthwise mixer");
  f("mixer_taps", options.mix.taps, "of the canon and dynamic mixers; one less in the encoder where it is even");
  f("mixer_residual", options.mix.residual, "of depthwise and context_pool: none, plain, scale or gated");
  f("mixer_rank", options.mix.rank,
    "of coefficients that depend on the input: dynamic's, and those of a gated residual");
  f("mixer_heads", options.mix.heads, "slices of the features that share dynamic's coefficients; 0: low rank instead");
  f("pool_taps", options.mix.pool_taps, "of a short convolution beside ContextPool; 0: none");
  f("pool_source_length", options.pool_source_length, "pool_reference_length of the encoder; 0: the row's own length");
  nn::for_each_pool_option(options.pool, f);
}

// Throws c10::ValueError, with the reason, for options that cannot be built. The model calls it itself.
void validate(const TranslatorOptions& options);

// The blocks that a translator of these options has, from the bottom.
nn::TransformerBlockOptions encoder_block_options(const TranslatorOptions& options, int64_t layer);
nn::DecoderBlockOptions decoder_block_options(const TranslatorOptions& options, int64_t layer);
int64_t decoder_layers(const TranslatorOptions& options);

// The source as the decoder sees it.
struct EncodedSource {
  torch::Tensor features;  // [batch, tokens, features]
  torch::Tensor real;      // [batch, tokens], false where a token is padding; undefined: none is
};

// What the decoder remembers of the symbols seen so far, and of the source: the keys and values of all layers.
class TranslatorCache {
 public:
  int64_t length() const { return length_; }
  // Forgets all but the first `length` symbols of the target.
  void crop(int64_t length);
  // Row b becomes what row rows[b] was (int64 [B']), or the rows that are true stay (bool [B]).
  void select(const torch::Tensor& rows);
  // The same for rows that stay with their sentence, the row of the source that they share since `repeat`; `sentences`
  // are the numbers of those that stay, undefined where all do. Cheaper than select.
  void reorder(const torch::Tensor& rows, const torch::Tensor& sentences = {});
  // Each row becomes `times` equal ones that lie together; they share what is kept of the source.
  void repeat(int64_t times);

 private:
  friend class TranslatorImpl;
  std::vector<nn::DecoderBlockCache> blocks_;
  int64_t length_ = 0;
};

class TranslatorImpl : public torch::nn::Module {
 public:
  explicit TranslatorImpl(TranslatorOptions options);

  // source int64 [batch, S] with its padding, target int64 [batch, T], each row beginning with `begin`: logits [batch,
  // T, vocabulary], those at t of the symbol after target[t]. Padding of the target is to its right, where it reaches
  // nothing; its logits mean nothing.
  torch::Tensor forward(const torch::Tensor& source, const nn::Padding& source_padding, const torch::Tensor& target);

  EncodedSource encode(const torch::Tensor& source, const nn::Padding& source_padding = {});
  // What the ContextPool of each of the encoder's layers predicts for a source without padding; empty where there is
  // none.
  std::vector<nn::Windows> encoder_windows(const torch::Tensor& source);
  // The logits of forward, given the encoded source; or, with last_only, those of the last symbols, [batch, 1,
  // vocabulary].
  torch::Tensor decode(const torch::Tensor& target, const EncodedSource& source, bool last_only = false);

  // Decoding step by step: start, then step with the next symbols [batch, new], the first of them `begin`; their logits
  // [batch, new, vocabulary] equal the last of forward over all of them. In eval mode, under torch::NoGradGuard unless
  // gradients are wanted.
  TranslatorCache start(const EncodedSource& source);
  torch::Tensor step(const torch::Tensor& target, TranslatorCache& cache);

  // As tensor2tensor: matrices uniform with the variance 2 / (inputs + outputs), q, k and v each a matrix of its own;
  // embeddings N(0, 1 / d); biases 0, norms 1 and 0. Mixers by their own rules.
  void reset_parameters();

  const TranslatorOptions& options() const { return options_; }
  const std::vector<nn::TransformerBlock>& encoder() const { return encoder_; }
  const std::vector<nn::DecoderBlock>& decoder() const { return decoder_; }

 private:
  torch::Tensor embed(torch::nn::Embedding& embedding, const torch::Tensor& tokens, int64_t first,
                      const torch::Tensor& at);
  torch::Tensor logits(const torch::Tensor& x);

  TranslatorOptions options_;
  torch::nn::Embedding token_{nullptr}, source_token_{nullptr};  // the second: null where it is the first
  nn::Positions position_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  std::vector<nn::TransformerBlock> encoder_;
  std::vector<nn::DecoderBlock> decoder_;
  torch::nn::LayerNorm encoder_norm_{nullptr}, decoder_norm_{nullptr};
  nn::Linear head_{nullptr};  // null where tied
};
TORCH_MODULE(Translator);

// Cross-entropy with label smoothing, the mean over the real symbols of the targets int64 [batch, T], in float32 or
// wider: the target has the share 1 - smoothing, and the rest is spread evenly over all symbols.
torch::Tensor label_smoothed_loss(const torch::Tensor& logits, const torch::Tensor& targets,
                                  const nn::Padding& padding = {}, double smoothing = 0.1);

}  // namespace contextpool::models
