// Scores of texts on the command line, for tests/python/test_bleu.py. Each line of the standard input is a request of
// words, separated by tabs; each is answered by a line of JSON (an object with "error" where it is refused). Files hold
// sentences, separated by NUL, which none of them contains.
//   bleu   OPTIONS HYPOTHESES REFERENCES...   the corpus and every sentence by itself; OPTIONS:
//   tokenizer=13a;lowercase=1 chrf   OPTIONS HYPOTHESES REFERENCES... paired METRIC OPTIONS SAMPLES SEED BASELINE
//   SYSTEM REFERENCES... given  METRIC OPTIONS INDICES BASELINE SYSTEM REFERENCES...        INDICES: a file of numbers
//   indices SENTENCES SAMPLES SEED
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "contextpool/eval/bleu.h"
#include "contextpool/eval/bootstrap.h"
#include "contextpool/eval/chrf.h"
#include "contextpool/io/files.h"

namespace contextpool::eval {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Words split(const std::string& text, char at) {
  Words parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Sentences sentences(const std::string& path) { return split(io::read_file(path), '\0'); }

std::vector<Sentences> all_sentences(const Words& words, std::size_t from) {
  std::vector<Sentences> all;
  for (auto k = from; k < words.size(); ++k) all.push_back(sentences(words[k]));
  return all;
}

std::map<std::string, std::string> options_of(const std::string& text) {
  std::map<std::string, std::string> options;
  for (const auto& item : split(text, ';')) {
    if (const auto at = item.find('='); at != std::string::npos) options[item.substr(0, at)] = item.substr(at + 1);
  }
  return options;
}

Bleu make_bleu(const std::string& text) {
  BleuOptions options;
  for (const auto& [name, value] : options_of(text)) {
    if (name == "tokenizer") options.tokenizer = value;
    if (name == "lowercase") options.lowercase = value == "1";
    if (name == "smoothing") options.smoothing = value;
    if (name == "value") options.smoothing_value = std::stod(value);
    if (name == "order") options.max_order = std::stoll(value);
    if (name == "effective") options.effective_order = value == "1";
  }
  return Bleu(options);
}

Chrf make_chrf(const std::string& text) {
  ChrfOptions options;
  for (const auto& [name, value] : options_of(text)) {
    if (name == "lowercase") options.lowercase = value == "1";
    if (name == "whitespace") options.whitespace = value == "1";
    if (name == "eps") options.eps_smoothing = value == "1";
    if (name == "chars") options.char_order = std::stoll(value);
    if (name == "words") options.word_order = std::stoll(value);
    if (name == "beta") options.beta = std::stoll(value);
  }
  return Chrf(options);
}

std::unique_ptr<TextMetric> make(const std::string& metric, const std::string& options) {
  if (metric == "bleu") return std::make_unique<Bleu>(make_bleu(options));
  return std::make_unique<Chrf>(make_chrf(options));
}

Json scores(const Words& words) {
  const auto metric = make(words[0], words[1]);
  const auto references = all_sentences(words, 3);
  const auto counts = metric->all_counts(sentences(words[2]), references);
  std::vector<double> each;
  for (const auto& one : counts) each.push_back(metric->score_of(one));
  const auto sum = sum_of(counts);
  Json answer = {{"name", metric->name()},
                 {"score", metric->score_of(sum)},
                 {"sentences", each},
                 {"counts", sum},
                 {"signature", metric->signature(static_cast<std::int64_t>(references.size()))}};
  if (const auto* bleu = dynamic_cast<const Bleu*>(metric.get())) answer["details"] = bleu->score(sum).details();
  return answer;
}

Json answer_of(const PairedBootstrap& result) {
  const auto one = [](const SystemScore& s) { return Json{s.score, s.mean, s.interval}; };
  return {{"baseline", one(result.baseline)}, {"system", one(result.system)}, {"p", result.p_value}};
}

Json paired(const Words& words) {
  const auto metric = make(words[1], words[2]);
  const Resampling resampling = {std::stoll(words[3]), std::stoll(words[4])};
  const auto references = all_sentences(words, 7);
  auto answer = answer_of(paired_bootstrap(*metric, metric->all_counts(sentences(words[5]), references),
                                           metric->all_counts(sentences(words[6]), references), resampling));
  answer["signature"] = metric->signature(static_cast<std::int64_t>(references.size()), resampling);
  return answer;
}

Json given(const Words& words) {
  const auto metric = make(words[1], words[2]);
  std::vector<std::int64_t> indices;
  std::istringstream numbers(io::read_file(words[3]));
  for (std::int64_t index = 0; numbers >> index;) indices.push_back(index);
  const auto references = all_sentences(words, 6);
  return answer_of(paired_bootstrap(*metric, metric->all_counts(sentences(words[4]), references),
                                    metric->all_counts(sentences(words[5]), references), indices));
}

Json answer(const Words& words) {
  if (words[0] == "paired") return paired(words);
  if (words[0] == "given") return given(words);
  if (words[0] == "indices")
    return bootstrap_indices(std::stoll(words[1]), {std::stoll(words[2]), std::stoll(words[3])});
  return scores(words);
}

}  // namespace
}  // namespace contextpool::eval

int main() try {
  using namespace contextpool::eval;
  for (std::string line; std::getline(std::cin, line);) {
    Json result;
    try {
      result = answer(split(line, '\t'));
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump() << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
