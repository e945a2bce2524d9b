#include "nn/predictor.h"

#include <algorithm>
#include <cmath>

#include "contextpool/nn/linear.h"
#include "contextpool/ops/predict_windows.h"
#include "nn/context_pool_options.h"

namespace contextpool::nn {
namespace {

// y_i = bias + sum_k product_{i - left + k}[block k of the channels], where such a row exists. Of autograd's own slices
// and sums each would fill and add tensors of the product's size; this writes its gradient once.
class ShiftedSum : public torch::autograd::Function<ShiftedSum> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& product,
                               const torch::Tensor& bias, int64_t taps, int64_t left) {
    ctx->saved_data["taps"] = taps;
    ctx->saved_data["left"] = left;
    ctx->saved_data["product"] = static_cast<int64_t>(product.scalar_type());
    ctx->saved_data["bias"] = static_cast<int64_t>(bias.scalar_type());
    const auto outputs = bias.size(0), tokens = product.size(1);
    auto sum = torch::empty({product.size(0), tokens, outputs},
                            product.options().dtype(torch::promote_types(product.scalar_type(), bias.scalar_type())));
    sum.copy_(bias.expand(sum.sizes()));
    for (int64_t k = 0; k < taps; ++k) {
      const auto [to, from, count] = overlap(tokens, k - left);
      if (count > 0) sum.narrow(1, to, count).add_(block(product, k, outputs).narrow(1, from, count));
    }
    return sum;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& dy = gradients[0];
    const auto taps = ctx->saved_data["taps"].toInt(), left = ctx->saved_data["left"].toInt();
    const auto type = [&](const char* name) { return static_cast<torch::ScalarType>(ctx->saved_data[name].toInt()); };
    const auto tokens = dy.size(1);
    const auto narrow = dy.to(type("product"));
    std::vector<torch::Tensor> blocks;
    for (int64_t k = 0; k < taps; ++k) {
      const auto [to, from, count] = overlap(tokens, k - left);
      blocks.push_back(count <= 0 ? torch::zeros_like(narrow)
                       : count == tokens
                           ? narrow
                           : torch::constant_pad_nd(narrow.narrow(1, to, count), {0, 0, from, tokens - from - count}));
    }
    return {torch::cat(blocks, 2), dy.sum(torch::IntArrayRef{0, 1}).to(type("bias")), {}, {}};
  }

 private:
  struct Overlap {
    int64_t to, from, count;  // rows to .. of y are made of rows from .. of the product
  };
  static Overlap overlap(int64_t tokens, int64_t shift) {
    return {std::max<int64_t>(0, -shift), std::max<int64_t>(0, shift), tokens - std::abs(shift)};
  }
  static torch::Tensor block(const torch::Tensor& product, int64_t k, int64_t outputs) {
    return product.narrow(2, k * outputs, outputs);
  }
};

// A convolution along a row as one matrix product and a sum of shifted rows: row i of the product is made of token i
// alone, so to the bit nothing reaches a token from where no tap looks, and x is used as it lies. weight [O, I, K]; tap
// k of output i falls on token i - left + k.
torch::Tensor row_product(const torch::Tensor& x, const torch::Tensor& weight) {
  return torch::matmul(x, weight.permute({1, 2, 0}).flatten(1));
}
torch::Tensor row_convolution(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                              int64_t left) {
  const auto taps = weight.size(2);
  const auto product = row_product(x, weight);
  return taps == 1 ? product + bias : ShiftedSum::apply(product, bias, taps, left);
}

// [O, I, K], of a layer per token as of a convolution.
torch::Tensor with_taps(const torch::Tensor& weight) { return weight.dim() == 3 ? weight : weight.unsqueeze(-1); }

// From a channel to a size, in rows of that length (pooling.cpp's predicted_sizes).
SizeMap size_map(const ContextPoolOptions& options, int64_t tokens) {
  const auto limit =
      options.ratio * static_cast<double>(options.reference_length > 0 ? options.reference_length : tokens);
  if (!bounded_sizes(options)) return {.size_range = 0, .shift = 0, .least = 0, .span = limit};
  const auto start = options.initial_sigma, least = smallest_size(options);
  const auto largest = std::max(limit, smallest_limit(options));
  return {.size_range = options.size_range,
          .shift = std::log((start - least) / (largest - start)),
          .least = least,
          .span = largest - least};
}

template <typename Layer>
std::shared_ptr<torch::nn::Module> module_of(const Layer& layer) {
  return layer.ptr();
}

std::shared_ptr<torch::nn::Module> make_layer(const ContextPoolOptions& options, int64_t dims, int64_t in,
                                              int64_t out) {
  if (options.predictor == "mlp") return module_of(Linear(in, out));
  if (dims == 1) return module_of(torch::nn::Conv1d(torch::nn::Conv1dOptions(in, out, options.kernel)));
  return module_of(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, options.kernel)));
}

