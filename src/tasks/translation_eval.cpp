#include "tasks/translation_eval.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "base/words.h"
#include "contextpool/data/translation/lines.h"
#include "contextpool/data/translation/number_names.h"
#include "contextpool/eval/bleu.h"
#include "contextpool/eval/bootstrap.h"
#include "contextpool/eval/chrf.h"
#include "contextpool/io/files.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/trained_translator.h"
#include "tasks/translation_data.h"

namespace contextpool::tasks {
namespace {

using Json = nlohmann::ordered_json;
using eval::Sentences;

constexpr std::int64_t kNumbersSeed = 1;
constexpr std::int64_t kMostSamples = 1'000'000;

struct TranslationEvalOptions {
  std::string data, target, dev_source, dev_target, hypotheses, against, output, tokenizer = "13a";
  bool lowercase = false;
  std::int64_t sentences = 0, samples = 1000, beam = 4;
  double alpha = 0.6;
  std::int64_t batch = 64, max_length = 512;
  bool bfloat16 = false;
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, TranslationEvalOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data,
    "source sentences, or a file of two columns, or numbers-de or numbers-fr; else those that the run was scored by, "
    "or the test numbers");
  f("target", options.target, "reference translations, one a line");
  f("dev_source", options.dev_source, "as the run has it: scored where --data is not given");
  f("dev_target", options.dev_target, "as the run has it");
  f("hypotheses", options.hypotheses, "score the translations in this file, one a line; no model is needed");
  f("against", options.against, "translations of another system, one a line: paired bootstrap with it as the baseline");
  f("output", options.output, "file to write with the translations, one a line");
  f("tokenizer", options.tokenizer, "of BLEU: 13a, intl, char or none");
  f("lowercase", options.lowercase, "compare without regard to case");
  f("sentences", options.sentences, "the first of the data to score; 0: all");
  f("samples", options.samples, "of the bootstrap");
  f("beam", options.beam, "hypotheses of a sentence; 1: greedy decoding");
  f("alpha", options.alpha, "how much the length penalty favours long translations");
  f("batch", options.batch, "sentences at once");
  f("max_length", options.max_length, "tokens of a source; the rest of a longer one is not read");
  f("bfloat16", options.bfloat16, "matrix products in bfloat16");
}

TranslationEvalOptions options_of(const EvalRequest& request) {
  TranslationEvalOptions options;
  assign_options(options, request.options);
  return options;
}

bool is_given(const EvalRequest& request, const std::string& name) {
  return std::find(request.given.begin(), request.given.end(), name) != request.given.end();
}

// Every line counts, blank ones too: a score over some of the sentences could not be set beside others.
struct TestSet {
  std::string name;
  Sentences sources, references;
};

Sentences lines_of(const std::string& path) {
  const data::Lines lines(path);
  Sentences all;
  for (std::int64_t i = 0; i < lines.size(); ++i) all.emplace_back(lines[i]);
  return all;
}

TestSet read_columns(const std::string& path) {
  TestSet test{path, {}, {}};
  for (const auto& line : lines_of(path)) {
    const auto tab = line.find('\t');
    TORCH_CHECK_VALUE(tab != std::string::npos && line.find('\t', tab + 1) == std::string::npos, path, ": line ",
                      test.sources.size() + 1, " has not two columns separated by a tab; with one column, name the ",
                      "translations with --target");
    test.sources.push_back(line.substr(0, tab));
    test.references.push_back(line.substr(tab + 1));
  }
  return test;
}

TestSet read_test(const std::string& source, const std::string& target) {
  if (target.empty()) return read_columns(source);
  TestSet test{source + " and " + target, lines_of(source), lines_of(target)};
  TORCH_CHECK_VALUE(test.sources.size() == test.references.size(), source, ": has ", test.sources.size(),
                    " lines, but ", target, " has ", test.references.size(), "; each line needs its translation");
  return test;
}

TestSet test_numbers(const std::string& language, std::int64_t count) {
  constexpr std::int64_t kUsual = 1000;
  const auto pairs = data::number_pairs(language, data::Split::test, count > 0 ? count : kUsual, kNumbersSeed);
  TestSet test{pairs.name() + ", test", {}, {}};
  for (std::int64_t i = 0; i < pairs.size(); ++i) {
    test.sources.emplace_back(pairs.pair(i).source);
    test.references.emplace_back(pairs.pair(i).target);
  }
  return test;
}

TestSet open_test(const EvalRequest& request) {
  const auto o = options_of(request);
  const auto language = generated_language(o.data);
  auto test = language                                            ? test_numbers(*language, o.sentences)
              : is_given(request, "data") || o.dev_source.empty() ? read_test(o.data, o.target)
                                                                  : read_test(o.dev_source, o.dev_target);
  if (o.sentences > 0 && o.sentences < static_cast<std::int64_t>(test.sources.size())) {
    test.sources.resize(static_cast<std::size_t>(o.sentences));
    test.references.resize(static_cast<std::size_t>(o.sentences));
  }
  return test;
}

// The translations of a file: as many as there are sentences, though of more sentences than are scored the first count.
Sentences read_translations(const std::string& path, const TestSet& test, bool some) {
  auto all = lines_of(path);
  if (some && all.size() > test.references.size()) all.resize(test.references.size());
  TORCH_CHECK_VALUE(all.size() == test.references.size(), path, ": has ", all.size(), " lines, but ", test.name,
                    " has ", test.references.size(), " sentences; expected a translation of each, in order");
  return all;
}

Sentences translate(const EvalRequest& request, const TestSet& test) {
  const auto o = options_of(request);
  TrainedTranslator trained(request.file, request.device);
  TranslationRequest asked;
  asked.search.beam = o.beam;
  asked.search.alpha = o.alpha;
  asked.batch = o.batch;
  asked.max_length = o.max_length;
  asked.bfloat16 = o.bfloat16;
  asked.progress = request.progress;
  std::int64_t shortened = 0;
  asked.shortened = [&](std::size_t) { ++shortened; };
  Sentences all;
  for (auto& found : trained.translate({test.sources.begin(), test.sources.end()}, asked)) {
    all.push_back(std::move(found.front().text));
  }
  if (shortened > 0 && request.note) {
    request.note(std::to_string(shortened) + " sentences have more than " + std::to_string(o.max_length) +
                 " tokens, of which the first were translated; --max-length sets another limit");
  }
  return all;
}

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

// One metric: a line for a person, and its part of the JSON.
void add_metric(EvalResult& result, Json& json, const eval::TextMetric& metric, const std::string& details,
                const Sentences& hypotheses, const Sentences& references, const std::optional<Sentences>& baseline,
                std::int64_t samples) {
  const auto counts = metric.all_counts(hypotheses, {references});
  const auto score = metric.score_of(eval::sum_of(counts));
  const auto signature = metric.signature(1);
  const auto& name = metric.name();
  result.line += (result.line.empty() ? "" : "\n") + name + "|" + signature + " = " + format("%.2f", score) +
                 (details.empty() ? "" : " " + details);
  Json one{{"score", score}, {"signature", signature}};
  if (baseline) {
    const eval::Resampling resampling{samples, eval::kDefaultResampling.seed};
    const auto paired = eval::paired_bootstrap(metric, metric.all_counts(*baseline, {references}), counts, resampling);
    result.line += "\n" + name + "|" + metric.signature(1, resampling) +
                   format(": baseline %.2f (%.2f +- %.2f), system %.2f (%.2f +- %.2f), p = %.4f", paired.baseline.score,
                          paired.baseline.mean, paired.baseline.interval, paired.system.score, paired.system.mean,
                          paired.system.interval, paired.p_value);
    const auto system = [](const eval::SystemScore& s) {
      return Json{{"score", s.score}, {"mean", s.mean}, {"interval", s.interval}};
    };
    one["paired"] = {{"baseline", system(paired.baseline)},
                     {"system", system(paired.system)},
                     {"p_value", paired.p_value},
                     {"signature", metric.signature(1, resampling)}};
  }
  json[name] = one;
}

}  // namespace

