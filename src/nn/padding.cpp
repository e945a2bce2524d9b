#include "contextpool/nn/padding.h"

namespace contextpool::nn {

Padding Padding::key_padding_mask(const torch::Tensor& mask) {
  if (!mask.defined()) return {};
  TORCH_CHECK_VALUE(mask.dim() > 1 && c10::isIntegralType(mask.scalar_type(), /*includeBool=*/true),
                    "Padding: key_padding_mask must be [batch, tokens] of bool or of integers (0 or 1), but is ",
                    mask.scalar_type(), " ", mask.sizes());
  return {mask == 0};
}

torch::Tensor Padding::mask(torch::IntArrayRef sizes, const torch::Device& device) const {
  if (!given_.defined()) return {};
  TORCH_CHECK_VALUE(c10::isIntegralType(given_.scalar_type(), /*includeBool=*/true),
                    "ContextPool: padding must be integer lengths [batch] or a mask of bool or of integers (0 or 1), "
                    "but is ",
                    given_.scalar_type());
  if (given_.scalar_type() == torch::kBool || given_.dim() > 1) {
    TORCH_CHECK_VALUE(given_.sizes() == sizes, "ContextPool: the mask of real tokens must be ", sizes, ", but is ",
                      given_.sizes());
    return given_.scalar_type() == torch::kBool ? given_ : given_ != 0;
  }
  TORCH_CHECK_VALUE(sizes.size() == 2 && given_.dim() == 1 && given_.size(0) == sizes[0],
                    "ContextPool: lengths must be [batch] beside x [batch, tokens, features], but are ", given_.sizes(),
                    " for a batch of ", sizes);
  if (given_.device().is_cpu() && given_.numel() > 0) {
    const auto least = given_.min().item<int64_t>(), most = given_.max().item<int64_t>();
    TORCH_CHECK_VALUE(least >= 0 && most <= sizes[1], "ContextPool: lengths must be from 0 to the ", sizes[1],
                      " tokens of a row, but are from ", least, " to ", most);
  }
  return torch::arange(sizes[1], torch::TensorOptions().dtype(torch::kLong).device(device)).unsqueeze(0) <
         given_.to(device).unsqueeze(1);
}

}  // namespace contextpool::nn
