#include "contextpool/eval/windows.h"

#include <algorithm>
#include <numbers>
#include <vector>

#include "contextpool/runtime/device.h"

namespace contextpool::eval {
namespace {

// A window ends before token `end`; its last `count` predictions count, the last of them being of token `end`.
struct Window {
  std::int64_t end, count;
};

std::vector<Window> windows(std::int64_t predictions, std::int64_t window, std::int64_t step) {
  std::vector<Window> all = {{window, window}};
  while (all.back().end < predictions) {
    const auto end = std::min(all.back().end + step, predictions);
    all.push_back({end, end - all.back().end});
  }
  return all;
}

void check(const data::Text& text, std::int64_t tokens, const WindowOptions& options) {
  TORCH_CHECK_VALUE(options.window > 0 && options.step > 0 && options.batch > 0 && options.tokens >= 0,
                    "contextpool: evaluation by windows of ", options.window, ", step ", options.step, ", batch ",
                    options.batch, "; expected positive numbers");
  TORCH_CHECK_VALUE(options.step <= options.window, "contextpool: windows of ", options.window, " tokens that move by ",
                    options.step, " would leave tokens out; the step may be at most the window");
  TORCH_CHECK_VALUE(tokens >= 2, text.path(), ": the split has ", tokens, " tokens; at least 2 are needed");
}

}  // namespace

double Score::bits() const { return nats / std::numbers::ln2; }

Score evaluate(models::LanguageModel& model, const data::Text& text, data::Split split, const WindowOptions& options,
               const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto size = text.size(split);
  const auto tokens = options.tokens > 0 ? std::min(options.tokens, size) : size;
  check(text, tokens, options);
  const auto predictions = tokens - 1;
  const auto length = std::min(options.window, predictions);
  const auto all = windows(predictions, length, options.step);

  const bool training = model->is_training();
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto device = model->parameters().front().device();
  Score score;
  if (progress) progress(0, predictions);
  for (std::size_t first = 0; first < all.size(); first += options.batch) {
    const auto last = std::min(all.size(), first + static_cast<std::size_t>(options.batch));
    std::vector<torch::Tensor> rows;
    for (auto i = first; i < last; ++i) rows.push_back(text.symbols(split, all[i].end - length, length + 1));
    const auto batch = torch::stack(rows).to(device);
    const runtime::Autocast autocast(device, options.bfloat16);
    const auto logits = model->forward(batch.narrow(1, 0, length));
    for (auto i = first; i < last; ++i) {
      const auto row = static_cast<std::int64_t>(i - first), count = all[i].count;
      const auto nats = torch::nn::functional::cross_entropy(
          logits[row].narrow(0, length - count, count).to(torch::kFloat),
          batch[row].narrow(0, length + 1 - count, count),
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
      score.nats += nats.sum(torch::kDouble).item<double>();
      score.tokens += count;
    }
    if (progress) progress(score.tokens, predictions);
  }
  score.nats /= static_cast<double>(score.tokens);
  model->train(training);
  return score;
}

}  // namespace contextpool::eval
