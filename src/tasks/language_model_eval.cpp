#include "tasks/language_model_eval.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "contextpool/eval/windows.h"
#include "contextpool/models/model_file.h"
#include "contextpool/runtime/device.h"
#include "tasks/recall.h"

namespace contextpool::tasks {
namespace {

constexpr std::int64_t kTokensAtOnce = 16384;  // of a batch of windows, unless it is given

struct LanguageModelEvalOptions {
  std::string data, layout, split = "test", protocol = "trained";
  std::int64_t window = 0, step = 0, batch = 0, tokens = 0;  // of the first three, 0: as the protocol has it
  std::int64_t pairs = 16, hops = 2;
  bool bfloat16 = false;
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, LanguageModelEvalOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data, "text file, or recall or k-hop; else what the run was trained on");
  f("layout", options.layout,
    "of the file: bytes, letters, enwik8 or text8; else the run's, or as the model's symbols");
  f("split", options.split, "train, dev or test; all: the whole file");
  f("protocol", options.protocol,
    "windows and steps: trained (the length of the training rows, and half of it) or paper (32768 and 512)");
  f("window", options.window, "tokens of a window, or of a generated row; 0: the protocol's");
  f("step", options.step, "tokens from window to window, and scored in each; 0: half of --window, or the protocol's");
  f("batch", options.batch, "windows at once; 0: as many as have 16384 tokens together");
  f("tokens", options.tokens, "of the split; 0: all, and of generated rows as many as 1000 have");
  f("pairs", options.pairs, "recall, k-hop: pairs in a row; else the run's");
  f("hops", options.hops, "k-hop: at most; else the run's");
  f("bfloat16", options.bfloat16, "matrix products in bfloat16");
}

LanguageModelEvalOptions options_of(const EvalRequest& request) {
  LanguageModelEvalOptions options;
  assign_options(options, request.options);
  return options;
}

bool is_given(const EvalRequest& request, const std::string& name) {
  return std::find(request.given.begin(), request.given.end(), name) != request.given.end();
}

void say(const EvalRequest& request, const std::string& line) {
  if (request.note) request.note(line);
}

// 0 where the file does not say.
std::int64_t trained_length(const io::Metadata& metadata, const std::string& file) {
  const auto found = metadata.find(kTrainedLengthKey);
  if (found == metadata.end()) return 0;
  std::int64_t length = 0;
  const auto& word = found->second;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), length);
  TORCH_CHECK_VALUE(result.ec == std::errc() && length > 0, file, ": the metadata \"", kTrainedLengthKey,
                    "\" is not a positive number");
  return length;
}

// Fills in what the options leave to the protocol.
eval::WindowOptions choose_windows(const EvalRequest& request, const models::LanguageModelOptions& model,
                                   std::int64_t trained) {
  const auto o = options_of(request);
  const eval::WindowOptions paper;
  eval::WindowOptions w{
      .window = o.window, .step = o.step, .batch = o.batch, .tokens = o.tokens, .bfloat16 = o.bfloat16};
  const auto tokens = [](std::int64_t n) { return std::to_string(n) + " tokens"; };
  const bool given = w.window > 0;
  if (!given && o.protocol == "trained") {
    w.window = trained > 0 ? trained : model.length;
    if (trained == 0) {
      say(request, "the file does not say how long its training rows were; windows of " + tokens(w.window) +
                       ", the model's own length (--window sets another)");
    }
  }
  if (!given && o.protocol == "paper") {
    w.window = paper.window;
    if (w.step == 0) w.step = paper.step;
    if (model.positions == "learned" && model.length < w.window) {
      w.window = model.length;
      say(request, "windows of " + tokens(w.window) + ": the model's learned positions end there");
    }
  }
  if (w.step == 0) w.step = std::max<std::int64_t>(1, w.window / 2);
  w.step = given ? w.step : std::min(w.step, w.window);
  if (w.batch == 0) w.batch = std::max<std::int64_t>(1, kTokensAtOnce / w.window);
  if (trained > 0 && w.window > trained) {
    const auto rows = std::to_string(trained);
    say(request, "windows of " + tokens(w.window) + ", but the model was trained on rows of " + rows +
                     ": where its positions do not reach that far, use --window " + rows);
  }
  return w;
}

