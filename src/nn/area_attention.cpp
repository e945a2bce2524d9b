#include "contextpool/nn/area_attention.h"

#include <algorithm>
#include <vector>

#include "nn/sight.h"

namespace contextpool::nn {
namespace {

// x [batch, tokens, ...], `by` tokens later; what comes in at the front is 0, or false.
torch::Tensor later(const torch::Tensor& x, int64_t by) {
  const auto kept = std::max<int64_t>(0, x.size(1) - by);
  std::vector<int64_t> pad(2 * (x.dim() - 1), 0);  // the last dimension first
  pad[pad.size() - 2] = x.size(1) - kept;
  return torch::constant_pad_nd(x.narrow(1, 0, kept), pad);
}

// [batch or 1, tokens, width]: whether the area with this last token and width lies in the row and on real tokens only.
torch::Tensor existing(const torch::Tensor& real, int64_t tokens, int64_t width, const torch::Device& device) {
  auto all =
      real.defined() ? real : torch::ones({1, tokens}, torch::TensorOptions().dtype(torch::kBool).device(device));
  const auto first = all;
  std::vector<torch::Tensor> widths{all};
  for (int64_t w = 1; w < width; ++w) widths.push_back(all = all & later(first, w));
  return torch::stack(widths, 2);
}

}  // namespace

torch::Tensor area_sums(const torch::Tensor& x, int64_t width, int64_t fresh) {
  const auto first = x.size(1) - fresh;
  std::vector<torch::Tensor> widths{x.slice(1, first)};
  for (int64_t w = 1; w < width; ++w) widths.push_back(widths.back() + later(x, w).slice(1, first));
  return torch::stack(widths, 2);
}

torch::Tensor area_means(const torch::Tensor& x, int64_t width, int64_t fresh) {
  const auto counts = torch::arange(1, width + 1, x.options().requires_grad(false));
  return area_sums(x, width, fresh) / counts.view({width, 1, 1});
}

torch::Tensor area_attention(const torch::Tensor& q, const torch::Tensor& keys, const torch::Tensor& values,
                             const Sight& sight) {
  const auto queries = q.size(2), tokens = keys.size(1), width = keys.size(2);
  const auto exists = existing(sight.real, tokens, width, q.device());  // [B, N, W]
  const auto seen = seen_keys(sight, queries, tokens, q.device());      // [B, M, N]
  auto mask = exists.unsqueeze(1);
  if (seen.defined()) {
    // seen says who sees a single token, those of padding that must see something included.
    const auto token = seen.unsqueeze(-1);
    mask = width == 1
               ? token
               : torch::cat(
                     {token.expand({std::max(token.size(0), mask.size(0)), -1, -1, 1}), token & mask.slice(-1, 1)}, -1);
  }
  const auto rows = [](const torch::Tensor& t) { return t.flatten(1, 2).transpose(1, 2); };
  return torch::scaled_dot_product_attention(q, rows(keys), rows(values), mask.flatten(2).unsqueeze(1), sight.dropout);
}

}  // namespace contextpool::nn
