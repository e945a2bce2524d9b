#include "nn/context_pool_options.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/words.h"

namespace contextpool::nn {
namespace {

void check_words(const std::string& who, const ContextPoolOptions& o) {
  // Written by scripts/option_tables.py: words
  check_word(who, "predictor", o.predictor, {"conv", "mlp", "attention"});
  check_word(who, "weights", o.weights, {"softmax", "unnormalized", "uniform", "nonlocal"});
  check_word(who, "locality", o.locality, {"gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"});
  check_word(who, "size_norm", o.size_norm, {"sigmoid", "softmax", "channels"});
  // option_tables.py: end
}

void check_numbers(const std::string& who, const ContextPoolOptions& o) {
  for (const auto& [name, value] :
       {std::pair{"ratio", o.ratio}, {"initial_sigma", o.initial_sigma}, {"size_range", o.size_range}}) {
    TORCH_CHECK_VALUE(!std::isinf(value), who, ": ", name, " must be finite, but is ", value);
  }
  TORCH_CHECK_VALUE(o.features > 0, who, ": features must be positive, but is ", o.features);
  TORCH_CHECK_VALUE(o.ratio > 0, who, ": ratio must be positive, but is ", o.ratio);
  TORCH_CHECK_VALUE(o.reference_length >= 0, who, ": reference_length must not be negative, but is ",
                    o.reference_length);
  TORCH_CHECK_VALUE(o.usual_length > 0, who, ": usual_length must be positive, but is ", o.usual_length);
  TORCH_CHECK_VALUE(o.initial_sigma > 0, who, ": initial_sigma must be positive, but is ", o.initial_sigma);
  TORCH_CHECK_VALUE(o.size_range >= 0, who, ": size_range must not be negative, but is ", o.size_range);
  TORCH_CHECK_VALUE(o.size_floor >= 0 && o.size_floor < 1, who,
                    ": size_floor must be a share of initial_sigma, from 0 to less than 1, but is ", o.size_floor);
  TORCH_CHECK_VALUE(o.hidden > 0, who, ": hidden must be positive, but is ", o.hidden);
  TORCH_CHECK_VALUE(o.kernel > 0, who, ": kernel must be positive, but is ", o.kernel);
  TORCH_CHECK_VALUE(o.window >= 0, who, ": window must not be negative, but is ", o.window);
  TORCH_CHECK_VALUE(o.groups > 0 && o.features % o.groups == 0, who, ": groups must divide the ", o.features,
                    " features, but is ", o.groups);
}

void check_combination(const std::string& who, const ContextPoolOptions& o) {
  TORCH_CHECK_VALUE(o.causal || o.kernel % 2 == 1, who, ": kernel must be odd to look as far back as ahead, but is ",
                    o.kernel);
  TORCH_CHECK_VALUE(!o.causal || o.reference_length > 0, who,
                    ": causal needs reference_length: the length of a row is not known before its end, so its own "
                    "length would tell of the future; set it to the usual length of the model's rows");
  TORCH_CHECK_VALUE(!o.causal || o.size_norm != "softmax", who,
                    ": size_norm \"softmax\" divides by a sum over the whole row, later tokens too, so it cannot be "
                    "causal; use \"sigmoid\" or \"channels\"");
  if (pairwise_weights(o)) {
    TORCH_CHECK_VALUE(o.groups == 1, who,
                      ": weights \"nonlocal\" compare whole tokens, so they cannot differ by group; set groups to 1");
    TORCH_CHECK_VALUE(o.predictor != "mlp", who,
                      ": weights \"nonlocal\" are another name of predictor \"attention\", so predictor cannot be "
                      "\"mlp\"; leave it at \"conv\"");
    TORCH_CHECK_VALUE(o.weights == "softmax" || o.weights == "nonlocal", who,
                      ": predictor \"attention\" gives the weights \"nonlocal\", so weights cannot be \"", o.weights,
                      "\"; leave it at \"softmax\"");
  }
  TORCH_CHECK_VALUE(o.size_norm != "channels" || predicts_weights(o), who,
                    ": size_norm \"channels\" is a softmax over a token's weight and size, but weights \"",
                    pairwise_weights(o) ? "nonlocal" : o.weights, "\" are not predicted for a token; use \"sigmoid\"");
}

void validate(const std::string& who, const ContextPoolOptions& options) {
  check_words(who, options);
  check_numbers(who, options);
  check_combination(who, options);
}

}  // namespace

bool pairwise_weights(const ContextPoolOptions& options) {
  return options.predictor == "attention" || options.weights == "nonlocal";
}

bool predicts_weights(const ContextPoolOptions& options) {
  return !pairwise_weights(options) && options.weights != "uniform";
}

bool predicts_sizes(const ContextPoolOptions& options) {
  return options.locality == "gaussian" || options.locality == "adaptive_window";
}

bool bounded_sizes(const ContextPoolOptions& options) {
  return options.size_range > 0 && options.size_norm == "sigmoid";
}

double smallest_size(const ContextPoolOptions& options) { return options.size_floor * options.initial_sigma; }

double smallest_limit(const ContextPoolOptions& options) { return options.initial_sigma / kLargestStart; }

double reference_limit(const ContextPoolOptions& options) {
  const auto limit = options.ratio * static_cast<double>(options.reference_length);
  return bounded_sizes(options) ? std::max(limit, smallest_limit(options)) : limit;
}

int64_t predicted_channels(const ContextPoolOptions& options) {
  return options.groups * ((predicts_weights(options) ? 1 : 0) + (predicts_sizes(options) ? 1 : 0));
}

std::string describe(const std::string& name, const ContextPoolOptions& o) {
  std::ostringstream text;
  text << std::boolalpha << name << "(features=" << o.features;
  for_each_pool_option(o, [&](std::string_view option, const auto& value, const char*) {
    option.remove_prefix(std::string_view("pool_").size());
    if (option != "window" && option != "seed") text << ", " << option << "=" << value;
  });
  text << ", causal=" << o.causal << ")";
  return text.str();
}

void validate(const ContextPoolOptions& options) { validate("ContextPool1d", options); }

void validate(const ContextPool2dOptions& options) {
  validate("ContextPool2d", options);
  TORCH_CHECK_VALUE(!options.causal, "ContextPool2d: a map has no order, so it cannot be causal");
  TORCH_CHECK_VALUE(options.stride[0] > 0 && options.stride[1] > 0, "ContextPool2d: stride must be positive, but is ",
                    options.stride[0], ", ", options.stride[1]);
}

}  // namespace contextpool::nn
