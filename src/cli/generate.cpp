// contextpool generate: text from a model, as it is drawn.
#include "contextpool/models/generate.h"

#include <iostream>
#include <optional>

#include "cli/cli.h"
#include "cli/console.h"
#include "contextpool/data/text.h"
#include "contextpool/models/model_file.h"
#include "contextpool/runtime/device.h"

namespace contextpool::cli {

int generate(const Arguments& arguments) {
  ModelFlags flags;
  std::string prompt = " ";
  contextpool::models::GenerateOptions options;
  CLI::App app("Writes text with a trained model.", "contextpool generate");
  flags.add_to(app);
  app.add_option("--prompt", prompt, "text to continue; a space by default");
  app.add_option("--tokens", options.tokens, "symbols to generate");
  app.add_option("--temperature", options.temperature, "of the draws; 0: always the likeliest symbol");
  app.add_option("--top-k", options.top_k, "draw from the k likeliest symbols only; 0: from all");
  app.add_option("--seed", options.seed, "the same seed gives the same text");
  if (!parse(app, arguments)) return 0;

  const auto device = as_command([&] {
    contextpool::models::validate(options);
    return runtime::device_named(flags.device);
  });
  if (prompt.empty()) throw UsageError("--prompt is empty: at least one symbol is needed");
  auto model = contextpool::models::load_language_model(flags.file(), device);
  const data::Alphabet alphabet(model->options().vocabulary);
  const auto symbols = alphabet.encode(prompt, "the prompt");
  const auto* first = symbols.const_data_ptr<std::int64_t>();
  // The prompt is shown when it was read: until then the line belongs to the progress.
  std::optional<Progress> progress(std::in_place, "read", "tokens of the prompt");
  const auto begin = [&] {
    if (!progress) return;
    progress.reset();
    std::cout << prompt << std::flush;
  };
  contextpool::models::generate(
      model, {first, first + symbols.numel()}, options,
      [&](std::int64_t symbol) {
        begin();
        std::cout << alphabet.decode(torch::tensor(symbol)) << std::flush;
        return static_cast<bool>(std::cout);
      },
      [&](std::int64_t done, std::int64_t all) { (*progress)(done, all); });
  begin();
  std::cout << '\n' << std::flush;
  return 0;
}

}  // namespace contextpool::cli
