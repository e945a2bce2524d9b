#include "contextpool/models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/splitmix64.h"

namespace contextpool::models {
namespace {

// A number in [0, 1) that is a pure function of (seed, index).
double uniform(uint64_t seed, uint64_t index) {
  return static_cast<double>(splitmix64(splitmix64(seed) ^ index) >> 11U) * 0x1p-53;
}

constexpr int64_t kPromptPart = 512;  // tokens of the prompt at once: bounds the memory, and shows progress

void check_prompt(const GenerateOptions& options, const std::vector<int64_t>& prompt,
                  const LanguageModelOptions& model) {
  TORCH_CHECK_VALUE(!prompt.empty(), "generate: the prompt must hold at least one symbol, but is empty");
  for (const auto symbol : prompt) {
    TORCH_CHECK_VALUE(symbol >= 0 && symbol < model.vocabulary, "generate: the prompt holds symbol ", symbol,
                      ", but the model knows 0 to ", model.vocabulary - 1);
  }
  const auto total = static_cast<int64_t>(prompt.size()) + options.tokens;
  TORCH_CHECK_VALUE(model.positions != "learned" || total - 1 <= model.length, "generate: a prompt of ", prompt.size(),
                    " and ", options.tokens, " tokens need ", total - 1, " positions, but the model has learned ",
                    model.length, ": ask for fewer");
}

// Eval mode and no gradients while it lives.
class Inference {
 public:
  explicit Inference(LanguageModel& model) : model_(model), training_(model->is_training()) { model_->eval(); }
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;
  ~Inference() { model_->train(training_); }

 private:
  torch::NoGradGuard no_grad_;
  LanguageModel& model_;
  bool training_;
};

torch::Tensor row(const std::vector<int64_t>& symbols, const torch::Device& device) {
  return torch::tensor(symbols, torch::kInt64).unsqueeze(0).to(device);
}

// The model has seen the prompt up to, but not including, its last part, which is returned.
torch::Tensor read_prompt(LanguageModel& model, const std::vector<int64_t>& prompt, LanguageModelCache& cache,
                          const std::function<void(int64_t, int64_t)>& progress) {
  const auto all = row(prompt, model->parameters().front().device());
  const auto size = all.size(1);
  int64_t done = 0;
  for (; size - done > kPromptPart; done += kPromptPart) {
    if (progress) progress(done, size);
    model->step(all.narrow(1, done, kPromptPart), cache);
  }
  return all.narrow(1, done, size - done);
}

}  // namespace

void validate(const GenerateOptions& options) {
  TORCH_CHECK_VALUE(options.tokens >= 0, "generate: tokens must not be negative, but are ", options.tokens);
  TORCH_CHECK_VALUE(std::isfinite(options.temperature) && options.temperature >= 0,
                    "generate: temperature must be 0 or more, but is ", options.temperature);
  TORCH_CHECK_VALUE(options.top_k >= 0, "generate: top_k must be 0 (all) or more, but is ", options.top_k);
}

int64_t sample(const torch::Tensor& logits, const GenerateOptions& options, uint64_t index) {
  const auto values = logits.to(torch::kCPU, torch::kFloat64).contiguous();
  const auto* score = values.data_ptr<double>();
  std::vector<int64_t> order(values.numel());
  std::iota(order.begin(), order.end(), int64_t{0});
  TORCH_CHECK(values.isfinite().all().item<bool>(), "generate: the model's logits are not finite");
  // The likeliest first; equals in the order of the symbols.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0) order.resize(std::min<std::size_t>(order.size(), options.top_k));
  std::vector<double> sums;
  double sum = 0;
  for (const auto symbol : order) {
    sum += std::exp((score[symbol] - score[order.front()]) / options.temperature);
    sums.push_back(sum);
  }
  const auto found = std::upper_bound(sums.begin(), sums.end(), uniform(options.seed, index) * sum);
  return order[std::min<std::size_t>(found - sums.begin(), order.size() - 1)];
}

std::vector<int64_t> generate(LanguageModel& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<bool(int64_t)>& on_token,
                              const std::function<void(int64_t, int64_t)>& on_prompt) {
  validate(options);
  check_prompt(options, prompt, model->options());
  const Inference inference(model);
  const auto device = model->parameters().front().device();
  std::vector<int64_t> text = prompt;
  std::vector<int64_t> drawn;
  LanguageModelCache cache;
  auto fresh = options.cached ? read_prompt(model, prompt, cache, on_prompt) : torch::Tensor();
  while (static_cast<int64_t>(drawn.size()) < options.tokens) {
    const auto logits = options.cached ? model->step(fresh, cache) : model->forward(row(text, device));
    const auto symbol = sample(logits[0][-1], options, drawn.size());
    drawn.push_back(symbol);
    text.push_back(symbol);
    fresh = row({symbol}, device);
    if (on_token && !on_token(symbol)) break;
  }
  return drawn;
}

}  // namespace contextpool::models
