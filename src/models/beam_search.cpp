// The model's device computes scores and finds the likeliest continuations; which of them live on is decided here, on
// the host, after one copy a step.
#include "contextpool/models/beam_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace contextpool::models {
namespace {

using torch::Tensor;

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kLowBits = 0xffffffff;
constexpr int32_t kAllButSign = 0x7fffffff;

struct Live {
  std::vector<int64_t> tokens;
  float log_probability = kNone;
};

struct Sentence {
  std::size_t number;            // in the task
  int64_t longest;               // symbols, the end included
  std::vector<Live> live;        // the likeliest first
  std::vector<Hypothesis> best;  // complete ones, the best first
};

// A continuation of one of a sentence's hypotheses by one symbol.
struct Candidate {
  float log_probability;
  int64_t row, symbol;
};

// Scores, with the places of their symbols among all of a sentence's, as integers that are all different: in the order
// of the scores, then of the places from the last to the first. So the largest are well defined.
Tensor sortable(const Tensor& scores, const Tensor& places) {
  const auto bits = scores.view(torch::kInt32);
  const auto order = bits.bitwise_xor(bits.bitwise_right_shift(31).bitwise_and(kAllButSign));
  return order.to(torch::kInt64).bitwise_left_shift(32).bitwise_or(kLowBits - places);
}

Candidate candidate_of(int64_t key, int64_t vocabulary) {
  const auto order = static_cast<int32_t>(key >> 32);
  const auto index = kLowBits - (key & kLowBits);
  return {std::bit_cast<float>(order ^ ((order >> 31) & kAllButSign)), index / vocabulary, index % vocabulary};
}

class Search {
 public:
  Search(BeamDecoder& decoder, const BeamTask& task, const BeamSearchOptions& options)
      : decoder_(decoder), task_(task), options_(options), results_(task.longest.size()) {
    for (std::size_t i = 0; i < task.longest.size(); ++i) {
      TORCH_CHECK_VALUE(task.longest[i] >= 1, "beam search: a translation must have room for its end, but sentence ", i,
                        " may have ", task.longest[i], " symbols");
      // The first step has one hypothesis, without symbols; the other rows are not alive.
      sentences_.push_back({i, task.longest[i], {Live{{}, 0}}, {}});
      rows_.insert(rows_.end(), options.beam, task.begin);
    }
  }

  std::vector<std::vector<Hypothesis>> run() {
    for (int64_t length = 1; !sentences_.empty(); ++length) {
      const auto candidates = likeliest(length);
      for (std::size_t i = 0; i < sentences_.size(); ++i) grow(sentences_[i], candidates[i], length);
      extend(length);
    }
    return std::move(results_);
  }

 private:
  std::size_t beam() const { return static_cast<std::size_t>(options_.beam); }

  // The likeliest continuations of each sentence, in order; those that cannot be are left out.
  std::vector<std::vector<Candidate>> likeliest(int64_t length) {
    const auto logits = decoder_.step(torch::tensor(rows_, torch::kInt64).to(task_.device));
    const auto vocabulary = logits.size(1);
    TORCH_CHECK_VALUE(options_.beam * vocabulary <= kLowBits, "beam search: a beam of ", options_.beam,
                      " is too large for ", vocabulary, " symbols");
    TORCH_CHECK_VALUE(task_.end >= 0 && task_.end < vocabulary, "beam search: the end symbol is ", task_.end,
                      ", but the model knows 0 to ", vocabulary - 1);
    auto logs = logits.to(torch::kFloat32).log_softmax(1);
    const auto wrong = logs.select(1, 0).isnan().any();  // a NaN in a row makes all of it so
    if (const auto must_end = at_the_limit(length)) {
      const auto others = torch::arange(vocabulary, logs.options().dtype(torch::kInt64)) != task_.end;
      logs = logs.masked_fill(must_end->unsqueeze(1) & others, kNone);
    }
    const auto wanted = std::min(options_.beam == 1 ? 1 : 2 * options_.beam, options_.beam * vocabulary);
    auto found = keys_of_best(logs, wanted, wrong);
    TORCH_CHECK(found[-1].item<int64_t>() == 0, "beam search: the model's logits are NaN");
    if (found[-2].item<int64_t>() != 0) found = keys_of_all(logs, wanted);
    const auto* key = found.data_ptr<int64_t>();
    std::vector<std::vector<Candidate>> candidates(sentences_.size());
    for (auto& list : candidates) {
      for (int64_t i = 0; i < wanted; ++i) {
        const auto candidate = candidate_of(*key++, vocabulary);
        if (candidate.log_probability > kNone) list.push_back(candidate);
      }
    }
    return candidates;
  }

