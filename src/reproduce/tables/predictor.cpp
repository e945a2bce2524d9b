// How ContextPool's sizes are predicted (docs/module.md, "Sizes"): in the paper's form, bounded as by default, and
// bounded with a smaller floor or none; with one window and with several, beside the control of fixed width.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

struct Model {
  std::string name;
  int groups;
  std::string several;  // flags where there are groups
};
const Model kTiny = {"tiny", 16, " --pool-initial-sigma 2"};
const Model kSmall = {"small", 16, " --pool-initial-sigma 2"};
const Model kLarge = {"transformer-6", 8, ""};

std::vector<Row> rows(const Model& model) {
  std::vector<Row> all = {{"control", "control: 15 taps", "--model dw-" + model.name},
                          {"plain", "plain", "--model " + model.name}};
  const auto add = [&](const std::string& name, const std::string& label, const std::string& flags) {
    for (const int groups : {1, model.groups}) {
      const auto count = std::to_string(groups);
      all.push_back({name + "-" + count, label + ", " + count + (groups == 1 ? " group" : " groups"),
                     "--model cp-" + model.name + " --pool-groups " + count +
                         (groups == 1 ? " --pool-initial-sigma 4" : model.several) + " " + flags});
    }
  };
  add("paper", "the paper's sizes", "--pool-size-range 0");
  add("bounded", "bounded", "--pool-size-range 2");
  add("floor-16th", "bounded, floor of a 16th", "--pool-size-range 2 --pool-size-floor 0.0625");
  add("floor-0", "bounded, no floor", "--pool-size-range 2 --pool-size-floor 0");
  return all;
}

std::vector<Claim> claims(int groups) {
  const auto many = "-" + std::to_string(groups);
  return {{"bounded sizes are better than the paper's, 1 group", "bounded-1", "paper-1"},
          {"bounded sizes are better than the paper's, groups", "bounded" + many, "paper" + many},
          {"bounded sizes with one group are better than the control", "bounded-1", "control"},
          {"bounded sizes with groups are better than the control", "bounded" + many, "control"}};
}

Plan plan(const std::string& scale, const Recipe& recipe, const Model& model) {
  return {scale, recipe, rows(model), claims(model.groups)};
}

}  // namespace

Table predictor() {
  return {"predictor",
          "How sizes are predicted",
          {plan("smoke", text_smoke(), kTiny), plan("demo", text_demo(), kTiny), plan("quick", text_quick(), kSmall),
           plan("small", text_small(), kLarge)}};
}

}  // namespace contextpool::reproduce
