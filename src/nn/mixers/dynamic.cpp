// Dynamic short convolutions (Sieberling et al. 2026): taps that depend on the context h, with a residual,
//
//   y_i = x_i + sum_k (w_k + v_k(h_i)) x_(i - left + k)
//
// w_k [features] is the same for all tokens; v_k is of low rank, v(h) = up(down(h)), for each channel, or, with heads,
// one linear function of h for each slice of the channels. v starts at 0 and w uniform within +-1 / sqrt(taps),
// whatever the model does with its other parameters. On maps, k runs over a square of taps x taps, row by row.
//
// Parameters: weight [features, 1, taps] or [features, 1, taps, taps]; coefficients.down.weight [rank, context
// features] and coefficients.up.weight [K features, rank] (tap k, channel c in row k features + c), K taps in all; or,
// with heads, coefficients.weight [K heads, context features].
#include <cmath>
#include <vector>

#include "contextpool/nn/linear.h"
#include "contextpool/ops/dynamic_convolution.h"
#include "nn/mixers/mixers.h"
#include "nn/mixers/residual.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

class DynamicImpl : public MixerImpl {
 public:
  explicit DynamicImpl(const MixerOptions& options);

  Tensor forward(const Tensor& x, const Padding& padding, const Tensor& context) override;
  Tensor step(const Tensor& x, MixerCache& cache, const Padding& padding, const Tensor& context) override;
  void reset_parameters() override;
  void finish_initialisation() override { reset_parameters(); }

 private:
  int64_t all_taps() const { return options_.dims == 1 ? options_.taps : options_.taps * options_.taps; }
  // x_(i - left + k) for all i, features last, of x with what the taps need around it, features last.
  Tensor shifted(const Tensor& padded, const Tensor& like, int64_t k) const;
  // The sum over k; h and the result features last.
  Tensor mix(const Tensor& padded, const Tensor& h);
  // The result for the last tokens of x, those of h, by our operator: rows of low rank, where it has kernels.
  bool has_operator(const Tensor& x) const {
    return options_.dims == 1 && low_rank_ && (x.is_cpu() || x.is_cuda() || x.is_meta());
  }
  Tensor convolve(const Tensor& x, const Tensor& h, int64_t left);

  MixerOptions options_;
  Tensor weight_;
  LowRank low_rank_{nullptr};
  Linear by_head_{nullptr};
};

DynamicImpl::DynamicImpl(const MixerOptions& options) : options_(options) {
  const auto& o = options_;
  if (o.context_features == 0) options_.context_features = o.features;
  TORCH_CHECK_VALUE(o.features > 0, "dynamic: features must be positive, but are ", o.features);
  TORCH_CHECK_VALUE(o.residual == "plain", "dynamic: the residual is plain, but was to be \"", o.residual, "\"");
  TORCH_CHECK_VALUE(o.causal || o.taps % 2 == 1, "dynamic: taps must be odd, to have a middle, unless causal, but are ",
                    o.taps);
  TORCH_CHECK_VALUE(o.rank > 0, "dynamic: rank must be positive, but is ", o.rank);
  TORCH_CHECK_VALUE(o.heads >= 0 && (o.heads == 0 || o.features % o.heads == 0), "dynamic: heads must divide the ",
                    o.features, " features, or be 0, but are ", o.heads);
  const auto shape =
      o.dims == 1 ? std::vector<int64_t>{o.features, 1, o.taps} : std::vector<int64_t>{o.features, 1, o.taps, o.taps};
  weight_ = register_parameter("weight", torch::empty(shape));
  if (o.heads > 0) {
    const auto linear = torch::nn::LinearOptions(o.context_features, all_taps() * o.heads).bias(false);
    by_head_ = register_module("coefficients", Linear(linear));
  } else {
    low_rank_ = register_module("coefficients", LowRank(o.context_features, o.rank, all_taps() * o.features));
  }
  DynamicImpl::reset_parameters();
}

void DynamicImpl::reset_parameters() {
  const auto bound = 1 / std::sqrt(static_cast<double>(all_taps()));
  torch::nn::init::uniform_(weight_, -bound, bound);
  if (by_head_) torch::nn::init::zeros_(by_head_->weight);
  if (low_rank_) low_rank_->reset_parameters();
}

Tensor DynamicImpl::shifted(const Tensor& padded, const Tensor& like, int64_t k) const {
  if (options_.dims == 1) return padded.slice(1, k, k + like.size(1));
  const auto row = k / options_.taps, column = k % options_.taps;
  return padded.slice(1, row, row + like.size(1)).slice(2, column, column + like.size(2));
}

Tensor DynamicImpl::mix(const Tensor& padded, const Tensor& h) {
  const auto weights = weight_.flatten(1);  // [features, K]
  const auto inner = low_rank_ ? low_rank_->inner(h) : by_head_(h);
  const auto ups = low_rank_ ? low_rank_->outer(h).unflatten(0, {all_taps(), options_.features}) : Tensor();
  Tensor sum;
  for (int64_t k = 0; k < all_taps(); ++k) {
    const auto x = shifted(padded, h, k), weight = weights.select(1, k);
    Tensor term;
    if (low_rank_) {
      term = torch::linear(inner, ups[k], weight).to(x.scalar_type()) * x;
    } else {
      const auto v = inner.slice(-1, k * options_.heads, (k + 1) * options_.heads).unsqueeze(-1);
      const auto coefficient = (weight.unflatten(0, {options_.heads, -1}) + v).to(x.scalar_type());
      term = (coefficient * x.unflatten(-1, {options_.heads, -1})).flatten(-2);
    }
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

Tensor DynamicImpl::convolve(const Tensor& x, const Tensor& h, int64_t left) {
  const auto up = low_rank_->outer(h).unflatten(0, {options_.taps, options_.features});
  return dynamic_convolution(x, low_rank_->inner(h), up, weight_.squeeze(1), left, /*residual=*/true);
}

Tensor DynamicImpl::forward(const Tensor& x, const Padding& padding, const Tensor& context) {
  const auto& o = options_;
  const auto mask = mask_of("dynamic", x, padding, o.features, o.dims);
  const auto real = without_padding(x, mask, o.dims);
  const auto h = context_of("dynamic", context, real, mask, o.context_features, o.dims);
  const auto right = o.causal ? 0 : o.taps / 2, left = o.taps - 1 - right;
  if (has_operator(real)) return convolve(real, h, left);
  if (o.dims == 1) return real + mix(torch::constant_pad_nd(real, {0, 0, left, right}), h);
  return real + mix(torch::constant_pad_nd(real, {left, right, left, right}).movedim(1, -1), h).movedim(-1, 1);
}

Tensor DynamicImpl::step(const Tensor& x, MixerCache& cache, const Padding& padding, const Tensor& context) {
  TORCH_CHECK_VALUE(options_.causal, "dynamic: only the causal convolution has steps");
  cache.check_rows("dynamic", x);
  const auto mask = mask_of("dynamic", x, padding, options_.features, options_.dims);
  const auto real = without_padding(x, mask, options_.dims);
  const auto h = context_of("dynamic", context, real, mask, options_.context_features, options_.dims);
  cache.append("features", real);
  cache.advance(x.size(1));
  const auto near = last_tokens(cache, x.size(1), options_.taps - 1);
  return has_operator(real) ? convolve(near, h, options_.taps - 1) : real + mix(near, h);
}

}  // namespace

Mixer make_dynamic(const MixerOptions& options) {
  return std::shared_ptr<MixerImpl>(std::make_shared<DynamicImpl>(options));
}

}  // namespace contextpool::nn