  // The largest keys of each sentence, in order, on the host; then whether a symbol was left out that is as likely as
  // the last of its row that was not, and whether something was wrong. Only the likeliest symbols of each row are
  // looked at.
  Tensor keys_of_best(const Tensor& logs, int64_t wanted, const Tensor& wrong) const {
    const auto vocabulary = logs.size(1), most = std::min(wanted, vocabulary);
    const auto [value, symbol] = logs.topk(std::min(most + 1, vocabulary), 1);
    auto tie = torch::zeros({}, wrong.options());
    if (most < vocabulary) {
      const auto last = value.select(1, most - 1);
      tie = ((last == value.select(1, most)) & (last > kNone)).any();
    }
    const auto row = torch::arange(options_.beam, symbol.options()).repeat({static_cast<int64_t>(sentences_.size())});
    const auto place = (row * vocabulary).unsqueeze(1) + symbol.narrow(1, 0, most);
    const auto keys = sortable(value.narrow(1, 0, most) + log_probabilities(), place);
    const auto largest = std::get<0>(by_sentence(keys).topk(wanted, 1));
    return torch::cat({largest.flatten(), torch::stack({tie, wrong}).to(torch::kInt64)}).cpu();
  }

  // The same by a look at every symbol, so that ties are ranked by symbol whichever way a device finds the largest.
  Tensor keys_of_all(const Tensor& logs, int64_t wanted) const {
    const auto place = torch::arange(options_.beam * logs.size(1), logs.options().dtype(torch::kInt64));
    const auto keys = sortable(by_sentence(logs + log_probabilities()), place);
    return std::get<0>(keys.topk(wanted, 1)).flatten().cpu();
  }

  // Of rows [rows, n] those of each sentence beside each other, [sentences, beam n].
  Tensor by_sentence(const Tensor& x) const {
    return x.reshape({static_cast<int64_t>(sentences_.size()), options_.beam * x.size(1)});
  }

  // The log-probabilities of all rows, [rows, 1].
  Tensor log_probabilities() const {
    std::vector<float> values;
    for (const auto& sentence : sentences_) {
      for (const auto& live : sentence.live) values.push_back(live.log_probability);
      values.resize(values.size() + beam() - sentence.live.size(), kNone);
    }
    return torch::tensor(values).unsqueeze(1).to(task_.device);
  }

  // Which rows have room for the end only, [rows]; nothing where none is.
  std::optional<Tensor> at_the_limit(int64_t length) const {
    std::vector<uint8_t> rows;
    bool any = false;
    for (const auto& sentence : sentences_) {
      const bool last = sentence.longest <= length;
      any = any || last;
      rows.insert(rows.end(), beam(), last ? 1 : 0);
    }
    if (!any) return std::nullopt;
    return torch::tensor(rows, torch::kByte).to(task_.device) != 0;
  }

  // Complete hypotheses join the best, the likeliest others replace the live ones.
  void grow(Sentence& sentence, const std::vector<Candidate>& candidates, int64_t length) {
    std::vector<Live> live;
    std::vector<int64_t> parents;
    for (const auto& candidate : candidates) {
      const auto& tokens = sentence.live[candidate.row].tokens;
      if (candidate.symbol == task_.end) {
        const double score = candidate.log_probability / length_penalty(length, options_.alpha);
        keep_best(sentence, {tokens, candidate.log_probability, score});
      } else if (live.size() < beam()) {
        live.push_back({tokens, candidate.log_probability});
        live.back().tokens.push_back(candidate.symbol);
        parents.push_back(candidate.row);
      }
    }
    sentence.live = std::move(live);
    parents.resize(beam(), 0);
    parents_.insert(parents_.end(), parents.begin(), parents.end());
  }

