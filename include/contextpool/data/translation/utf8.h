// UTF-8 to and from code points. Valid is what Unicode calls well-formed (no surrogates, no longer forms than needed,
// nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace contextpool::data {

bool is_valid_utf8(std::string_view text);
// The number of code points of a valid text.
std::size_t count_code_points(std::string_view text);

// Each maximal part of an invalid sequence becomes U+FFFD, as in Python's bytes.decode("utf-8", "replace").
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);

}  // namespace contextpool::data
