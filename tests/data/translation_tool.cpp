// The text side of translation on the command line, for tests/python/test_translation_text.py:
//   names LANGUAGE FROM TO             the names of numbers, a line each
//   splits FROM TO                     the splits of numbers, a line each
//   read SOURCE TARGET|TSV [LIMIT]     how many pairs were read, as JSON; with one file, a TSV
//   train SOURCE TARGET TYPE SIZE BYTES OUT      a joint vocabulary; BYTES: 1 for byte fallback
//   encode VOCABULARY FILE             the symbols of each line
//   decode VOCABULARY FILE             and what becomes of them
//   batches SOURCE TARGET VOCABULARY TOKENS SEED STEPS    the pairs of each step's batch, as JSON, with the padding
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextpool/data/translation/number_names.h"
#include "contextpool/data/translation/token_batches.h"

namespace contextpool::data {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Json report_of(const ParallelReport& report) {
  const auto dropped = [](const Dropped& d) { return Json{{"count", d.count}, {"lines", d.lines}}; };
  return {{"lines", report.lines},
          {"kept", report.kept},
          {"empty", dropped(report.empty)},
          {"invalid", dropped(report.invalid)},
          {"long", dropped(report.too_long)},
          {"text", report.text()}};
}

void read(const Words& args) {
  ParallelOptions options;
  if (args.size() > 3) options.max_characters = std::stoll(args[3]);
  const auto text =
      args[2] == "-" ? ParallelText::from_tsv(args[1], options) : ParallelText::from_files(args[1], args[2], options);
  auto answer = report_of(text.report());
  answer["checksum"] = text.checksum();
  for (std::int64_t i = 0; i < text.size(); ++i) {
    const auto pair = text.pair(i);
    answer["pairs"].push_back({std::string(pair.source), std::string(pair.target), text.line(i)});
  }
  std::cout << answer.dump() << "\n";
}

void train(const Words& args) {
  const VocabularyOptions options{.type = args[3], .size = std::stoll(args[4]), .byte_fallback = args[5] == "1"};
  train_vocabularies(ParallelText::from_files(args[1], args[2]), options, true).source.save(args[6]);
}

void encode(const Words& args) {
  const auto vocabulary = Vocabulary::load(args[1]);
  const Lines lines(args[2]);
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    const auto symbols = vocabulary.encode(lines[i]);
    if (args[0] == "encode") {
      std::cout << Json(symbols).dump() << "\n";
    } else {
      std::cout << vocabulary.decode(symbols) << "\n";
    }
  }
}

void batches(const Words& args) {
  const auto vocabulary = Vocabulary::load(args[3]);
  const TokenizedPairs pairs(ParallelText::from_files(args[1], args[2]), vocabulary, vocabulary);
  const TokenBatches all(pairs.lengths(), {.max_tokens = std::stoll(args[4]), .seed = std::stoll(args[5])});
  Json answer = {{"per_epoch", all.per_epoch()}, {"padding", all.padding()}, {"report", report_of(pairs.report())}};
  for (std::int64_t step = 0; step < std::stoll(args[6]); ++step) answer["batches"].push_back(all.batch(step));
  std::cout << answer.dump() << "\n";
}

constexpr const char* kSplits[] = {"train", "dev", "test"};

int run(const Words& args) {
  if (args[0] == "names") {
    for (auto n = std::stoll(args[2]); n < std::stoll(args[3]); ++n) std::cout << number_name(n, args[1]) << "\n";
  } else if (args[0] == "splits") {
    for (auto n = std::stoll(args[1]); n < std::stoll(args[2]); ++n) {
      std::cout << kSplits[static_cast<int>(number_split(n))] << "\n";
    }
  } else if (args[0] == "read") {
    read(args);
  } else if (args[0] == "train") {
    train(args);
  } else if (args[0] == "encode" || args[0] == "decode") {
    encode(args);
  } else if (args[0] == "batches") {
    batches(args);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace contextpool::data

int main(int count, char** words) {
  try {
    return count < 2 ? 2 : contextpool::data::run({words + 1, words + count});
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
