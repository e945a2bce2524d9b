// Uses the layers above the operators as a user would: trains a ContextPool for a step, saves a language model, loads
// it and lets it write, then makes the module refuse bad options.
#include <contextpool/io/checkpoint.h>
#include <contextpool/models/generate.h>
#include <contextpool/models/language_models.h>
#include <contextpool/nn/context_pool.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

namespace io = contextpool::io;
namespace models = contextpool::models;

bool trains() {
  // Rows of 10 tokens: at the default usual_length the windows would start too narrow to see a neighbour.
  const contextpool::nn::ContextPoolOptions options{.features = 8, .usual_length = 10};
  torch::nn::Sequential model(torch::nn::Linear(8, 8), contextpool::nn::ContextPool1d(options),
                              torch::nn::Linear(8, 2));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto before = model->parameters()[2].clone();
  model->forward(torch::randn({2, 10, 8})).square().mean().backward();
  optimizer.step();
  return !torch::equal(before, model->parameters()[2]);
}

bool writes_the_same_after_loading() {
  const auto options = models::find_language_model("cp-tiny").options;
  models::LanguageModel model(options), loaded(models::from_json(models::to_json(options)));
  io::CheckpointWriter("run", {}).save({.step = 1, .model = io::named_tensors(*model), .state = "{}"});
  io::load_into(io::named_tensors(*loaded), io::newest_whole("run").checkpoint->model, "run");
  model->eval();
  loaded->eval();
  return models::generate(model, {1, 2}, {.tokens = 8}) == models::generate(loaded, {1, 2}, {.tokens = 8});
}

int main() {
  if (!trains() || !writes_the_same_after_loading()) return 1;
  try {
    contextpool::nn::ContextPool1d(contextpool::nn::ContextPoolOptions{.features = 8, .causal = true});
  } catch (const std::exception& error) {
    std::printf("trained, saved and loaded; refused: %s\n", error.what());
    return 0;
  }
  return 2;
}
