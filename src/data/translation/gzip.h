// gzip (RFC 1952) undone in memory.
#pragma once

#include <string>
#include <string_view>

#include "contextpool/io/error.h"
#include "io/text.h"

namespace contextpool::data {

// io::Error of these parts unless `good`: what reading text throws. No torch needed, so that it can be fuzzed.
template <typename... Parts>
void require(bool good, const Parts&... parts) {
  if (!good) throw io::Error(io::text(parts...));
}

bool is_gzip(std::string_view bytes);
// All members, one after another; zeros after the last are padding. Throws if anything is damaged, cut off or left
// over.
std::string gunzip(std::string_view bytes, const std::string& path);

}  // namespace contextpool::data