OptionList translation_eval_options() { return list_options(TranslationEvalOptions{}); }

void check_translation_eval(const EvalRequest& request) {
  const auto o = options_of(request);
  check_word("contextpool", "tokenizer", o.tokenizer, {"13a", "intl", "char", "none"});
  const models::BeamSearchOptions search{.beam = o.beam, .alpha = o.alpha};
  models::validate(search);
  TORCH_CHECK_VALUE(o.batch >= 1, "--batch is ", o.batch, ", expected at least 1");
  TORCH_CHECK_VALUE(o.max_length >= 2, "--max-length is ", o.max_length, ", expected at least 2");
  TORCH_CHECK_VALUE(o.sentences >= 0, "--sentences is ", o.sentences, ", expected 0 (all) or more");
  TORCH_CHECK_VALUE(o.samples >= 1 && o.samples <= kMostSamples, "--samples is ", o.samples, ", expected 1 to ",
                    kMostSamples);
  TORCH_CHECK_VALUE(is_given(request, "data") || !is_given(request, "target"),
                    "--target are the references of --data: give both");
  TORCH_CHECK_VALUE(!o.data.empty(),
                    "--data FILE is needed, and --target FILE unless it has two columns: ", "the sentences to score");
  TORCH_CHECK_VALUE(is_given(request, "data") || generated_language(o.data) || !o.dev_source.empty(),
                    "--data FILE and --target FILE are needed: this run held out a part of its training text, and has ",
                    "no dev files to score");
  TORCH_CHECK_VALUE(o.hypotheses.empty() || o.output.empty(),
                    "--output is for translations that are made, not for those of --hypotheses");
}

