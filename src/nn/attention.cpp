#include "contextpool/nn/attention.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/words.h"
#include "contextpool/nn/area_attention.h"
#include "contextpool/ops/rotary.h"
#include "nn/banded_attention.h"
#include "nn/sight.h"

namespace contextpool::nn {
namespace {

constexpr int64_t kMostDoublings = 16;

torch::Tensor joined(const std::vector<torch::Tensor>& parts, int64_t dim) {
  return parts.size() == 1 ? parts.front() : torch::cat(parts, dim);
}

void check_reach(const AttentionOptions& options) {
  const auto& r = options.reach;
  check_word("Attention", "attention", r.kind, {"full", "window", "adaptive_span", "local", "area"});
  TORCH_CHECK_VALUE(r.area_width > 0, "Attention: area_width must be positive, but is ", r.area_width);
  if (r.kind != "window" && r.kind != "adaptive_span") return;
  TORCH_CHECK_VALUE(options.causal, "Attention: attention \"", r.kind, "\" must be causal");
  if (r.kind == "adaptive_span") {
    TORCH_CHECK_VALUE(r.span_limit > 0, "Attention: span_limit must be positive, but is ", r.span_limit);
    return;
  }
  TORCH_CHECK_VALUE(r.window > 0, "Attention: window must be positive, but is ", r.window);
  TORCH_CHECK_VALUE(r.dilation >= 0, "Attention: dilation must not be negative, but is ", r.dilation);
  TORCH_CHECK_VALUE(r.dilated_heads >= 0 && r.dilated_heads <= options.heads,
                    "Attention: dilated_heads must be from 0 to the number of heads, ", options.heads, ", but is ",
                    r.dilated_heads);
  TORCH_CHECK_VALUE(r.row > 0, "Attention: row must be positive, but is ", r.row);
  TORCH_CHECK_VALUE(r.window_doublings >= 0 && r.window_doublings <= kMostDoublings,
                    "Attention: window_doublings must be from 0 to ", kMostDoublings, ", but is ", r.window_doublings);
}

}  // namespace

AttentionImpl::AttentionImpl(AttentionOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.heads > 0 && options_.features > 0 && options_.features % options_.heads == 0,
                    "Attention: features must be a multiple of heads, but are ", options_.features, " and ",
                    options_.heads);
  TORCH_CHECK_VALUE(options_.dropout >= 0 && options_.dropout < 1, "Attention: dropout must be in [0, 1), but is ",
                    options_.dropout);
  check_reach(options_);
  qkv_ = register_module("qkv", Linear(options_.features, 3 * options_.features));
  out_ = register_module("out", Linear(options_.features, options_.features));
  if (options_.reach.kind == "adaptive_span") span = register_parameter("span", torch::zeros({options_.heads}));
  if (options_.reach.kind == "local") {
    local_ = register_module("local", LocalWindows(options_.heads, options_.features / options_.heads));
  }
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, const Rotation& rotation, const Padding& padding,
                                     const MixProjections& mix) {
  const auto mask = padding.mask({x.size(0), x.size(1)}, x.device());
  // A weight of 0 times NaN would be NaN.
  auto parts = project(mask.defined() ? x.masked_fill(mask.logical_not().unsqueeze(-1), 0) : x, rotation, mix);
  parts.real = mask;
  if (options_.reach.kind == "area") {
    parts.k = area_means(parts.k.transpose(1, 2), options_.reach.area_width, x.size(1));
    parts.v = area_sums(parts.v.transpose(1, 2), options_.reach.area_width, x.size(1));
  }
  return attend(parts);
}

torch::Tensor AttentionImpl::step(const torch::Tensor& x, AttentionCache& cache, const Rotation& rotation,
                                  const Padding& padding, const MixProjections& mix) {
  TORCH_CHECK(options_.causal, "Attention: only causal attention has steps");
  cache.check_rows("Attention", x);
  const auto fresh = padding.mask({x.size(0), x.size(1)}, x.device());
  auto parts = project(fresh.defined() ? x.masked_fill(fresh.logical_not().unsqueeze(-1), 0) : x, rotation, mix);
  if (options_.reach.kind == "area") {
    append_areas(parts, cache);
  } else {
    parts.k = cache.append("keys", parts.k.transpose(1, 2)).transpose(1, 2);
    parts.v = cache.append("values", parts.v.transpose(1, 2)).transpose(1, 2);
  }
  parts.real = cache.append_mask(fresh, x);
  cache.advance(x.size(1));
  return attend(parts);
}

