// What scores of text need to know of Unicode: categories, spaces and lower case, as Python has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contextpool::eval::unicode {

bool is_punctuation(char32_t c);  // category P
bool is_symbol(char32_t c);       // category S
bool is_number(char32_t c);       // category N
bool is_space(char32_t c);        // str.isspace()

std::u32string lower(std::u32string_view text);                    // str.lower(), a final sigma included
std::u32string_view strip_right(std::u32string_view text);         // str.rstrip()
std::vector<std::u32string_view> split(std::u32string_view text);  // str.split()

}  // namespace contextpool::eval::unicode
