// What bits per character hide: the share of right answers about rows that were generated (docs/training.md), by the
// mixer and the number of layers. Each row is compared with the plain model of as many layers.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

struct Form {
  std::string name, label, flags;
};
const std::vector<Form> kForms = {
    {"plain", "plain", "--mix O=none"},
    {"depthwise", "15 taps at O", "--mix O=depthwise"},
    {"canon", "canon at A and C", "--mix AC=canon"},
    {"dynamic", "dynamic at A and C", "--mix AC=dynamic"},
    {"cp", "ContextPool at O, 16 groups", "--mix O=context_pool --pool-groups 16 --pool-initial-sigma 2"},
    {"gated", "x + s(x) CP(x) at A and C, 16 groups",
     "--mix AC=context_pool --mixer-residual gated --pool-groups 16 --pool-initial-sigma 2"},
    {"gated-taps", "x + 4 taps + s(x) CP(x) at A and C, 16 groups",
     "--mix AC=context_pool --mixer-residual gated --pool-taps 4 --pool-groups 16 --pool-initial-sigma 2"},
    {"canon-cp", "canon at A and C, ContextPool at O, 16 groups",
     "--mix AC=canon,O=context_pool --pool-groups 16 --pool-initial-sigma 2"},
};

std::vector<Row> rows() {
  std::vector<Row> all;
  for (int layers = 2; layers <= 6; ++layers) {
    const auto count = std::to_string(layers);
    for (const auto& form : kForms) {
      all.push_back({form.name + "-" + count, form.label + ", " + count + " layers", form.flags + " --layers " + count,
                     "plain-" + count});
    }
  }
  return all;
}

std::vector<Claim> claims() {
  return {{"ContextPool is better than the plain model", "cp-2", "plain-2"},
          {"ContextPool is better than taps of fixed width in its place", "cp-2", "depthwise-2"},
          {"canon is better than ContextPool", "canon-2", "cp-2"}};
}

Recipe recipe(const std::string& train, const std::string& tokens, const std::string& described) {
  return {.train = train,
          .scores = {{.name = "right %",
                      .command = "eval --run {run} --tokens " + tokens + " --json",
                      .pointer = "/accuracy",
                      .factor = 100,
                      .digits = 1,
                      .lower_is_better = false}},
          .described = described};
}

Table generated(const std::string& name, const std::string& title) {
  const auto of = "--preset " + name + " --data " + name + " --keep 1";
  auto smoke = recipe(of + " --steps 10 --checkpoint-every 10 --eval-tokens 200", "200",
                      "10 steps, which is enough to see that everything works and for nothing else");
  smoke.seeds = {1, 2};
  return {name,
          title,
          {{"smoke", smoke, rows(), claims()}, {"demo", recipe(of, "20000", "preset " + name), rows(), claims()}}};
}

}  // namespace

Table recall() { return generated("recall", "Recall by local mixers, as they get deeper"); }
Table k_hop() { return generated("k-hop", "One and two hops along a chain by local mixers, as they get deeper"); }

}  // namespace contextpool::reproduce