EvalResult evaluate_translation(const EvalRequest& request) {
  const auto o = options_of(request);
  if (!o.output.empty()) io::check_replaceable(o.output);
  const auto test = open_test(request);
  std::optional<Sentences> baseline;
  if (!o.against.empty()) baseline = read_translations(o.against, test, o.sentences > 0);
  const auto start = std::chrono::steady_clock::now();
  const auto hypotheses =
      o.hypotheses.empty() ? translate(request, test) : read_translations(o.hypotheses, test, o.sentences > 0);
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  EvalResult result;
  if (!o.output.empty()) {
    std::string text;
    for (const auto& line : hypotheses) text += line + "\n";
    result.files.push_back({o.output, text});
  }
  Json json;
  eval::BleuOptions of_bleu;
  of_bleu.tokenizer = o.tokenizer;
  of_bleu.lowercase = o.lowercase;
  const eval::Bleu bleu(of_bleu);
  const eval::Chrf chrf({.lowercase = o.lowercase});
  const auto corpus = bleu.corpus(hypotheses, {test.references});
  add_metric(result, json, bleu, corpus.details(), hypotheses, test.references, baseline, o.samples);
  add_metric(result, json, chrf, "", hypotheses, test.references, baseline, o.samples);
  std::int64_t exact = 0;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) exact += hypotheses[i] == test.references[i] ? 1 : 0;
  const auto count = static_cast<double>(hypotheses.size());
  result.line += "\n" + format("exact %.2f %% of %zu sentences of %s", 100 * static_cast<double>(exact) / count,
                               hypotheses.size(), test.name.c_str());
  json["exact"] = 100 * static_cast<double>(exact) / count;
  json["sentences"] = hypotheses.size();
  if (o.hypotheses.empty()) {
    result.line += format("; %.1f sentences/s", count / seconds);
    json["sentences_per_second"] = count / seconds;
    json["memory"] = runtime::peak_memory(request.device);
  }
  result.json = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return result;
}

}  // namespace contextpool::tasks
