// A row of queries is cut into chunks of about half a window; a chunk sees the keys from one window before its first
// query to its last. Chunks are to scaled_dot_product_attention what heads are, and their keys a view that overlaps.
#include "nn/banded_attention.h"

#include <algorithm>
#include <limits>

namespace contextpool::nn {
namespace {

constexpr int64_t kLeastChunk = 32;  // queries; smaller matrices cost more time than they save
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How the rows are cut. A stride makes that many rows of one, each with every stride-th token and a stride of 1.
struct Cut {
  int64_t window, stride, chunks, chunk;
  int64_t front, back;  // tokens to add to the keys (to drop, if negative), and after the queries too

  Cut(const Band& band, int64_t queries, int64_t keys)
      : window(std::min(band.window, divide_up(keys, band.stride))), stride(band.stride) {
    const auto each = divide_up(queries, stride);
    chunks = divide_up(each, std::max(kLeastChunk, divide_up(window, 2)));
    chunk = divide_up(each, chunks);
    front = stride * window - (keys - queries);
    back = stride * chunks * chunk - queries;
  }

  int64_t width() const { return window + chunk; }  // keys of a chunk; the first of them is out of every reach

  // x [batch, heads, tokens, n] as [batch * heads, stride, tokens / stride, n].
  torch::Tensor rows(const torch::Tensor& x, int64_t before) const {
    const auto padded = torch::constant_pad_nd(x, {0, 0, before, back}).flatten(0, 1);
    return padded.unflatten(1, {-1, stride}).transpose(1, 2);
  }
  // Queries, [batch * heads, stride * chunks, chunk, n].
  torch::Tensor chunked(const torch::Tensor& x) const { return rows(x, 0).unflatten(2, {chunks, chunk}).flatten(1, 2); }
  // What belongs to keys, [batch * heads, stride * chunks, width, n].
  torch::Tensor overlapping(const torch::Tensor& x) const {
    return rows(x, front).unfold(2, width(), chunk).transpose(-1, -2).flatten(1, 2);
  }
  // How far back a key stands, in strides, [chunk, width].
  torch::Tensor distances(const torch::Device& device) const {
    return torch::arange(chunk, device).unsqueeze(1) + window - torch::arange(width(), device);
  }
};

// log m, and -infinity where a key is not seen. Where m is 0 or 1 it does not move with the span: no gradient, which
// the logarithm of 0 would become NaN.
torch::Tensor log_weights(const torch::Tensor& seen, const torch::Tensor& distance, const torch::Tensor& span) {
  const auto ramp = (span - distance) / kSpanRamp + 1;
  const auto m = ramp.masked_fill((ramp <= 0) | (ramp >= 1), 1);
  return m.log().masked_fill(seen.logical_not() | (ramp <= 0), -kInfinity);
}

}  // namespace

torch::Tensor banded_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                               const torch::Tensor& key_mask, const Band& band) {
  const auto batch = q.size(0), heads = q.size(1), queries = q.size(2), keys = k.size(2);
  if (queries == 0) return q;
  const bool whole = band.stride == 1 && band.window >= keys && queries == keys;
  if (whole && !key_mask.defined() && !band.span.defined()) {
    return torch::scaled_dot_product_attention(q, k, v, std::nullopt, band.dropout, /*is_causal=*/true);
  }
  const Cut cut(band, queries, keys);
  const auto real = key_mask.defined() ? key_mask.view({batch, 1, keys, 1}).expand({batch, heads, keys, 1})
                                       : torch::ones({1, 1, keys, 1}, q.options().dtype(torch::kBool));
  const auto distance = cut.distances(q.device());
  // A query that sees no key would get NaN weights, so padding, in the last chunk too, sees itself.
  const auto exists = cut.overlapping(real).squeeze(-1).unsqueeze(-2) | (distance == 0);
  auto mask = exists & (distance >= 0) & (distance < cut.window);
  if (band.span.defined()) mask = log_weights(mask, distance, band.span).to(q.scalar_type());
  const auto y =
      torch::scaled_dot_product_attention(cut.chunked(q), cut.overlapping(k), cut.overlapping(v), mask, band.dropout);
  const auto rows = y.unflatten(1, {cut.stride, cut.chunks}).flatten(2, 3);
  return rows.transpose(1, 2).flatten(1, 2).narrow(1, 0, queries).unflatten(0, {batch, heads});
}

}  // namespace contextpool::nn
