// contextpool translate: standard input to standard output, a line for a line, as batches are done.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "cli/cli.h"
#include "cli/console.h"
#include "cli/line_stream.h"
#include "contextpool/data/translation/utf8.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/trained_translator.h"

namespace contextpool::cli {
namespace {

void warn(std::int64_t line, const std::string& what) {
  std::cerr << "contextpool: line " << line << ": " << what << "\n";
}

// One line a sentence; of several translations a line each, "number ||| text ||| score", the number that of the input
// line from 0.
std::string written(const std::vector<tasks::TranslatedText>& found, std::int64_t number, bool numbered) {
  if (!numbered) return found.front().text + "\n";
  std::string text;
  for (const auto& [words, score] : found) {
    char figure[32];
    std::snprintf(figure, sizeof figure, "%.6f", score);
    text += std::to_string(number) + " ||| " + words + " ||| " + figure + "\n";
  }
  return text;
}

}  // namespace

int translate(const Arguments& arguments) {
  ModelFlags flags;
  tasks::TranslationRequest request;
  auto& search = request.search;
  CLI::App app("Translates standard input to standard output, a line for a line.", "contextpool translate");
  flags.add_to(app);
  app.add_option("--beam", search.beam, "hypotheses of a sentence; 1: greedy decoding");
  app.add_option("--alpha", search.alpha, "how much the length penalty favours long translations");
  app.add_option("--n-best", search.n_best,
                 "translations of a sentence; above 1, each is a line \"number ||| text ||| score\"");
  app.add_option("--extra-length", search.extra_length, "tokens by which a translation may exceed its source");
  app.add_option("--batch", request.batch, "lines translated at once, at most");
  app.add_option("--max-length", request.max_length, "tokens of a line, at most; the rest of a longer line is dropped");
  app.add_flag("--bfloat16", request.bfloat16, "matrix products in bfloat16");
  if (!parse(app, arguments)) return 0;
  const auto device = as_command([&] {
    contextpool::models::validate(search);
    return runtime::device_named(flags.device);
  });
  if (request.batch < 1) throw UsageError("--batch is " + std::to_string(request.batch) + ", expected at least 1");
  if (request.max_length < 2)
    throw UsageError("--max-length is " + std::to_string(request.max_length) + ", expected at least 2");

  tasks::TrainedTranslator translator(flags.file(), device);
  ignore_broken_pipes();
  LineReader input(STDIN_FILENO);
  Progress progress("translated", "lines");
  std::int64_t done = 0;
  request.shortened = [&](std::size_t i) {
    warn(done + static_cast<std::int64_t>(i) + 1,
         "has more than " + std::to_string(request.max_length) + " tokens; the rest is not translated (--max-length)");
  };
  while (true) {
    const auto lines = input.next(static_cast<std::size_t>(request.batch));
    if (lines.empty()) return 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (data::is_valid_utf8(lines[i])) continue;
      warn(done + static_cast<std::int64_t>(i) + 1, "is not UTF-8; the invalid bytes are read as spaces");
    }
    const auto found = translator.translate({lines.begin(), lines.end()}, request);
    std::string text;
    for (const auto& translations : found) text += written(translations, done++, search.n_best > 1);
    if (!write_out(STDOUT_FILENO, text)) return 0;
    progress(done, 0);
  }
}

}  // namespace contextpool::cli
