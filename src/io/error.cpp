#include "contextpool/io/error.h"

#include <cerrno>
#include <system_error>

#include "io/text.h"

namespace contextpool::io {
namespace {

constexpr std::size_t kLongestQuote = 120;
constexpr std::size_t kLongestEnd = 20;

void append_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
}

}  // namespace

FileError::FileError(const std::filesystem::path& path, std::string_view action, int code)
    : Error(text(path.string(), ": cannot ", action, ": ", std::generic_category().message(code))), code_(code) {}

bool FileError::disk_full() const { return code_ == ENOSPC || code_ == EDQUOT || code_ == EFBIG; }

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  if (text.size() <= kLongestQuote) {
    append_escaped(out, text);
  } else {
    append_escaped(out, text.substr(0, kLongestQuote - kLongestEnd));
    out += "...";
    append_escaped(out, text.substr(text.size() - kLongestEnd));
  }
  return out + '"';
}

}  // namespace contextpool::io
