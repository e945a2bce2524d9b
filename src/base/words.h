// Options are words. A word that is not among the known ones is answered with all of them and the one it is near to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contextpool {

// "; did you mean "train"?" with the known word that has the fewest letters to change (Levenshtein), or that the word
// begins. Empty where none is near enough to be meant. `open` and `close` stand around the word.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known, std::string_view open = "\"",
                         std::string_view close = "\"");

// Throws c10::Error "<who>: <option> is "<word>", expected one of ...; did you mean "<nearest>"?" unless word is known.
void check_word(std::string_view who, std::string_view option, std::string_view word,
                const std::vector<std::string>& known);

}  // namespace contextpool
