// Number names: grammar by example (tests/python/test_translation_text.py has all of them), and the splits.
#include "contextpool/data/translation/number_names.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "files.h"

namespace contextpool::testing {
namespace {

using data::number_name;
using data::number_split;
using data::Split;

void expect_names(const std::string& language, const std::map<std::int64_t, std::string>& names) {
  for (const auto& [number, name] : names) EXPECT_EQ(number_name(number, language), name) << number;
}

TEST(NumberNames, FollowEnglishGrammar) {
  expect_names("en", {{0, "zero"},
                      {13, "thirteen"},
                      {40, "forty"},
                      {99, "ninety-nine"},
                      {100, "one hundred"},
                      {105, "one hundred and five"},
                      {1001, "one thousand and one"},
                      {1100, "one thousand one hundred"},
                      {200'021, "two hundred thousand and twenty-one"},
                      {999'999, "nine hundred and ninety-nine thousand nine hundred and ninety-nine"},
                      {1'000'000, "one million"}});
}

TEST(NumberNames, FollowGermanGrammar) {
  expect_names("de", {{0, "null"},
                      {1, "eins"},
                      {16, "sechzehn"},
                      {17, "siebzehn"},
                      {21, "einundzwanzig"},
                      {30, "dreißig"},
                      {100, "einhundert"},
                      {101, "einhunderteins"},
                      {1000, "eintausend"},
                      {21'001, "einundzwanzigtausendeins"},
                      {101'101, "einhunderteintausendeinhunderteins"},
                      {1'000'000, "eine Million"}});
}

TEST(NumberNames, FollowFrenchGrammar) {
  expect_names("fr", {{0, "zéro"},
                      {21, "vingt et un"},
                      {22, "vingt-deux"},
                      {70, "soixante-dix"},
                      {71, "soixante et onze"},
                      {77, "soixante-dix-sept"},
                      {80, "quatre-vingts"},
                      {81, "quatre-vingt-un"},
                      {91, "quatre-vingt-onze"},
                      {100, "cent"},
                      {101, "cent un"},
                      {200, "deux cents"},
                      {201, "deux cent un"},
                      {280, "deux cent quatre-vingts"},
                      {1000, "mille"},
                      {2000, "deux mille"},
                      {80'000, "quatre-vingt mille"},
                      {200'000, "deux cent mille"},
                      {200'200, "deux cent mille deux cents"},
                      {1'000'000, "un million"}});
}

TEST(NumberNames, OutsideTheRangeThereAreNone) {
  EXPECT_ANY_THROW(number_name(-1, "en"));
  EXPECT_ANY_THROW(number_name(1'000'001, "de"));
  EXPECT_NE(message_of([] { number_name(1, "be"); }).find("did you mean \"de\""), std::string::npos);
}

TEST(NumberNames, ATwentiethIsHeldOutForDevAndForTest) {
  std::map<Split, int> counts;
  for (std::int64_t n = 0; n <= 1'000'000; ++n) ++counts[number_split(n)];
  EXPECT_NEAR(counts[Split::dev], 50'000, 700);
  EXPECT_NEAR(counts[Split::test], 50'000, 700);
  for (std::int64_t n = 0; n <= 100; ++n) EXPECT_EQ(number_split(n), Split::train);
}

TEST(NumberNames, PairsAreOfTheirSplitAndDifferent) {
  std::set<std::string> names;
  std::map<std::string, std::int64_t> numbers;
  for (std::int64_t n = 0; n <= 1'000'000; ++n) numbers[number_name(n, "en")] = n;
  ASSERT_EQ(numbers.size(), 1'000'001U);
  for (const auto split : {Split::train, Split::dev, Split::test}) {
    const auto pairs = data::number_pairs("de", split, 2000, 5);
    ASSERT_EQ(pairs.size(), 2000);
    for (std::int64_t i = 0; i < pairs.size(); ++i) {
      const auto n = numbers.at(std::string(pairs.pair(i).source));
      EXPECT_EQ(number_split(n), split);
      EXPECT_EQ(pairs.pair(i).target, number_name(n, "de"));
      EXPECT_TRUE(names.emplace(pairs.pair(i).source).second);
    }
  }
  EXPECT_EQ(data::number_pairs("fr", Split::train, 10, 1).size(), 10);
  EXPECT_EQ(data::number_pairs("fr", Split::test, 100, 1).checksum(),
            data::number_pairs("fr", Split::test, 100, 1).checksum());
  EXPECT_NE(data::number_pairs("fr", Split::test, 100, 1).checksum(),
            data::number_pairs("fr", Split::test, 100, 2).checksum());
  EXPECT_EQ(data::number_pairs("fr", Split::all, 2'000'000, 1).size(), 1'000'001);
  EXPECT_ANY_THROW(data::number_pairs("fr", Split::test, 0, 1));
}

}  // namespace
}  // namespace contextpool::testing
