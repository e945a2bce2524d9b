// The ResNets of Table S1 on CIFAR-10. Of the rows that the paper compares with, deformable and N-Jet networks are not
// among this program's models. ContextPool has the paper's sizes; "size only" predicts no weights, so that its
// predictor has half the channels.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

// The paper's figures are those of scale paper.
std::vector<Row> rows(bool paper) {
  const std::string cp = "--model cp-resnet-44 --pool-size-range 0";
  std::vector<Row> all = {
      {"plain", "ResNet-44", "--model resnet-44", "", {{"top-1 %", 92.9}}},
      {"depthwise", "control, 44 layers", "--model dw-resnet-44"},
      {"cp-44", "CP-ResNet-44", cp, "", {{"top-1 %", 93.4}}},
      {"cp-46", "CP-ResNet-46", "--model cp-resnet-46 --pool-size-range 0", "", {{"top-1 %", 93.7}}},
      {"size-only",
       "CP-ResNet-44, size only",
       cp + " --pool-weights uniform --pool-hidden 10",
       "",
       {{"top-1 %", 93.1}}},
      {"similarity", "CP-ResNet-44, weights by similarity", cp + " --pool-weights nonlocal", "", {{"top-1 %", 93.2}}}};
  for (auto& row : all) {
    if (!paper) row.paper.clear();
  }
  return all;
}

std::vector<Claim> claims() {
  return {{"ContextPool is better than the plain model", "cp-44", "plain"},
          {"ContextPool is better than the control", "cp-44", "depthwise"},
          {"46 layers are better than 44", "cp-46", "cp-44"},
          {"the full module is better than its sizes alone", "cp-44", "size-only"},
          {"the full module is better than weights by similarity", "cp-44", "similarity"}};
}

Recipe smoke() {
  return {
      .train =
          "--preset shapes --data shapes --features 4 --depths 1,1,1 --dev-images 100 --batch 16 --epochs 0 "
          "--steps 10 --checkpoint-every 10",
      .scores = {top1()},
      .described = "10 steps on generated shapes, which is enough to see that everything works and for nothing else",
      .stands_for = "CIFAR-10",
      .seeds = {1, 2}};
}

Recipe cifar(const std::string& flags, const std::string& described) {
  return {.train = "--preset cifar10-resnet-44 --keep 1 --data {cifar10}" + flags,
          .scores = {top1()},
          .data = {cifar10()},
          .described = described};
}

}  // namespace

Table table_s1() {
  return {"table-s1",
          "Table S1 (ConvNets on CIFAR-10)",
          {{"smoke", smoke(), rows(false), claims()},
           {"small", cifar(" --epochs 12,6,6", "preset cifar10-resnet-44 with 24 epochs"), rows(false), claims()},
           {"paper", cifar("", "preset cifar10-resnet-44, 164 epochs"), rows(true), claims()}}};
}

}  // namespace contextpool::reproduce
