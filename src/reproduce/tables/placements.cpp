// Where ContextPool stands in a block, how wide its windows start (sigma0, in tokens) and how wide they may become (r,
// a share of the row): chosen on the development text, so that score comes first. The paper's sizes.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::vector<Row> rows(const std::string& plain, const std::string& pooled) {
  std::vector<Row> all = {{"plain", "plain", "--model " + plain}};
  const auto add = [&](const std::string& name, const std::string& label, const std::string& flags) {
    all.push_back({name, label, "--model " + pooled + " --pool-size-range 0 " + flags});
  };
  for (const auto* sigma : {"2", "4", "8"}) {
    const auto starts = std::string(" --pool-initial-sigma ") + sigma;
    const auto label = std::string(", sigma0 ") + sigma;
    add(std::string("after-attention-") + sigma, "after attention" + label, "--placement after_attention" + starts);
    add(std::string("before-attention-") + sigma, "before attention" + label, "--placement before_attention" + starts);
    add(std::string("after-block-") + sigma, "after the block" + label, "--placement after_block" + starts);
  }
  for (const auto* ratio : {"0.025", "0.05", "0.2"}) {
    add(std::string("r-") + ratio, std::string("after attention, sigma0 4, r ") + ratio,
        std::string("--placement after_attention --pool-initial-sigma 4 --pool-ratio ") + ratio);
  }
  return all;
}

Recipe with_dev(Recipe recipe, const std::string& tokens) {
  recipe.scores.insert(
      recipe.scores.begin(),
      {.name = "dev bpc", .command = "eval --run {run} --split dev --tokens " + tokens + " --json", .pointer = "/bpc"});
  return recipe;
}

}  // namespace

Table placements() {
  return {"placements",
          "Placement and size of ContextPool in language models (r 0.1 where none is named)",
          {{"smoke", with_dev(text_smoke(), "500"), rows("tiny", "cp-tiny"), {}},
           {"small", with_dev(text_small(), "2000000"), rows("transformer-6", "cp-transformer-6"), {}}}};
}

}  // namespace contextpool::reproduce
