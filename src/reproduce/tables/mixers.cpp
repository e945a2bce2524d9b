// ContextPool among the local mixers that came after it, in the places of docs/mixers.md. Forms with a residual have
// groups, since groups are worth most (docs/results.md). With the recipe of spec-lm ContextPool has the paper's sizes
// (--pool-size-range 0), which are the better ones there; in small models the bounded sizes of the default, and windows
// that start at 2 tokens where there are groups.
#include <algorithm>
#include <cmath>

#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

struct Model {
  std::string name;
  int groups;           // of the forms that have some
  std::string one;      // ContextPool's flags with one window for all channels
  std::string several;  // and with a window for each group
};
const Model kTiny = {"tiny", 16, "--pool-initial-sigma 4", "--pool-initial-sigma 2"};
const Model kLarge = {"transformer-6", 8, "--pool-size-range 0", "--pool-size-range 0"};

std::vector<Row> rows(const Model& model) {
  const auto with = [&](const std::string& flags) { return "--model " + model.name + " " + flags; };
  const auto pool = [&](const std::string& mix, int groups, const std::string& flags = "") {
    return with("--mix " + mix + " --pool-groups " + std::to_string(groups) + " " +
                (groups > 1 ? model.several : model.one) + (flags.empty() ? "" : " " + flags));
  };
  const auto many = model.groups;
  const auto in_groups = ", " + std::to_string(many) + " groups";
  return {
      {"plain", "plain", "--model " + model.name},
      {"depthwise-o", "15 taps at O", with("--mix O=depthwise")},
      {"canon-ac", "canon at A and C", with("--mix AC=canon")},
      {"cp-1", "ContextPool at O, 1 group", pool("O=context_pool", 1)},
      {"cp-8", "ContextPool at O, 8 groups", pool("O=context_pool", 8)},
      {"cp-16", "ContextPool at O, 16 groups", pool("O=context_pool", 16)},
      {"dynamic-ac", "dynamic at A and C", with("--mix AC=dynamic")},
      {"dynamic-o", "dynamic at O", with("--mix O=dynamic")},
      {"dynamic-b", "dynamic at B", with("--mix B=dynamic")},
      {"canon-a", "canon at A", with("--mix A=canon")},
      {"canon-abcd", "canon at A, B, C and D", with("--mix ABCD=canon")},
      {"scale-a", "x + s CP(x) at A" + in_groups, pool("A=context_pool", many, "--mixer-residual scale")},
      {"scale-ac", "x + s CP(x) at A and C" + in_groups, pool("AC=context_pool", many, "--mixer-residual scale")},
      {"gated-o", "x + s(x) CP(x) at O" + in_groups, pool("O=context_pool", many, "--mixer-residual gated")},
      {"gated-ac", "x + s(x) CP(x) at A and C" + in_groups, pool("AC=context_pool", many, "--mixer-residual gated")},
      {"taps-a", "x + 4 taps + s CP(x) at A" + in_groups,
       pool("A=context_pool", many, "--mixer-residual scale --pool-taps 4")},
      {"taps-ac", "x + 4 taps + s CP(x) at A and C" + in_groups,
       pool("AC=context_pool", many, "--mixer-residual scale --pool-taps 4")},
      {"gated-taps-ac", "x + 4 taps + s(x) CP(x) at A and C" + in_groups,
       pool("AC=context_pool", many, "--mixer-residual gated --pool-taps 4")},
      {"canon-cp", "canon at A and C, ContextPool at O" + in_groups, pool("AC=canon,O=context_pool", many)},
      {"dynamic-cp", "dynamic at A and C, ContextPool at O" + in_groups, pool("AC=dynamic,O=context_pool", many)},
  };
}

// With the recipe of spec-lm: the best four for four times the steps; and what is faster than gated ContextPool with
// taps for as many steps as take its time, by the steps of 12 layers in docs/performance.md.
std::vector<Row> longer(const std::vector<Row>& rows) {
  constexpr int kSteps = 1500;
  constexpr double kTime = 51.6;
  const std::vector<std::pair<std::string, double>> faster = {
      {"plain", 31.3}, {"canon-ac", 32.8}, {"dynamic-ac", 47.8}};
  std::vector<Row> all;
  const auto add = [&](const std::string& name, const std::string& suffix, const std::string& label, double times,
                       const std::string& against) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    const auto steps = std::to_string(std::lround(times * kSteps));
    all.push_back({name + suffix, row->label + ", " + label,
                   row->flags + " --steps " + steps + " --checkpoint-every " + steps, against});
  };
  for (const auto* name : {"canon-ac", "dynamic-ac", "gated-ac", "gated-taps-ac"}) {
    add(name, "-4x", "4 x the steps", 4, "canon-ac-4x");
  }
  for (const auto& [name, ms] : faster) {
    add(name, "-time", "as many steps as take the time of gated-taps-ac with 12 layers", kTime / ms, "gated-taps-ac");
  }
  return all;
}

std::vector<Claim> claims(const std::string& grouped) {
  return {{"ContextPool is better than the plain model", "cp-1", "plain"},
          {"ContextPool is better than taps of fixed width in its place", "cp-1", "depthwise-o"},
          {"groups are better than one window", grouped, "cp-1"},
          {"ContextPool with groups is better than canon at A and C", grouped, "canon-ac"},
          {"dynamic taps are better than canon at A and C", "dynamic-ac", "canon-ac"},
          {"ContextPool with a gate and groups is better than canon, in canon's places", "gated-ac", "canon-ac"},
          {"ContextPool with a gate and groups is better than dynamic taps, in their places", "gated-ac", "dynamic-ac"},
          {"with taps, too, it is better than canon", "gated-taps-ac", "canon-ac"},
          {"with taps, too, it is better than dynamic taps", "gated-taps-ac", "dynamic-ac"},
          {"ContextPool adds to canon", "canon-cp", "canon-ac"},
          {"ContextPool adds to dynamic taps", "dynamic-cp", "dynamic-ac"}};
}

}  // namespace

Table mixers() {
  auto recipe = text_small();
  recipe.described += " where a row does not say otherwise";
  auto large = rows(kLarge);
  const auto more = longer(large);
  large.insert(large.end(), more.begin(), more.end());
  return {"mixers",
          "Local mixers in language models",
          {{"smoke", text_smoke(), rows(kTiny), claims("cp-16")},
           {"demo", text_demo(), rows(kTiny), claims("cp-16")},
           {"small", recipe, large, claims("cp-8")}}};
}

}  // namespace contextpool::reproduce
