#include "tasks/text_looking.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

#include "contextpool/data/text.h"
#include "contextpool/models/language_model.h"
#include "contextpool/tasks/trained_translator.h"
#include "tasks/looking.h"

namespace contextpool::tasks {
namespace {

constexpr std::int64_t kMostTokens = 4096;  // a page with more would be slow to read, and to draw

void check_length(std::int64_t tokens, std::int64_t positions) {
  const auto most = positions > 0 ? std::min(positions, kMostTokens) : kMostTokens;
  TORCH_CHECK_VALUE(tokens >= 1, "--text has no token; give it a line of text");
  TORCH_CHECK_VALUE(tokens <= most, "--text has ", tokens, " tokens, expected at most ", most,
                    most < kMostTokens ? ", the model's learned positions" : "; give a part of it");
}

// A byte that is no character by itself is shown as its number.
std::string printable(char symbol) {
  const auto byte = static_cast<unsigned char>(symbol);
  if (byte < 0x80 && (std::isprint(byte) != 0 || byte == '\n')) return std::string(1, symbol);
  std::array<char, 4> hex{};
  std::snprintf(hex.data(), hex.size(), "%02X", byte);
  return hex.data();
}

template <typename Blocks>
void add_layers(const Blocks& blocks, const std::vector<nn::Windows>& windows, eval::Looking& looking) {
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].sigma.defined()) looking.layers.push_back(eval::look_at(blocks[i]->options().pool, windows[i], 1));
  }
  looking.sizes_of = "the tokens of this line";
}

}  // namespace

eval::Looking look_at_text(const LookRequest& request) {
  const auto description = models::describe_model(request.file);
  models::LanguageModelOptions options;
  assign_options(options, description.options);
  check_pool(request.file, description.options, options.pool);
  check_length(static_cast<std::int64_t>(request.text.size()), options.positions == "learned" ? options.length : 0);
  const auto symbols = data::Alphabet(options.vocabulary).encode(request.text, "--text");
  auto model = models::load_language_model(request.file, request.device);
  const torch::NoGradGuard no_grad;
  eval::Looking looking;
  looking.model = described(description);
  looking.input = "a line of " + std::to_string(request.text.size()) + " tokens";
  looking.causal = true;
  for (const auto c : request.text) looking.tokens.push_back(printable(c));
  add_layers(model->blocks(), model->windows(symbols.unsqueeze(0).to(request.device)), looking);
  check_layers(request.file, looking);
  return looking;
}

eval::Looking look_at_source(const LookRequest& request) {
  const auto description = models::describe_model(request.file);
  models::TranslatorOptions options;
  assign_options(options, description.options);
  check_pool(request.file, description.options, options.pool);
  TrainedTranslator trained(request.file, request.device);
  const auto& vocabulary = trained.vocabularies().source;
  auto symbols = vocabulary.encode(request.text);
  check_length(static_cast<std::int64_t>(symbols.size()), options.positions == "learned" ? options.length - 1 : 0);
  symbols.push_back(data::kEnd);
  const torch::NoGradGuard no_grad;
  eval::Looking looking;
  looking.model = described(description) + ", the encoder";
  looking.input = "a sentence of " + std::to_string(symbols.size()) + " tokens";
  constexpr std::string_view kSpace = "\xE2\x96\x81";  // as SentencePiece writes it
  for (const auto symbol : symbols) {
    auto piece = symbol == data::kEnd ? std::string(" \xE2\x8F\x8E") : vocabulary.piece(symbol);
    if (piece.starts_with(kSpace)) piece.replace(0, kSpace.size(), " ");
    looking.tokens.push_back(std::move(piece));
  }
  const auto source = torch::tensor(symbols).unsqueeze(0).to(request.device);
  add_layers(trained.model()->encoder(), trained.model()->encoder_windows(source), looking);
  check_layers(request.file, looking);
  return looking;
}

}  // namespace contextpool::tasks
