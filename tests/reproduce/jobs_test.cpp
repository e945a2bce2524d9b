// The list of jobs, and the commands of each.
#include "reproduce/jobs.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace contextpool::reproduce {
namespace {

Plan plan() {
  return {"small",
          {.train = "--preset spec-lm --data {text}",
           .before = {"average --run {run} --out {run}/a.safetensors"},
           .scores = {{.name = "bpc", .command = "eval --run {run} --json", .pointer = "/bpc"},
                      {.name = "dev loss", .command = "", .pointer = "/dev_loss"},
                      {.name = "all", .command = "eval --run {run} --split all --json", .pointer = "/bpc"}},
           .data = {{.name = "text"}}},
          {{"plain", "plain", "--model transformer-6"}, {"cp", "ContextPool", "--model cp-transformer-6"}},
          {}};
}

Setting setting(const Plan& plan) {
  return {.table = "t",
          .plan = &plan,
          .data = {{"text", {.path = "/data/my text"}}},
          .more = "--steps 7",
          .device = "cpu",
          .out = "/out"};
}

TEST(Jobs, OneSeedOfAllRowsComesBeforeTheNext) {
  const auto p = plan();
  std::vector<std::string> names;
  for (const auto& job : jobs_of(p, {}, {3, 1})) names.push_back(job.name());
  EXPECT_EQ(names, (std::vector<std::string>{"plain-seed-3", "cp-seed-3", "plain-seed-1", "cp-seed-1"}));
  EXPECT_EQ(jobs_of(p, {"cp"}, {1, 2}).size(), 2);
}

TEST(Jobs, CommandsAreThoseOfTheRecipeWithAPathAsOneWord) {
  const auto p = plan();
  const auto s = setting(p);
  const auto commands = commands_of(s, {&p.rows[1], 5}, /*resume=*/false);
  ASSERT_EQ(commands.size(), 4);
  EXPECT_EQ(
      shell_line(commands[0]),
      "train --preset spec-lm --data '/data/my text' --model cp-transformer-6 --steps 7 --seed 5 --device cpu --run "
      "/out/cp-seed-5/run");
  EXPECT_EQ(shell_line(commands[1]), "average --run /out/cp-seed-5/run --out /out/cp-seed-5/run/a.safetensors");
  EXPECT_EQ(shell_line(commands[3]), "eval --run /out/cp-seed-5/run --split all --json --device cpu");
  EXPECT_EQ(command_of_score(p.recipe, 0), 2);
  EXPECT_EQ(command_of_score(p.recipe, 1), 0);  // in the log of the training
  EXPECT_EQ(command_of_score(p.recipe, 2), 3);
}

TEST(Jobs, AResumedRunNamesItsFlagsAgainButNotThePreset) {
  const auto p = plan();
  const auto s = setting(p);
  const auto line = shell_line(commands_of(s, {&p.rows[0], 1}, /*resume=*/true)[0]);
  EXPECT_EQ(line,
            "train --data '/data/my text' --model transformer-6 --steps 7 --seed 1 --device cpu --run "
            "/out/plain-seed-1/run --resume");
}

TEST(Jobs, AResumedRunNamesNeitherPresetNorConfigHoweverTheyWereGiven) {
  const auto p = plan();
  auto s = setting(p);
  for (const auto* more : {"--preset=quick --config my.toml", "--config=my.toml"}) {
    s.more = more;
    const auto line = shell_line(commands_of(s, {&p.rows[0], 1}, /*resume=*/true)[0]);
    EXPECT_EQ(line,
              "train --data '/data/my text' --model transformer-6 --seed 1 --device cpu --run /out/plain-seed-1/run "
              "--resume");
  }
}

TEST(Jobs, DataThatAreNotThereAreWrittenInCapitals) {
  const auto p = plan();
  auto s = setting(p);
  s.data.clear();
  EXPECT_NE(shell_line(commands_of(s, {&p.rows[0], 1}, false)[0]).find("--data TEXT "), std::string::npos);
}

// `train --steps 20 --steps 6` would be two stages.
TEST(Jobs, OfAFlagThatIsNamedTwiceTheLaterOneStays) {
  auto p = plan();
  p.recipe.train = "--preset a --steps 20,30 --channels-last --lr=1 --data {text}";
  p.rows[0].flags = "--model b --lr 2 --preset c";
  const auto s = setting(p);  // --steps 7
  EXPECT_EQ(shell_line(commands_of(s, {&p.rows[0], 1}, false)[0]),
            "train --channels-last --data '/data/my text' --model b --lr 2 --preset c --steps 7 --seed 1 --device cpu "
            "--run /out/plain-seed-1/run");
}

// Where the run is, on which device and on which copy of the data is not part of what it is.
TEST(Jobs, TheDefinitionIsOfTheRecipeNotOfThePlace) {
  const auto p = plan();
  auto a = setting(p), b = setting(p);
  b.out = "/elsewhere";
  b.device = "cuda";
  b.data["text"].path = "/moved";
  const Job job{&p.rows[0], 1};
  EXPECT_EQ(definition_of(a, job), definition_of(b, job));
  b.more = "--steps 8";
  EXPECT_NE(definition_of(a, job), definition_of(b, job));
  EXPECT_THROW(check_definition(definition_of(a, job), b, job, "file"), c10::Error);
}

TEST(Jobs, ShellLinesQuoteWhatAShellWouldChange) {
  EXPECT_EQ(shell_line({"a", "b c", "it's", "", "x=1"}), "a 'b c' 'it'\\''s' '' x=1");
}

}  // namespace
}  // namespace contextpool::reproduce