  void keep_best(Sentence& sentence, Hypothesis hypothesis) const {
    auto& best = sentence.best;
    const auto worse = [](double score, const Hypothesis& other) { return score > other.score; };
    best.insert(std::upper_bound(best.begin(), best.end(), hypothesis.score, worse), std::move(hypothesis));
    if (best.size() > static_cast<std::size_t>(options_.n_best)) best.pop_back();
  }

  // Whether no live hypothesis can come among the best: more symbols make it no likelier, and none has a larger penalty
  // than the longest translation.
  bool is_done(const Sentence& sentence) const {
    if (sentence.live.empty() || (options_.beam == 1 && !sentence.best.empty())) return true;
    if (sentence.best.size() < static_cast<std::size_t>(options_.n_best)) return false;
    const double bound = sentence.live.front().log_probability / length_penalty(sentence.longest, options_.alpha);
    return sentence.best.back().score >= bound;
  }

  // Removes finished sentences; the rows of the others continue from their parents.
  void extend(int64_t length) {
    std::vector<Sentence> stay;
    std::vector<int64_t> numbers, rows;
    rows_.clear();
    for (std::size_t i = 0; i < sentences_.size(); ++i) {
      auto& sentence = sentences_[i];
      if (sentence.longest <= length || is_done(sentence)) {
        results_[sentence.number] = std::move(sentence.best);
        continue;
      }
      numbers.push_back(static_cast<int64_t>(i));
      for (std::size_t row = 0; row < beam(); ++row) {
        rows.push_back(static_cast<int64_t>(i * beam()) + parents_[i * beam() + row]);
        rows_.push_back(row < sentence.live.size() ? sentence.live[row].tokens.back() : task_.end);
      }
      stay.push_back(std::move(sentence));
    }
    const bool all_stay = stay.size() == sentences_.size();
    sentences_ = std::move(stay);
    parents_.clear();
    if (sentences_.empty()) return;
    bool moved = !all_stay;
    for (std::size_t row = 0; row < rows.size() && !moved; ++row) moved = rows[row] != static_cast<int64_t>(row);
    if (!moved) return;
    const auto there = [&](const std::vector<int64_t>& values) {
      return torch::tensor(values, torch::kInt64).to(task_.device);
    };
    decoder_.select(there(rows), all_stay ? Tensor() : there(numbers));
  }

  BeamDecoder& decoder_;
  const BeamTask& task_;
  const BeamSearchOptions& options_;
  std::vector<Sentence> sentences_;  // those in the batch
  std::vector<int64_t> rows_;        // the last symbol of each row
  std::vector<int64_t> parents_;     // of each row, the one of its sentence that it continues
  std::vector<std::vector<Hypothesis>> results_;
};

}  // namespace

void validate(const BeamSearchOptions& options) {
  TORCH_CHECK_VALUE(options.beam >= 1 && options.beam <= kWidestBeam, "beam search: beam must be from 1 to ",
                    kWidestBeam, ", but is ", options.beam);
  TORCH_CHECK_VALUE(options.n_best >= 1 && options.n_best <= options.beam,
                    "beam search: n_best must be from 1 to the beam, ", options.beam, ", but is ", options.n_best);
  TORCH_CHECK_VALUE(std::isfinite(options.alpha) && options.alpha >= 0, "beam search: alpha must be 0 or more, but is ",
                    options.alpha);
  TORCH_CHECK_VALUE(options.extra_length >= 1 && options.extra_length <= kMostExtraLength,
                    "beam search: extra_length must be from 1 to ", kMostExtraLength, ", but is ",
                    options.extra_length);
}

double length_penalty(int64_t length, double alpha) { return std::pow((5 + static_cast<double>(length)) / 6, alpha); }

std::vector<std::vector<Hypothesis>> beam_search(BeamDecoder& decoder, const BeamTask& task,
                                                 const BeamSearchOptions& options) {
  validate(options);
  const torch::NoGradGuard no_grad;
  return Search(decoder, task, options).run();
}

}  // namespace contextpool::models
