// sacreBLEU's tokenizers of a sentence:
//   13a   mteval-v13a's, for Western languages: ASCII punctuation apart, but no period or comma inside a number
//   intl  mteval-v14's: all punctuation and symbols of Unicode apart, but none between two numbers
//   char  each character a token
//   none  only at spaces
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contextpool::eval {

std::vector<std::string> tokenizers();
// `line` has no trailing space. The tokens, separated by spaces.
std::u32string tokenize(const std::string& tokenizer, std::u32string_view line);

}  // namespace contextpool::eval
