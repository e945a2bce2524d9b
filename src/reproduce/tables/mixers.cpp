// ContextPool among the local mixers that came after it, in the places of docs/mixers.md. ContextPool has the paper's
// sizes here (--pool-size-range 0), which are the better ones with the recipe of spec-lm (docs/results.md).
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::vector<Row> rows(const std::string& model) {
  const auto with = [&](const std::string& flags) { return "--model " + model + " " + flags; };
  const auto pool = [&](const std::string& mix, const std::string& flags) {
    return with("--mix " + mix + " --pool-size-range 0" + (flags.empty() ? "" : " " + flags));
  };
  return {
      {"plain", "plain", "--model " + model},
      {"depthwise-o", "15 taps at O", with("--mix O=depthwise")},
      {"canon-ac", "canon at A and C", with("--mix AC=canon")},
      {"cp-1", "ContextPool at O, 1 group", pool("O=context_pool", "")},
      {"cp-8", "ContextPool at O, 8 groups", pool("O=context_pool", "--pool-groups 8")},
      {"cp-16", "ContextPool at O, 16 groups", pool("O=context_pool", "--pool-groups 16")},
      {"dynamic-ac", "dynamic at A and C", with("--mix AC=dynamic")},
      {"dynamic-o", "dynamic at O", with("--mix O=dynamic")},
      {"dynamic-b", "dynamic at B", with("--mix B=dynamic")},
      {"canon-a", "canon at A", with("--mix A=canon")},
      {"canon-abcd", "canon at A, B, C and D", with("--mix ABCD=canon")},
      {"scale-a", "x + s CP(x) at A", pool("A=context_pool", "--mixer-residual scale")},
      {"scale-ac", "x + s CP(x) at A and C", pool("AC=context_pool", "--mixer-residual scale")},
      {"gated-o", "x + s(x) CP(x) at O", pool("O=context_pool", "--mixer-residual gated")},
      {"gated-ac", "x + s(x) CP(x) at A and C", pool("AC=context_pool", "--mixer-residual gated")},
      {"taps-a", "x + 4 taps + s CP(x) at A", pool("A=context_pool", "--mixer-residual scale --pool-taps 4")},
      {"taps-ac", "x + 4 taps + s CP(x) at A and C", pool("AC=context_pool", "--mixer-residual scale --pool-taps 4")},
      {"canon-cp", "canon at A and C, ContextPool at O, 8 groups", pool("AC=canon,O=context_pool", "--pool-groups 8")},
      {"dynamic-cp", "dynamic at A and C, ContextPool at O, 8 groups",
       pool("AC=dynamic,O=context_pool", "--pool-groups 8")},
  };
}

std::vector<Claim> claims() {
  return {{"ContextPool is better than the plain model", "cp-1", "plain"},
          {"ContextPool is better than taps of fixed width in its place", "cp-1", "depthwise-o"},
          {"8 groups are better than 1", "cp-8", "cp-1"},
          {"ContextPool with 8 groups is better than canon at A and C", "cp-8", "canon-ac"},
          {"dynamic taps are better than canon at A and C", "dynamic-ac", "canon-ac"},
          {"ContextPool adds to canon", "canon-cp", "canon-ac"},
          {"ContextPool adds to dynamic taps", "dynamic-cp", "dynamic-ac"}};
}

}  // namespace

Table mixers() {
  return {"mixers",
          "Local mixers in language models",
          {{"smoke", text_smoke(), rows("tiny"), claims()}, {"small", text_small(), rows("transformer-6"), claims()}}};
}

}  // namespace contextpool::reproduce
