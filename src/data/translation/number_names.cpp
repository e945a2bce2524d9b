#include "contextpool/data/translation/number_names.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "base/words.h"
#include "contextpool/data/permutation.h"
#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kTwenty = 20, kHundred = 100, kThousand = 1000;
constexpr std::int64_t kPercent = 100, kShare = 5;  // of dev, and of test
constexpr std::int64_t kSmallest = 1000;            // of train, taken first

using Twenty = std::array<const char*, 20>;
using Tens = std::array<const char*, 10>;

std::string below(const Twenty& table, std::int64_t n) { return table[static_cast<std::size_t>(n)]; }
std::string tens(const Tens& table, std::int64_t n) { return table[static_cast<std::size_t>(n / 10)]; }

std::string english(std::int64_t n) {
  constexpr Twenty kSmall = {"zero",     "one",     "two",     "three",     "four",     "five",    "six",
                             "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
                             "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
  constexpr Tens kTens = {"", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};
  if (n < kTwenty) return below(kSmall, n);
  if (n < kHundred) return tens(kTens, n) + (n % 10 == 0 ? "" : "-" + english(n % 10));
  if (n == kLargestNumber) return "one million";
  const auto unit = n < kThousand ? kHundred : kThousand;
  const auto rest = n % unit;
  auto head = english(n / unit) + (unit == kHundred ? " hundred" : " thousand");
  if (rest == 0) return head;
  return head + (rest < kHundred ? " and " : " ") + english(rest);
}

// `one` is what 1 is called at the end: "eins", but "ein" before another part of the word.
std::string german(std::int64_t n, const std::string& one = "eins") {
  constexpr Twenty kSmall = {"null",     "eins",     "zwei",     "drei",     "vier",     "fünf",    "sechs",
                             "sieben",   "acht",     "neun",     "zehn",     "elf",      "zwölf",   "dreizehn",
                             "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"};
  constexpr Tens kTens = {"",        "",        "zwanzig", "dreißig", "vierzig",
                          "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"};
  if (n == 1) return one;
  if (n < kTwenty) return below(kSmall, n);
  if (n < kHundred) return (n % 10 == 0 ? "" : german(n % 10, "ein") + "und") + tens(kTens, n);
  if (n == kLargestNumber) return "eine Million";
  const auto unit = n < kThousand ? kHundred : kThousand;
  const auto rest = n % unit;
  return german(n / unit, "ein") + (unit == kHundred ? "hundert" : "tausend") + (rest == 0 ? "" : german(rest, one));
}

// Below a hundred; 70 to 79 count on from sixty and 90 to 99 from eighty.
std::string french_small(std::int64_t n, bool last) {
  constexpr Twenty kSmall = {"zéro",     "un",     "deux",  "trois",    "quatre",   "cinq",    "six",
                             "sept",     "huit",   "neuf",  "dix",      "onze",     "douze",   "treize",
                             "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf"};
  constexpr Tens kTens = {"",          "",         "vingt",    "trente",       "quarante",
                          "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt"};
  constexpr std::int64_t kSeventy = 70, kEighty = 80, kNinety = 90;
  if (n < kTwenty) return below(kSmall, n);
  auto word = tens(kTens, n);
  const bool from_ten = (n >= kSeventy && n < kEighty) || n >= kNinety;
  const auto rest = n % 10 + (from_ten ? 10 : 0);
  if (n == kEighty) return last ? "quatre-vingts" : word;
  if (rest == 0) return word;
  const bool et = n < kEighty && rest % 10 == 1;
  return word + (et ? " et " : "-") + below(kSmall, rest);
}

// `last`: nothing follows, so that vingt and cent may take their s.
std::string french(std::int64_t n, bool last = true) {
  if (n < kHundred) return french_small(n, last);
  if (n == kLargestNumber) return "un million";
  const auto unit = n < kThousand ? kHundred : kThousand;
  const auto count = n / unit, rest = n % unit;
  const std::string word = unit == kThousand ? "mille" : count > 1 && rest == 0 && last ? "cents" : "cent";
  return (count == 1 ? "" : french(count, false) + " ") + word + (rest == 0 ? "" : " " + french(rest, last));
}

void check(std::int64_t number) {
  TORCH_CHECK_VALUE(number >= 0 && number <= kLargestNumber, "contextpool: number ", number,
                    " has no name here; expected 0 to ", kLargestNumber);
}

}  // namespace

std::vector<std::string> number_languages() { return {"en", "de", "fr"}; }

std::string number_name(std::int64_t number, const std::string& language) {
  check(number);
  check_word("contextpool: number names", "language", language, number_languages());
  if (language == "en") return english(number);
  return language == "de" ? german(number) : french(number);
}

Split number_split(std::int64_t number) {
  check(number);
  if (number <= kHundred || number == kLargestNumber) return Split::train;
  const auto part = data::below(kPercent, random_bits({0x6e756d626572, static_cast<std::uint64_t>(number)}));
  if (part < kShare) return Split::dev;
  return part < 2 * kShare ? Split::test : Split::train;
}

ParallelText number_pairs(const std::string& target, Split split, std::int64_t count, std::int64_t seed) {
  TORCH_CHECK_VALUE(count > 0, "contextpool: ", count, " number names; expected at least 1");
  std::vector<std::pair<std::string, std::string>> pairs;
  const auto add = [&](std::int64_t number) {
    const bool fits = split == Split::all || number_split(number) == split;
    const bool missing = static_cast<std::int64_t>(pairs.size()) < count;
    if (fits && missing) pairs.emplace_back(number_name(number, "en"), number_name(number, target));
  };
  std::int64_t smallest = 0;
  if (split == Split::train || split == Split::all) {
    for (; static_cast<std::int64_t>(pairs.size()) < std::min(count, kSmallest); ++smallest) add(smallest);
  }
  const auto key = random_bits({static_cast<std::uint64_t>(seed)});
  const auto all = kLargestNumber + 1;
  for (std::int64_t i = 0; i < all && static_cast<std::int64_t>(pairs.size()) < count; ++i) {
    const auto number = permuted(i, all, key);
    if (number >= smallest) add(number);
  }
  return ParallelText::from_pairs(std::move(pairs), "number names, English to " + target);
}

}  // namespace contextpool::data