AttentionImpl::Parts AttentionImpl::project(const torch::Tensor& x, const Rotation& rotation,
                                            const MixProjections& mix) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "Attention: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  const auto projected = mix ? mix(qkv_(x)) : qkv_(x);
  const auto qkv = projected.unflatten(2, {3, options_.heads, options_.features / options_.heads});
  if (rotation.defined() && qkv.is_cuda()) {  // one pass over the projections, and one over their gradient
    const auto [q, k, v] = rotary_qkv(qkv, torch::real(rotation), torch::imag(rotation));
    return {.q = q.transpose(1, 2), .k = k.transpose(1, 2), .v = v.transpose(1, 2)};
  }
  const auto turned = rotate(qkv.narrow(2, 0, 2), rotation);
  return {.q = turned.select(2, 0).transpose(1, 2),
          .k = turned.select(2, 1).transpose(1, 2),
          .v = qkv.select(2, 2).transpose(1, 2)};
}

// The widest area of a new token reaches back to tokens in the cache: they are its areas of width 1.
void AttentionImpl::append_areas(Parts& parts, AttentionCache& cache) const {
  const auto width = options_.reach.area_width;
  const auto append = [&](const char* name, const torch::Tensor& new_tokens, auto areas) {
    auto tokens = new_tokens.transpose(1, 2);
    const auto fresh = tokens.size(1), seen = std::min(cache.length(), width - 1);
    if (seen > 0) tokens = torch::cat({cache.read(name).slice(1, cache.length() - seen).select(2, 0), tokens}, 1);
    return cache.append(name, areas(tokens, width, fresh));
  };
  parts.k = append("keys", parts.k, area_means);
  parts.v = append("values", parts.v, area_sums);
}

torch::Tensor AttentionImpl::attend(const Parts& parts) {
  const auto& kind = options_.reach.kind;
  const Sight sight{.real = parts.real, .causal = options_.causal, .dropout = dropout_now()};
  torch::Tensor y;
  if (kind == "full") {
    y = full_attention(parts.q, parts.k, parts.v, sight);
  } else if (kind == "local") {
    y = local_->attend(parts.q, parts.k, parts.v, sight);
  } else if (kind == "area") {
    y = area_attention(parts.q, parts.k, parts.v, sight);
  } else {
    y = kind == "window" ? see_windows(parts) : see_spans(parts);
  }
  return out_(y.transpose(1, 2).flatten(2));
}

// Runs of tokens with the same window, and in each the heads with the same dilation.
torch::Tensor AttentionImpl::see_windows(const Parts& parts) {
  const auto& r = options_.reach;
  const auto end = parts.k.size(2), begin = end - parts.q.size(2);
  const auto dilated = r.dilation > 0 ? r.dilated_heads : 0;
  std::vector<torch::Tensor> runs;
  for (auto at = begin; at < end || runs.empty();) {
    const auto doublings = std::min<int64_t>(std::bit_width(static_cast<uint64_t>(at / r.row)), r.window_doublings);
    const auto next = doublings < r.window_doublings ? std::min(end, r.row << doublings) : end;
    const auto see = [&](int64_t first, int64_t count, int64_t stride) {
      const auto keys = [&](const torch::Tensor& t) { return t.narrow(1, first, count).slice(2, 0, next); };
      return banded_attention(parts.q.narrow(1, first, count).slice(2, at - begin, next - begin), keys(parts.k),
                              keys(parts.v), parts.real.defined() ? parts.real.slice(1, 0, next) : parts.real,
                              {.window = r.window << doublings, .stride = stride, .dropout = dropout_now()});
    };
    std::vector<torch::Tensor> heads;
    if (dilated < options_.heads) heads.push_back(see(0, options_.heads - dilated, 1));
    if (dilated > 0) heads.push_back(see(options_.heads - dilated, dilated, r.dilation + 1));
    runs.push_back(joined(heads, 1));
    at = next;
  }
  return joined(runs, 2);
}

// Each head by itself: it costs what its own span asks for, and most spans stay short.
torch::Tensor AttentionImpl::see_spans(const Parts& parts) {
  const auto limit = options_.reach.span_limit;
  // Half types could not tell neighbours apart.
  const auto float_type = torch::promote_types(span.scalar_type(), torch::kFloat);
  const auto spans = span.to(float_type).clamp(0, 1) * static_cast<double>(limit);
  const auto tokens = spans.detach().cpu().to(torch::kDouble).ceil();  // one wait for the device
  std::vector<torch::Tensor> heads;
  for (int64_t h = 0; h < options_.heads; ++h) {
    const auto window = std::min(limit, tokens[h].item<int64_t>() + kSpanRamp);
    heads.push_back(banded_attention(parts.q.narrow(1, h, 1), parts.k.narrow(1, h, 1), parts.v.narrow(1, h, 1),
                                     parts.real, {.window = window, .span = spans[h], .dropout = dropout_now()}));
  }
  return torch::cat(heads, 1);
}

}  // namespace contextpool::nn
