// The translators of Table 4 on a small scale: Multi30k, English to German, by the recipe of docs/translation.md with
// half the steps; and number names. The last ten checkpoints are averaged by name: a run that was stopped and resumed
// has others among them.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::vector<Row> rows(const std::string& model) {
  return {{"plain", "standard attention", "--model " + model},
          {"depthwise", "control", "--model dw-" + model},
          {"local", "local attention", "--model " + model + "-local"},
          {"area", "area attention", "--model " + model + "-area"},
          {"cp", "ContextPool", "--model cp-" + model}};
}

std::vector<Claim> claims() {
  return {{"ContextPool is better than standard attention", "cp", "plain"},
          {"ContextPool is better than local attention", "cp", "local"},
          {"ContextPool is better than area attention", "cp", "area"},
          {"area attention is better than local attention", "area", "local"},
          {"local attention is better than standard attention", "local", "plain"}};
}

Recipe smoke() {
  return {.train = "--preset numbers --batch 256 --steps 10 --checkpoint-every 10 --eval-sentences 0",
          .scores = {{.name = "dev loss", .command = "", .pointer = "/dev_loss"},
                     {.name = "exact %",
                      .command = "eval --run {run} --sentences 20 --beam 1 --json",
                      .pointer = "/exact",
                      .digits = 1,
                      .lower_is_better = false}},
          .described =
              "10 steps on generated number names, which is enough to see that everything works and for nothing else",
          .stands_for = "WMT14",
          .seeds = {1, 2}};
}

Role captions(const std::string& name, const std::string& file) {
  return {.name = name, .what = "Multi30k, " + file, .files = {file + ".gz", file}};
}

Recipe small() {
  Recipe recipe;
  recipe.train =
      "--preset multi30k --steps 4000 --warmup 1000 --eval-sentences 0 --keep 16 --data {train.en} --target {train.de} "
      "--dev-source {val.en} --dev-target {val.de}";
  std::string files;
  for (int step = 3100; step <= 4000; step += 100) {
    files += " {run}/checkpoints/step-" + std::to_string(step) + "/model.safetensors";
  }
  recipe.before = {"average --out {run}/average.safetensors" + files};
  recipe.data = {captions("train.en", "train.en"), captions("train.de", "train.de"), captions("val.en", "val.en"),
                 captions("val.de", "val.de")};
  for (const auto* test : {"test_2016_flickr", "test_2017_flickr", "test_2018_flickr"}) {
    const std::string name = test, year = name.substr(5, 4);
    for (const auto* side : {".en", ".de"}) recipe.data.push_back(captions("test" + year + side, name + side));
    recipe.scores.push_back({.name = "BLEU " + year,
                             .command = "eval --checkpoint {run}/average.safetensors --data {test" + year +
                                        ".en} --target {test" + year + ".de} --beam 5 --lowercase --batch 256 --json",
                             .pointer = "/BLEU/score",
                             .digits = 2,
                             .lower_is_better = false});
  }
  recipe.scores.push_back({.name = "dev loss", .command = "", .pointer = "/dev_loss"});
  recipe.described = "Multi30k, 4000 steps, average of the last 10 checkpoints, beam 5, lower-cased sacreBLEU";
  recipe.stands_for = "WMT14";
  return recipe;
}

}  // namespace

Table table_4() {
  return {"table-4",
          "Table 4 (translation, English to German)",
          {{"smoke", smoke(), rows("nmt-tiny"), claims()}, {"small", small(), rows("nmt-multi30k"), claims()}}};
}

}  // namespace contextpool::reproduce
