// The vision transformers of Table 6 on a small scale: CIFAR-10, and generated shapes. ContextPool has the paper's
// sizes.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::vector<Row> rows() {
  return {{"plain", "ViT, 6 layers", "--model vit-cifar"},
          {"depthwise", "control, 6 layers", "--model dw-vit-cifar"},
          {"cp", "CP-ViT, 6 layers", "--model cp-vit-cifar --pool-size-range 0"},
          {"cp-5", "CP-ViT, 5 layers", "--model cp-vit-cifar --layers 5 --pool-size-range 0"}};
}

std::vector<Claim> claims() {
  return {{"ContextPool is better than the plain model", "cp", "plain"},
          {"ContextPool is better than the control", "cp", "depthwise"},
          {"ContextPool is better than with one layer less", "cp", "cp-5"}};
}

Recipe smoke() {
  return {
      .train =
          "--preset shapes --data shapes --patch 8 --features 16 --heads 2 --feedforward 32 --pool-hidden 8 "
          "--dev-images 100 --batch 16 --epochs 0 --steps 10 --warmup 0 --checkpoint-every 10 --optimizer adamw",
      .scores = {top1()},
      .described = "10 steps on generated shapes, which is enough to see that everything works and for nothing else",
      .stands_for = "ImageNet",
      .seeds = {1, 2}};
}

Recipe small() {
  return {.train = "--preset cifar10-vit --keep 1 --data {cifar10}",
          .scores = {top1()},
          .data = {cifar10()},
          .described = "preset cifar10-vit, 20 epochs",
          .stands_for = "ImageNet"};
}

}  // namespace

Table table_6() {
  return {"table-6",
          "Table 6 (vision transformers)",
          {{"smoke", smoke(), rows(), claims()}, {"small", small(), rows(), claims()}}};
}

}  // namespace contextpool::reproduce
