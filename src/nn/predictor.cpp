#include "nn/predictor.h"

#include <algorithm>
#include <cmath>

#include "nn/context_pool_options.h"

namespace contextpool::nn {
namespace {

// A convolution along a row as one matrix product and a sum of shifted rows: row i of the product is made of token i
// alone, so to the bit nothing reaches a token from where no tap looks, and x is used as it lies. weight [O, I, K]; tap
// k of output i falls on token i - left + k.
torch::Tensor row_convolution(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                              int64_t left) {
  const auto outputs = weight.size(0), taps = weight.size(2), tokens = x.size(1);
  const auto product = torch::matmul(x, weight.permute({1, 2, 0}).flatten(1));
  if (taps == 1) return product + bias;
  const auto rows = torch::constant_pad_nd(product, {0, 0, left, taps - 1 - left});
  auto sum = bias;
  for (int64_t k = 0; k < taps; ++k) {
    sum = sum + rows.slice(1, k, k + tokens).slice(2, k * outputs, (k + 1) * outputs);
  }
  return sum;
}

template <typename Layer>
std::shared_ptr<torch::nn::Module> module_of(const Layer& layer) {
  return layer.ptr();
}

std::shared_ptr<torch::nn::Module> make_layer(const ContextPoolOptions& options, int64_t dims, int64_t in,
                                              int64_t out) {
  if (options.predictor == "mlp") return module_of(torch::nn::Linear(in, out));
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
    return row_convolution(x, weight.dim() == 3 ? weight : weight.unsqueeze(-1), bias,
                           options_.causal ? taps - 1 : taps / 2);
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

torch::Tensor PredictorImpl::bounded(const torch::Tensor& channels, const torch::Tensor& bias) const {
  if (!bounded_sizes(options_) || !predicts_sizes(options_)) return channels;
  const int64_t dim = dims_ == 1 ? 2 : 1, first_size = channels.size(dim) - options_.groups;
  const auto learnt = dims_ == 1 ? bias.slice(0, first_size) : bias.slice(0, first_size).view({-1, 1, 1});
  const auto sizes =
      learnt + options_.size_range * torch::tanh((channels.slice(dim, first_size) - learnt) / options_.size_range);
  return torch::cat({channels.slice(dim, 0, first_size), sizes}, dim);
}

}  // namespace contextpool::nn