void draw(torch::nn::Module& layer) {
  if (auto* linear = layer.as<torch::nn::Linear>()) linear->reset_parameters();
  if (auto* row = layer.as<torch::nn::Conv1d>()) row->reset_parameters();
  if (auto* map = layer.as<torch::nn::Conv2d>()) map->reset_parameters();
}

}  // namespace

PredictorImpl::PredictorImpl(ContextPoolOptions options, int64_t dims) : options_(std::move(options)), dims_(dims) {
  reset();
}

void PredictorImpl::reset() {
  const std::string name = options_.predictor == "mlp" ? "fc" : "conv";
  first_ = register_module(name + "1", make_layer(options_, dims_, options_.features, options_.hidden));
  second_ = register_module(name + "2", make_layer(options_, dims_, options_.hidden, predicted_channels(options_)));
  reset_sizes();
}

void PredictorImpl::reset_parameters() {
  draw(*first_);
  draw(*second_);
  reset_sizes();
}

void PredictorImpl::reset_sizes() {
  if (!predicts_sizes(options_)) return;
  const torch::NoGradGuard no_grad;
  auto parameters = second_->named_parameters(/*recurse=*/false);
  auto &weight = parameters["weight"], &bias = parameters["bias"];
  const auto length = options_.reference_length > 0 ? options_.reference_length : options_.usual_length;
  const auto largest = options_.ratio * static_cast<double>(length);
  const auto share = std::min(options_.initial_sigma / largest, kLargestStart);
  if (options_.size_norm == "channels") {
    weight.zero_();
    bias.zero_();
  }
  const auto first_size = weight.size(0) - options_.groups;
  weight.slice(0, first_size).zero_();
  bias.slice(0, first_size)
      .fill_(options_.size_norm == "softmax" || bounded_sizes(options_) ? 0.0 : std::log(share / (1 - share)));
}

int64_t PredictorImpl::reach() const { return options_.predictor == "mlp" ? 0 : 2 * (options_.kernel - 1); }

torch::Tensor PredictorImpl::layer(const torch::Tensor& x, const torch::Tensor& weight,
                                   const torch::Tensor& bias) const {
  const auto taps = options_.predictor == "mlp" ? 1 : options_.kernel;
  if (dims_ == 1) {
    return row_convolution(x, with_taps(weight), bias, options_.causal ? taps - 1 : taps / 2);
  }
  return torch::conv2d(x, weight.dim() == 4 ? weight : weight.unsqueeze(-1).unsqueeze(-1), bias, /*stride=*/1,
                       /*padding=*/taps / 2);
}

torch::Tensor PredictorImpl::forward(const torch::Tensor& x, const torch::Tensor& padded) {
  auto p1 = first_->named_parameters(/*recurse=*/false), p2 = second_->named_parameters(/*recurse=*/false);
  auto h = torch::gelu(layer(x, p1["weight"], p1["bias"]));
  if (padded.defined()) h = h.masked_fill(dims_ == 1 ? padded.unsqueeze(2) : padded.unsqueeze(1), 0);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return bounded(layer(h.to(type), p2["weight"].to(type), p2["bias"].to(type)), p2["bias"].to(type));
}

bool PredictorImpl::has_windows(const torch::Tensor& x, const torch::Tensor& padded) const {
  return x.is_cuda() && dims_ == 1 && !padded.defined() && options_.locality == "gaussian" &&
         options_.size_norm == "sigmoid";
}

std::pair<torch::Tensor, torch::Tensor> PredictorImpl::windows(const torch::Tensor& x) {
  auto p1 = first_->named_parameters(/*recurse=*/false), p2 = second_->named_parameters(/*recurse=*/false);
  const auto product = row_product(x, with_taps(p1["weight"]));
  const auto taps = with_taps(p1["weight"]).size(2);
  auto [weights, sizes] =
      predict_windows(product, p1["bias"], with_taps(p2["weight"]), p2["bias"], options_.causal ? taps - 1 : taps / 2,
                      options_.groups, size_map(options_, x.size(1)));
  return {std::move(weights), std::move(sizes)};
}

torch::Tensor PredictorImpl::bounded(const torch::Tensor& channels, const torch::Tensor& bias) const {
  if (!bounded_sizes(options_) || !predicts_sizes(options_)) return channels;
  const int64_t dim = dims_ == 1 ? 2 : 1, first_size = channels.size(dim) - options_.groups;
  const auto learnt = dims_ == 1 ? bias.slice(0, first_size) : bias.slice(0, first_size).view({-1, 1, 1});
  const auto sizes =
      learnt + options_.size_range * torch::tanh((channels.slice(dim, first_size) - learnt) / options_.size_range);
  return torch::cat({channels.slice(dim, 0, first_size), sizes}, dim);
}

}  // namespace contextpool::nn
