#include "contextpool/models/translate.h"

#include <algorithm>

namespace contextpool::models {
namespace {

using torch::Tensor;

class CachedDecoder : public BeamDecoder {
 public:
  CachedDecoder(Translator& model, const EncodedSource& source, int64_t beam)
      : model_(model), cache_(model->start(source)) {
    cache_.repeat(beam);
  }
  Tensor step(const Tensor& tokens) override { return model_->step(tokens.unsqueeze(1), cache_).squeeze(1); }
  void select(const Tensor& rows, const Tensor& sentences) override { cache_.reorder(rows, sentences); }

 private:
  Translator& model_;
  TranslatorCache cache_;
};

// Every step from the beginning.
class UncachedDecoder : public BeamDecoder {
 public:
  UncachedDecoder(Translator& model, const EncodedSource& source, int64_t beam) : model_(model), source_(source) {
    source_.features = source_.features.repeat_interleave(beam, 0);
    if (source_.real.defined()) source_.real = source_.real.repeat_interleave(beam, 0);
  }
  Tensor step(const Tensor& tokens) override {
    const auto fresh = tokens.unsqueeze(1);
    target_ = target_.defined() ? torch::cat({target_, fresh}, 1) : fresh;
    return model_->decode(target_, source_, /*last_only=*/true).squeeze(1);
  }
  void select(const Tensor& rows, const Tensor&) override {
    target_ = target_.index_select(0, rows);
    source_.features = source_.features.index_select(0, rows);
    if (source_.real.defined()) source_.real = source_.real.index_select(0, rows);
  }

 private:
  Translator& model_;
  EncodedSource source_;
  Tensor target_;  // the symbols so far, [rows, length]
};

// Eval mode and no gradients while it lives.
class Inference {
 public:
  explicit Inference(Translator& model) : model_(model), training_(model->is_training()) { model_->eval(); }
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;
  ~Inference() { model_->train(training_); }

 private:
  torch::NoGradGuard no_grad_;
  Translator& model_;
  bool training_;
};

struct Batch {
  Tensor tokens, lengths;  // [sentences, longest], [sentences]
};

Batch batch_of(const std::vector<std::vector<int64_t>>& sources, int64_t vocabulary) {
  std::size_t longest = 1;
  for (const auto& source : sources) longest = std::max(longest, source.size());
  const auto count = static_cast<int64_t>(sources.size());
  Batch batch{torch::zeros({count, static_cast<int64_t>(longest)}, torch::kInt64),
              torch::zeros({count}, torch::kInt64)};
  for (int64_t i = 0; i < count; ++i) {
    const auto& source = sources[i];
    for (const auto symbol : source) {
      TORCH_CHECK_VALUE(symbol >= 0 && symbol < vocabulary, "translate: sentence ", i, " holds symbol ", symbol,
                        ", but the model knows 0 to ", vocabulary - 1);
    }
    std::copy(source.begin(), source.end(), batch.tokens[i].data_ptr<int64_t>());
    batch.lengths[i] = static_cast<int64_t>(source.size());
  }
  return batch;
}

}  // namespace

std::vector<std::vector<Hypothesis>> translate(Translator& model, const std::vector<std::vector<int64_t>>& sources,
                                               const BeamSearchOptions& options) {
  validate(options);
  if (sources.empty()) return {};
  const auto& o = model->options();
  const Inference inference(model);
  BeamTask task{.longest = {}, .begin = o.begin, .end = o.end, .device = model->parameters().front().device()};
  for (const auto& source : sources) {
    const auto longest = static_cast<int64_t>(source.size()) + options.extra_length;
    task.longest.push_back(o.positions == "learned" ? std::min(longest, o.length) : longest);
  }
  const auto batch = batch_of(sources, o.source_vocabulary > 0 ? o.source_vocabulary : o.vocabulary);
  const auto source = model->encode(batch.tokens.to(task.device), batch.lengths);
  if (options.cached) {
    CachedDecoder decoder(model, source, options.beam);
    return beam_search(decoder, task, options);
  }
  UncachedDecoder decoder(model, source, options.beam);
  return beam_search(decoder, task, options);
}

}  // namespace contextpool::models
