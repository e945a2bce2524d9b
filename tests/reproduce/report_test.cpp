// The printed table: means, differences paired by seed, claims, and the paper's figures only where they belong.
#include "reproduce/report.h"

#include <gtest/gtest.h>

namespace contextpool::reproduce {
namespace {

Table table() {
  return {"t",
          "A table",
          {{"paper",
            {.train = "--preset p --data {text}",
             .scores = {{.name = "bpc", .command = "eval --run {run} --json", .pointer = "/bpc"},
                        {.name = "top-1 %", .command = "", .pointer = "/top1", .digits = 1, .lower_is_better = false}},
             .data = {{.name = "text"}},
             .described = "a recipe"},
            {{"plain", "plain", "--model a", "", {{"bpc", 1.25}}}, {"cp", "ContextPool", "--model b"}},
            {{"lower", "cp", "plain"}, {"higher", "plain", "cp"}, {"more right", "cp", "plain", "top-1 %"}}}}};
}

Result result(const std::string& row, std::int64_t seed, double bpc, double top1, double seconds) {
  Result r;
  r.row = row;
  r.seed = seed;
  r.scores = {{"bpc", bpc}, {"top-1 %", top1}};
  r.parameters = 19'700'000;
  r.macs = 2e7;
  r.macs_with_pooling = 3e7;
  r.memory = 5e9;
  r.seconds_a_step = seconds;
  r.where = "a machine";
  return r;
}

struct Reported {
  explicit Reported(const std::string& more = "", const std::string& stands_for = "") : t(table()) {
    t.plans[0].recipe.stands_for = stands_for;
    setting = {.table = "t",
               .plan = &t.plans[0],
               .data = {{"text", {.path = "/x", .name = "x.txt", .bytes = 9}}},
               .more = more,
               .device = "",
               .out = "/out"};
    request = {.table = &t, .setting = &setting, .against = "", .results = {}, .failed = {}};
    const double plain[] = {1.847, 1.825, 1.844}, cp[] = {1.798, 1.760, 1.826};
    for (int seed = 3; seed >= 1; --seed) request.results.push_back(result("plain", seed, plain[seed - 1], 90, 0.1));
    for (int seed = 1; seed <= 3; ++seed) request.results.push_back(result("cp", seed, cp[seed - 1], 90 + seed, 0.125));
  }
  std::string text() const { return report(request); }

  Table t;
  Setting setting;
  ReportRequest request;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Report, DifferencesArePairedBySeedWhateverTheOrderOfResults) {
  const Reported r;
  const auto d = paired_differences(r.request.results, "cp", "plain", "bpc");
  ASSERT_EQ(d.size(), 3);
  EXPECT_NEAR(d[0], 1.798 - 1.847, 1e-15);
  EXPECT_NEAR(d[2], 1.826 - 1.844, 1e-15);
  // scipy.stats.ttest_1samp(d, 0).confidence_interval(): -0.044 +- 0.05946
  EXPECT_TRUE(has(r.text(), "-0.044 [-0.103, +0.015]")) << r.text();
  EXPECT_TRUE(has(r.text(), "1.839 (0.012)"));
  EXPECT_TRUE(has(r.text(), "| 0.80 ")) << "a step of 0.125 s is 0.8 times as fast as one of 0.1 s";
}

TEST(Report, ClaimsAreJudgedByTheirInterval) {
  const auto text = Reported().text();
  const auto of = [&](const std::string& claim) {
    const auto begin = text.find("| " + claim + " (");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_TRUE(has(of("lower"), "| no difference")) << text;
  EXPECT_TRUE(has(of("higher"), "+0.044 [-0.015, +0.103]")) << text;
  EXPECT_TRUE(has(of("more right"), "| no difference")) << text;  // +2.0 +- 2.48
  Reported all;
  for (auto& r : all.request.results) {
    if (r.row == "cp") r.scores = {{"bpc", 1.7 + 0.001 * static_cast<double>(r.seed)}, {"top-1 %", 95.0}};
  }
  EXPECT_TRUE(has(all.text(), "| same sign ")) << all.text();
  EXPECT_TRUE(has(all.text(), "| opposite ")) << all.text();
}

TEST(Report, OneSeedHasNoInterval) {
  Reported r;
  r.request.results = {result("cp", 1, 1.5, 90, 0.1), result("plain", 1, 1.75, 90, 0.1)};
  EXPECT_TRUE(has(r.text(), "| 1.500 ")) << r.text();
  EXPECT_TRUE(has(r.text(), "| -0.250 "));
  EXPECT_TRUE(has(r.text(), "not known"));
  EXPECT_FALSE(has(r.text(), "1.500 ("));
}

TEST(Report, RowsWithoutResultsAreNamedOnce) {
  Reported r;
  std::erase_if(r.request.results, [](const Result& one) { return one.row == "plain"; });
  EXPECT_TRUE(has(r.text(), "| ContextPool ")) << r.text();
  EXPECT_FALSE(has(r.text(), "\n| plain ")) << r.text();
  EXPECT_FALSE(has(r.text(), "| lower (")) << "a claim about it";
  EXPECT_FALSE(has(r.text(), "# plain\n")) << "its command";
  EXPECT_TRUE(has(r.text(), "Without results: plain.\n"));
  r.request.results.clear();
  EXPECT_TRUE(has(r.text(), "Without results: plain, cp.\n"));
}

TEST(Report, ThePapersFigureStandsOnlyBesideItsDataAndRecipe) {
  EXPECT_TRUE(has(Reported().text(), "| paper "));
  EXPECT_TRUE(has(Reported().text(), "| 1.25 "));
  EXPECT_FALSE(has(Reported("--steps 3").text(), "| paper "));
  const auto stand_in = Reported("", "enwik8").text();
  EXPECT_FALSE(has(stand_in, "| paper "));
  EXPECT_TRUE(has(stand_in, "x.txt (9 bytes, CRC-32C 00000000). A stand-in for enwik8"));
}

TEST(Report, CommandsHaveSeedAndFolderByName) {
  const auto text = Reported().text();
  EXPECT_TRUE(has(text, "contextpool train --preset p --data /x --model b --seed SEED --run RUN\n")) << text;
  EXPECT_TRUE(has(text, "contextpool eval --run RUN --json\n")) << text;
}

TEST(Report, FailuresAreListedAndAnotherRowCanBeTheMeasure) {
  Reported r;
  r.request.failed = {{"cp-seed-4", "out of memory"}};
  r.request.against = "cp";
  EXPECT_TRUE(has(r.text(), "- cp-seed-4: out of memory"));
  EXPECT_TRUE(has(r.text(), "+0.044 [-0.015, +0.103]"));
}

}  // namespace
}  // namespace contextpool::reproduce
