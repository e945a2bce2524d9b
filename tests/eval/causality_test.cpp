// From the file to the prediction: changing byte t of a text changes no bit of a prediction that is made before byte t
// is read, for every option of a causal model; and it does change a later one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../data/files.h"
#include "../device.h"
#include "contextpool/data/text.h"
#include "contextpool/models/language_models.h"

namespace contextpool::testing {
namespace {

using models::LanguageModelOptions;

struct Option {
  std::string name;
  LanguageModelOptions options;
};

LanguageModelOptions base() {
  auto options = models::find_language_model("cp-tiny").options;
  options.features = 16;
  options.feedforward = 32;
  options.pool.hidden = 8;
  options.pool.reference_length = 48;
  return options;
}

std::vector<Option> causal_options() {
  std::vector<Option> all;
  const auto add = [&](const std::string& name, auto change) {
    auto options = base();
    change(options);
    all.push_back({name, options});
  };
  for (const std::string positions : {"rotary", "learned", "sinusoidal"}) {
    add(positions, [&](auto& o) { o.positions = positions; });
  }
  for (const std::string mixer : {"none", "depthwise", "context_pool"}) {
    for (const std::string placement : {"after_attention", "after_block", "before_attention"}) {
      add(mixer + " " + placement, [&](auto& o) { o.mixer = mixer, o.placement = placement; });
    }
  }
  for (const std::string predictor : {"conv", "mlp", "attention"}) {
    add(predictor, [&](auto& o) { o.pool.predictor = predictor; });
  }
  for (const std::string weights : {"softmax", "unnormalized", "uniform", "nonlocal"}) {
    for (const std::string locality : {"gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"}) {
      add(weights + " " + locality, [&](auto& o) { o.pool.weights = weights, o.pool.locality = locality; });
    }
  }
  for (const std::string attention : {"window", "adaptive_span"}) {
    add(attention, [&](auto& o) {
      o.attention = attention;
      o.window_first = 3;
      o.window_last = 12;
      o.dilated_heads = 1;
      o.window_doublings = 1;
      o.length = 24;
      o.span_limit = 40;
    });
  }
  add("channels", [](auto& o) { o.pool.size_norm = "channels"; });
  add("groups", [](auto& o) { o.pool.groups = 4; });
  add("even kernel", [](auto& o) { o.pool.kernel = 4; });
  return all;
}

TEST(Causality, HoldsFromTheFileToThePrediction) {
  constexpr std::int64_t kLength = 48;
  const Folder folder;
  std::string bytes;
  for (std::int64_t i = 0; i < 20 * kLength; ++i) bytes += static_cast<char>('a' + i * i % 23);
  const auto read = [&] {
    const data::Text text(folder.write("text", bytes), "bytes");
    return there(text.symbols(data::Split::test, 0, kLength)).unsqueeze(0);
  };
  const auto test_begin = bytes.size() - kLength;
  const auto before = read();
  for (const auto& option : causal_options()) {
    SCOPED_TRACE(option.name);
    torch::manual_seed(5);
    models::LanguageModel model(option.options);
    model->eval();
    model->to(device());
    const torch::NoGradGuard no_grad;
    for (auto& p : model->parameters()) p.add_(torch::randn_like(p), 0.1);  // away from zeros and equal rows
    const auto logits = model->forward(before);
    for (const std::int64_t t : {1, 16, 30, 47}) {
      const auto kept = bytes[test_begin + t];
      bytes[test_begin + t] = 'z';
      const auto changed = model->forward(read());
      bytes[test_begin + t] = kept;
      EXPECT_TRUE(changed.slice(1, 0, t).equal(logits.slice(1, 0, t))) << "byte " << t;
      EXPECT_FALSE(changed.slice(1, t).equal(logits.slice(1, t))) << "byte " << t;
    }
  }
}

}  // namespace
}  // namespace contextpool::testing
