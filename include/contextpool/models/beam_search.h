// Beam search: the likeliest translations of a batch of sentences, symbol by symbol. With log P the sum of the
// log-probabilities of a translation's symbols, its end symbol included, and |Y| how many they are, translations are
// ranked by Google NMT's score
//
//   log P / ((5 + |Y|) / 6)^alpha
//
// At each step a sentence's `beam` live hypotheses are continued by every symbol. Of the 2 beam likeliest continuations
// those that end are complete, and the best of the others live on. A sentence leaves the batch when no live hypothesis
// can come among its n_best any more. A hypothesis that reaches the longest length must end there. A beam of 1 is
// greedy decoding: the likeliest symbol, until that is the end.
//
// Equal log-probabilities are ranked by hypothesis, then by symbol, so that the same model gives the same translations.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace contextpool::models {

constexpr int64_t kWidestBeam = 4096, kMostExtraLength = 1'000'000;

struct BeamSearchOptions {
  int64_t beam = 4;
  double alpha = 0.6;
  int64_t n_best = 1;
  int64_t extra_length = 50;
  bool cached = true;
};

// Calls f(name, value, help) for every option, as for the models' options.
template <typename Options, typename F>
requires std::is_same_v<std::remove_const_t<Options>, BeamSearchOptions>
void for_each_option(Options& options, F f) {
  f("beam", options.beam, "hypotheses of a sentence; 1: greedy decoding");
  f("alpha", options.alpha, "how much the length penalty favours long translations");
  f("n_best", options.n_best, "translations of a sentence, at most the beam");
  f("extra_length", options.extra_length, "symbols that a translation may have more than its source, its end included");
  f("cached", options.cached, "false: every step runs over all symbols so far, slow; for checking");
}

// Throws c10::ValueError at the first value that cannot be.
void validate(const BeamSearchOptions& options);

struct Hypothesis {
  std::vector<int64_t> tokens;  // without the end symbol
  double log_probability = 0;   // of the tokens and of the end after them
  double score = 0;             // the same, divided by the length penalty
};

// What the search asks of a model: it keeps `beam` rows for each sentence, those of a sentence together.
class BeamDecoder {
 public:
  virtual ~BeamDecoder() = default;
  // The rows continue with these symbols, int64 [rows]: logits [rows, vocabulary] of the symbols after them.
  virtual torch::Tensor step(const torch::Tensor& tokens) = 0;
  // Row r continues from what row rows[r] held, int64 [sentences' * beam]: a row of the same sentence. Sentences are
  // the numbers of those that stay, int64 [sentences'], or undefined where all do; `rows` counts those before.
  virtual void select(const torch::Tensor& rows, const torch::Tensor& sentences) = 0;
};

struct BeamTask {
  std::vector<int64_t> longest;  // of each sentence: the most symbols of a translation, its end included
  int64_t begin = 2, end = 1;    // the symbol before the first, and the one after the last
  torch::Device device = torch::kCPU;
};

// The n_best translations of each sentence, best first.
std::vector<std::vector<Hypothesis>> beam_search(BeamDecoder& decoder, const BeamTask& task,
                                                 const BeamSearchOptions& options);

// ((5 + length) / 6)^alpha.
double length_penalty(int64_t length, double alpha);

}  // namespace contextpool::models
