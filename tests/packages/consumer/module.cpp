// Puts a ContextPool into a model, trains it for a step, then makes it refuse bad options.
#include <contextpool/nn/context_pool.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

int main() {
  // Rows of 10 tokens: at the default usual_length the windows would start too narrow to see a neighbour.
  const contextpool::nn::ContextPoolOptions options{.features = 8, .usual_length = 10};
  torch::nn::Sequential model(torch::nn::Linear(8, 8), contextpool::nn::ContextPool1d(options),
                              torch::nn::Linear(8, 2));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto before = model->parameters()[2].clone();
  model->forward(torch::randn({2, 10, 8})).square().mean().backward();
  optimizer.step();
  if (torch::equal(before, model->parameters()[2])) return 1;
  try {
    contextpool::nn::ContextPool1d(contextpool::nn::ContextPoolOptions{.features = 8, .causal = true});
  } catch (const std::exception& error) {
    std::printf("trained; refused: %s\n", error.what());
    return 0;
  }
  return 2;
}