EvalResult result_of(const eval::Score& score, double seconds, std::int64_t memory, const std::string& split,
                     const eval::WindowOptions& windows) {
  const auto rate = static_cast<double>(score.tokens) / seconds;
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(),
                "%.4f bpc (%.4f nats) on %lld tokens of %s, windows of %lld moved by %lld; %.0f tokens/s", score.bits(),
                score.nats, static_cast<long long>(score.tokens), split.c_str(), static_cast<long long>(windows.window),
                static_cast<long long>(windows.step), rate);
  const nlohmann::ordered_json json{
      {"bpc", score.bits()},      {"loss", score.nats},   {"tokens", score.tokens},    {"split", split},
      {"window", windows.window}, {"step", windows.step}, {"tokens_per_second", rate}, {"memory", memory}};
  return {line.data(), json.dump()};
}

}  // namespace

namespace {

constexpr std::int64_t kGeneratedRows = 1000;

EvalResult evaluate_generated(const EvalRequest& request, models::LanguageModel& model, std::int64_t trained) {
  const auto o = options_of(request);
  const auto& options = model->options();
  const auto length = o.window > 0 ? o.window : trained > 0 ? trained : options.length;
  TORCH_CHECK_VALUE(options.positions != "learned" || length <= options.length, "rows of ", length,
                    " symbols, but the model has learned positions for ", options.length, "; use a smaller --window");
  return evaluate_recall(model,
                         {.data = {.data = o.data, .symbols = options.vocabulary, .pairs = o.pairs, .hops = o.hops},
                          .split = o.split,
                          .length = length,
                          .rows = o.tokens > 0 ? std::max<std::int64_t>(1, o.tokens / length) : kGeneratedRows,
                          .batch = o.batch > 0 ? o.batch : std::max<std::int64_t>(1, kTokensAtOnce / length),
                          .bfloat16 = o.bfloat16},
                         request.device);
}

}  // namespace

OptionList language_model_eval_options() { return list_options(LanguageModelEvalOptions{}); }

void check_language_model_eval(const EvalRequest& request) {
  const auto o = options_of(request);
  check_word("contextpool", "protocol", o.protocol, {"trained", "paper"});
  data::split_named(o.split);
  for (const auto& [name, value] :
       {std::pair{"window", o.window}, std::pair{"step", o.step}, std::pair{"batch", o.batch}}) {
    TORCH_CHECK_VALUE(!is_given(request, name) || value >= 1, "--", name, " is ", value, ", expected at least 1");
  }
  TORCH_CHECK_VALUE(o.tokens >= 0, "--tokens is ", o.tokens, ", expected 0 (all) or more");
  TORCH_CHECK_VALUE(o.window == 0 || o.step <= o.window, "windows of ", o.window, " tokens that move by ", o.step,
                    " would leave tokens out; --step may be at most --window");
  TORCH_CHECK_VALUE(!is_recall(o.data) || o.split == "dev" || o.split == "test", "--split is ", o.split,
                    ", but generated rows are scored on dev or test");
  TORCH_CHECK_VALUE(!o.data.empty(), "--data FILE is needed: the text to score");
}

EvalResult evaluate_language_model(const EvalRequest& request) {
  const auto o = options_of(request);
  const auto split = data::split_named(o.split);
  auto model = models::load_language_model(request.file, request.device);
  const auto metadata = models::describe_model(request.file).metadata;
  const auto trained = trained_length(metadata, request.file.string());
  if (is_recall(o.data)) return evaluate_generated(request, model, trained);
  const data::Text text(o.data, o.layout.empty() ? data::layout_of(model->options().vocabulary) : o.layout);
  if (is_given(request, "data") && !is_given(request, "split")) {
    say(request, "scoring the test split of " + o.data + ", its last " + std::to_string(text.size(split)) +
                     " bytes; --split all scores the whole file");
  }
  const auto windows = choose_windows(request, model->options(), trained);
  const auto start = std::chrono::steady_clock::now();
  const auto score = eval::evaluate(model, text, split, windows, request.progress);
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result_of(score, seconds, runtime::peak_memory(request.device), o.split, windows);
}

}  // namespace contextpool::tasks
