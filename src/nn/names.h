// Options are words. A word that is not among the known ones is answered with all of them and the nearest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contextpool::nn {

// The known word with the fewest letters to change (Levenshtein), for "did you mean".
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// Throws c10::Error "<who>: <option> is "<word>", expected one of ...; did you mean "<nearest>"?" unless word is known.
void check_word(std::string_view who, std::string_view option, std::string_view word,
                const std::vector<std::string>& known);

}  // namespace contextpool::nn
