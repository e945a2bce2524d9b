#include "tasks/looking.h"

namespace contextpool::tasks {

void check_pool(const std::filesystem::path& file, const OptionList& model_options,
                const nn::ContextPoolOptions& pool) {
  const auto says = [&](const char* option) {
    return model_options.has(option) &&
           model_options.get<std::string>(option).find("context_pool") != std::string::npos;
  };
  TORCH_CHECK_VALUE(says("mixer") || says("mix"), file.string(),
                    ": the model has no ContextPool, so there are no windows to look at; name one that has, "
                    "such as a cp-... model");
  TORCH_CHECK_VALUE(
      nn::has_gaussian_windows(pool), file.string(), ": its ContextPool has locality \"", pool.locality,
      "\" and weights \"", pool.weights,
      "\"; only Gaussian windows with a weight for each token (gaussian; softmax or uniform) can be shown");
}

void check_layers(const std::filesystem::path& file, const eval::Looking& looking) {
  TORCH_CHECK_VALUE(!looking.layers.empty(), file.string(), ": none of the layers that can be shown has a ContextPool");
}

std::string described(const models::ModelDescription& description) {
  auto text = description.family.name();
  for (auto& c : text) c = c == '_' ? ' ' : c;
  for (const auto* option : {"layers", "depths", "features", "pool_groups"}) {
    if (!description.options.has(option)) continue;
    const std::string name = option;
    text += ", " + (name == "pool_groups" ? "groups" : name) + " " + to_word(description.options.at(option));
  }
  return text;
}

}  // namespace contextpool::tasks
