// The reach of each layer.
#include <algorithm>
#include <cmath>

#include "contextpool/models/language_model.h"

namespace contextpool::models {
namespace {

int64_t window_of(const LanguageModelOptions& options, int64_t layer) {
  if (layer == 0) return options.window_first;
  if (layer == options.layers - 1) return options.window_last;
  const double first = std::log2(options.window_first), last = std::log2(options.window_last);
  const double exponent = first + (last - first) * static_cast<double>(layer) / static_cast<double>(options.layers - 1);
  const auto rounded = int64_t{1} << static_cast<int64_t>(std::floor(exponent + 0.5));
  return std::clamp(rounded, options.window_first, options.window_last);
}

// Longformer's: of 12 layers, 0 in the lower six, then 1, 2 and 3 in two each.
int64_t dilation_of(int64_t layer, int64_t layers) { return std::max<int64_t>(0, (12 * layer / layers - 4) / 2); }

}  // namespace

nn::Reach reach_of(const LanguageModelOptions& options, int64_t layer) {
  return {.kind = options.attention,
          .window = window_of(options, layer),
          .dilation = dilation_of(layer, options.layers),
          .dilated_heads = options.dilated_heads,
          .row = options.length,
          .window_doublings = options.window_doublings,
          .span_limit = options.span_limit};
}

}  // namespace contextpool::models
