// Numbers from 0 to 1,000,000 spelled out, a small translation task whose answers are known:
//   English  twenty-one; one hundred and five; one thousand and one; two hundred thousand and one. With "and" before
//            what is below a hundred, as in British English, and no commas.
//   German   in one word: eins, einundzwanzig, einhundertfünf, zweihunderteintausend; eine Million. A hundred and a
//            thousand are einhundert and eintausend, as in documents, not hundert and tausend.
//   French   of France, in the spelling before 1990 (hyphens only below a hundred and not beside "et"): vingt et un,
//            soixante et onze, quatre-vingts but quatre-vingt-un and quatre-vingt mille, deux cents but deux cent un
//            and deux cent mille; mille never takes an s; un million.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/data/text.h"
#include "contextpool/data/translation/parallel_text.h"

namespace contextpool::data {

constexpr std::int64_t kLargestNumber = 1'000'000;

std::vector<std::string> number_languages();  // "en", "de", "fr"
std::string number_name(std::int64_t number, const std::string& language);

// Where a number belongs, whatever else is asked for: 5 per cent are dev, 5 test, by a hash of the number. Those up to
// 100, and the million, are train: some words are in no other name.
Split number_split(std::int64_t number);

// `count` different numbers of a split from English: of train the first 1,000 are its smallest, the rest of it and of
// other splits is drawn from all numbers alike, by the seed. Fewer if the split has fewer.
ParallelText number_pairs(const std::string& target, Split split, std::int64_t count, std::int64_t seed);

}  // namespace contextpool::data
