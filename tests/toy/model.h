// logits = out(tanh(in(x))), x [batch, 2].
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <type_traits>

namespace contextpool::toy {

struct PerceptronOptions {
  int64_t hidden = 16;
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, PerceptronOptions>
void for_each_option(Options& options, F f) { f("hidden", options.hidden, "hidden units"); }

class PerceptronImpl : public torch::nn::Module {
 public:
  explicit PerceptronImpl(PerceptronOptions options)
      : in_(register_module("in", torch::nn::Linear(2, options.hidden))),
        out_(register_module("out", torch::nn::Linear(options.hidden, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return out_(torch::tanh(in_(x))); }

 private:
  torch::nn::Linear in_, out_;
};
TORCH_MODULE(Perceptron);

}  // namespace contextpool::toy
