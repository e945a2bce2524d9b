#include "contextpool/nn/cross_attention.h"

#include "base/words.h"
#include "contextpool/nn/area_attention.h"
#include "nn/sight.h"

namespace contextpool::nn {
namespace {

torch::Tensor numbers_of(const torch::Tensor& rows) {
  return rows.scalar_type() == torch::kBool ? rows.nonzero().squeeze(1) : rows;
}

}  // namespace

std::optional<int64_t> CrossMemory::rows() const {
  if (!keys_.defined()) return std::nullopt;
  return keys_.size(0) * shared_;
}

void CrossMemory::repeat(int64_t times) {
  TORCH_CHECK_VALUE(times >= 1, "CrossMemory: repeat needs 1 or more times, but was asked for ", times);
  shared_ *= times;
}

void CrossMemory::select(const torch::Tensor& rows) {
  const auto own = torch::div(numbers_of(rows), shared_, "floor");
  shared_ = 1;
  select_shared(own);
}

void CrossMemory::select_shared(const torch::Tensor& rows) {
  const auto chosen = numbers_of(rows);
  for (auto* part : {&keys_, &values_, &real_}) {
    if (part->defined()) *part = part->index_select(0, chosen);
  }
}

CrossAttentionImpl::CrossAttentionImpl(CrossAttentionOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_word("CrossAttention", "kind", o.kind, {"full", "local", "area"});
  TORCH_CHECK_VALUE(o.heads > 0 && o.features > 0 && o.features % o.heads == 0,
                    "CrossAttention: features must be a multiple of heads, but are ", o.features, " and ", o.heads);
  TORCH_CHECK_VALUE(o.dropout >= 0 && o.dropout < 1, "CrossAttention: dropout must be in [0, 1), but is ", o.dropout);
  TORCH_CHECK_VALUE(o.area_width > 0, "CrossAttention: area_width must be positive, but is ", o.area_width);
  q_ = register_module("q", Linear(o.features, o.features));
  kv_ = register_module("kv", Linear(o.features, 2 * o.features));
  out_ = register_module("out", Linear(o.features, o.features));
  if (o.kind == "local") local_ = register_module("local", LocalWindows(o.heads, o.features / o.heads));
}

CrossMemory CrossAttentionImpl::remember(const torch::Tensor& memory, const Padding& padding) {
  TORCH_CHECK_VALUE(memory.dim() == 3 && memory.size(1) > 0 && memory.size(2) == options_.features,
                    "CrossAttention: memory must be [batch, tokens, ", options_.features,
                    "] with at least one token, but is ", memory.sizes());
  CrossMemory remembered;
  remembered.real_ = padding.mask({memory.size(0), memory.size(1)}, memory.device());
  const auto& real = remembered.real_;
  // A weight of 0 times a NaN would be a NaN.
  const auto clean = real.defined() ? memory.masked_fill(real.logical_not().unsqueeze(-1), 0) : memory;
  const auto kv = kv_(clean).unflatten(-1, {2, options_.heads, -1});
  const auto keys = kv.select(2, 0), values = kv.select(2, 1);
  const bool areas = options_.kind == "area";
  remembered.keys_ = areas ? area_means(keys, options_.area_width, memory.size(1)) : keys;
  remembered.values_ = areas ? area_sums(values, options_.area_width, memory.size(1)) : values;
  return remembered;
}

torch::Tensor CrossAttentionImpl::forward(const torch::Tensor& x, const CrossMemory& memory) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == options_.features, "CrossAttention: x must be [batch, tokens, ",
                    options_.features, "], but is ", x.sizes());
  TORCH_CHECK_VALUE(memory.rows() == x.size(0), "CrossAttention: the memory is for ", memory.rows().value_or(0),
                    " rows, but x has ", x.size(0), "; select or repeat the memory's rows");
  // Rows that share a row of the memory are to it what more queries of one row are.
  const auto own = memory.keys_.size(0), heads = options_.heads;
  const auto q = q_(x).view({own, memory.shared_ * x.size(1), heads, options_.features / heads}).transpose(1, 2);
  const Sight sight{.real = memory.real_, .dropout = is_training() ? options_.dropout : 0};
  torch::Tensor y;
  if (options_.kind == "area") {
    y = area_attention(q, memory.keys_, memory.values_, sight);
  } else {
    const auto k = memory.keys_.transpose(1, 2), v = memory.values_.transpose(1, 2);
    y = local_ ? local_->attend(q, k, v, sight) : full_attention(q, k, v, sight);
  }
  return out_(y.transpose(1, 2).flatten(2).view({x.size(0), x.size(1), options_.features}));
}

}  // namespace contextpool::nn
