// gzip (RFC 1952) undone in memory.
#pragma once

#include <string>
#include <string_view>

namespace contextpool::data {

bool is_gzip(std::string_view bytes);
// All members, one after another; zeros after the last are padding. Throws if anything is damaged, cut off or left
// over.
std::string gunzip(std::string_view bytes, const std::string& path);

}  // namespace contextpool::data
