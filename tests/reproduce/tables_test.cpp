// The tables contradict neither themselves nor the rules of the house.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>

#include "reproduce/data.h"
#include "reproduce/jobs.h"
#include "reproduce/table.h"

namespace contextpool::reproduce {
namespace {

TEST(Tables, EveryTableIsOneThatCanBeRun) {
  std::set<std::string> names;
  for (const auto& table : tables()) {
    EXPECT_NO_THROW(check(table));
    EXPECT_TRUE(names.insert(table.name).second) << table.name;
    EXPECT_EQ(table.plans.front().scale, "smoke") << table.name;
    for (const auto& plan : table.plans) EXPECT_FALSE(plan.recipe.seeds.empty()) << table.name;
  }
}

TEST(Tables, AContradictionIsFound) {
  auto table = find_table("mixers");
  table.plans[0].rows.push_back(table.plans[0].rows[0]);
  EXPECT_THROW(check(table), std::logic_error);
  table = find_table("mixers");
  table.plans[0].claims.push_back({"", "plain", "planar"});
  EXPECT_THROW(check(table), std::logic_error);
  table = find_table("mixers");
  table.plans[0].rows[0].paper["test bpc"] = 1;  // beside a text that the paper never saw
  EXPECT_THROW(check(table), std::logic_error);
}

// A figure of the paper beside one on other data would be read as a comparison.
TEST(Tables, FiguresOfThePaperStandAtScalePaperOnly) {
  for (const auto& table : tables()) {
    for (const auto& plan : table.plans) {
      for (const auto& row : plan.rows) EXPECT_TRUE(row.paper.empty() || plan.scale == "paper") << row.name;
    }
  }
}

TEST(Tables, ThePapersRowsAreThere) {
  const auto& plan = find_plan(find_table("table-5"), "paper");
  const std::map<std::string, double> test = {
      {"enwik8-cp-12", 0.99}, {"enwik8-cp-14", 0.97}, {"enwik8-cp-11", 1.01},          {"enwik8-span-12", 1.02},
      {"text8-cp-12", 1.09},  {"text8-cp-14", 1.07},  {"text8-cp-longformer-12", 1.09}};
  for (const auto& [name, figure] : test) EXPECT_EQ(find_row(plan, name).paper.at("test bpc"), figure) << name;
  EXPECT_EQ(find_row(find_plan(find_table("table-s1"), "paper"), "cp-46").paper.at("top-1 %"), 93.7);
}

TEST(Tables, AnUnknownNameIsAnsweredWithTheNearest) {
  const auto message = [](auto f) -> std::string {
    try {
      f();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  EXPECT_NE(message([] { find_table("mixer"); }).find("did you mean \"mixers\""), std::string::npos);
  EXPECT_NE(message([] { find_plan(find_table("mixers"), "paper"); }).find("there are smoke, demo, small"),
            std::string::npos);
  EXPECT_NE(message([] { jobs_of(find_table("mixers").plans[0], {"plane"}, {1}); }).find("\"plain\""),
            std::string::npos);
}

}  // namespace
}  // namespace contextpool::reproduce
