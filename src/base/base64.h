// Bytes as letters (RFC 4648, with padding): for metadata that hold text only.
#pragma once

#include <string>
#include <string_view>

namespace contextpool {

std::string to_base64(std::string_view bytes);
// Throws c10::ValueError, opened by `who`, at a character or length that cannot be.
std::string from_base64(std::string_view letters, const std::string& who);

}  // namespace contextpool
