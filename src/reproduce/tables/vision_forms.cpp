// Which form of ContextPool a classifier should have: largest and first size (r, sigma0 in pixels or patches), groups,
// the form with a residual, and in a ResNet the stride. Chosen on the development split, so that score comes first.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::string sizes(const std::string& ratio, const std::string& sigma) {
  return " --pool-ratio " + ratio + " --pool-initial-sigma " + sigma;
}

std::vector<Row> vit_rows() {
  std::vector<Row> all = {
      {"plain", "ViT", "--model vit-cifar"},
      {"depthwise", "control: 3 x 3 taps", "--model dw-vit-cifar"},
      {"depthwise-residual", "x + 3 x 3 taps", "--model dw-vit-cifar --mixer-residual plain"},
  };
  const auto add = [&](const std::string& name, const std::string& label, const std::string& flags) {
    all.push_back({name, label, "--model cp-vit-cifar " + flags});
  };
  for (const auto* ratio : {"0.1", "0.2", "0.4"}) {
    for (const auto* sigma : {"0.5", "1", "2"}) {
      add(std::string("r-") + ratio + "-sigma-" + sigma, std::string("r ") + ratio + ", sigma0 " + sigma,
          "--pool-size-range 0" + sizes(ratio, sigma));
    }
  }
  add("bounded", "bounded sizes, r 0.1, sigma0 1", "--pool-size-range 2" + sizes("0.1", "1"));
  for (const auto* groups : {"3", "16"}) {
    const std::string count = std::string(" --pool-groups ") + groups, label = std::string(groups) + " groups, ";
    add(std::string("groups-") + groups, label + "r 0.2, sigma0 1", "--pool-size-range 0" + sizes("0.2", "1") + count);
    add(std::string("scale-") + groups, "x + s CP(x), " + label + "r 0.2, sigma0 1",
        "--pool-size-range 0 --mixer-residual scale" + sizes("0.2", "1") + count);
  }
  add("scale", "x + s CP(x), r 0.2, sigma0 1", "--pool-size-range 0 --mixer-residual scale" + sizes("0.2", "1"));
  add("mean", "r 0.1, sigma0 1, the head reads the mean", "--pool-size-range 0 --readout mean" + sizes("0.1", "1"));
  all.push_back({"plain-mean", "ViT, the head reads the mean", "--model vit-cifar --readout mean"});
  return all;
}

std::vector<Row> resnet_rows() {
  std::vector<Row> all = {
      {"plain", "ResNet-44", "--model resnet-44"},
      {"depthwise", "control: 3 x 3 taps", "--model dw-resnet-44"},
      {"depthwise-residual", "x + 3 x 3 taps", "--model dw-resnet-44 --mixer-residual plain"},
      {"average-stride-2", "control: average pooling, stride 2", "--model resnet-44 --mixer average --pool-stride 2"},
      {"depthwise-stride-2", "control: 3 x 3 taps, stride 2", "--model dw-resnet-44 --pool-stride 2"},
  };
  const auto add = [&](const std::string& name, const std::string& label, const std::string& flags) {
    all.push_back({name, label, "--model cp-resnet-44 --pool-size-range 0 " + flags});
  };
  for (const auto* ratio : {"0.05", "0.1", "0.2"}) {
    add(std::string("r-") + ratio, std::string("stage ends, r ") + ratio, std::string("--pool-ratio ") + ratio);
    all.push_back({std::string("r-") + ratio + "-stride-2", std::string("in place of the strides, r ") + ratio,
                   std::string("--model cp-resnet-44 --pool-size-range 0 --pool-stride 2 --pool-ratio ") + ratio,
                   "average-stride-2"});
  }
  add("groups-4", "stage ends, r 0.1, 4 groups", "--pool-ratio 0.1 --pool-groups 4");
  add("scale", "stage ends, x + s CP(x), r 0.1", "--pool-ratio 0.1 --mixer-residual scale");
  return all;
}

Score dev_top1() {
  auto score = top1();
  score.name = "dev top-1 %";
  score.command = "eval --run {run} --split dev --json";
  return score;
}

Recipe of_cifar(const std::string& train, const std::string& described) {
  return {.train = train + " --keep 1 --data {cifar10}",
          .scores = {dev_top1(), top1()},
          .data = {cifar10()},
          .described = described,
          .seeds = {1, 2}};
}

Recipe of_shapes(const std::string& flags) {
  return {
      .train =
          "--preset shapes --data shapes --dev-images 100 --batch 16 --epochs 0 --steps 10 "
          "--checkpoint-every 10 --warmup 0 " +
          flags,
      .scores = {dev_top1(), top1()},
      .described = "10 steps on generated shapes, which is enough to see that everything works and for nothing else",
      .seeds = {1, 2}};
}

}  // namespace

Table vit_forms() {
  const auto shapes = of_shapes("--patch 8 --features 48 --heads 3 --feedforward 32 --optimizer adamw");
  return {"vit-forms",
          "Forms of ContextPool in a vision transformer",
          {{"smoke", shapes, vit_rows(), {}},
           {"demo", of_cifar("--preset cifar10-tiny", "CIFAR-10, preset cifar10-tiny, 3 epochs"), vit_rows(), {}},
           {"small", of_cifar("--preset cifar10-vit", "CIFAR-10, preset cifar10-vit, 20 epochs"), vit_rows(), {}}}};
}

Table resnet_forms() {
  const auto shapes = of_shapes("--features 4 --depths 1,1,1");
  return {"resnet-forms",
          "Forms of ContextPool in a ResNet",
          {{"smoke", shapes, resnet_rows(), {}},
           {"small",
            of_cifar("--preset cifar10-resnet-44 --epochs 12,6,6", "CIFAR-10, preset cifar10-resnet-44 with 24 epochs"),
            resnet_rows(),
            {}}}};
}

}  // namespace contextpool::reproduce
