#include "base/base64.h"

#include <c10/util/Exception.h>

#include <cstdint>

namespace contextpool {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr unsigned kBits = 6, kByte = 8;
constexpr std::uint32_t kSix = 63, kEight = 255;

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string letters;
  letters.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << kByte | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (unsigned k = 0; k < 4; ++k) {
      const bool there = i + k <= bytes.size();  // of a group of n bytes the first n + 1 letters say something
      letters += there ? kLetters[group >> (kBits * (3 - k)) & kSix] : '=';
    }
  }
  return letters;
}

std::string from_base64(std::string_view letters, const std::string& who) {
  TORCH_CHECK_VALUE(letters.size() % 4 == 0, who, ": is not base64: ", letters.size(), " characters, expected fours");
  std::string bytes;
  bytes.reserve(letters.size() / 4 * 3);
  for (std::size_t i = 0; i < letters.size(); i += 4) {
    std::uint32_t group = 0;
    std::size_t padding = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const char letter = letters[i + k];
      const bool pad = letter == '=' && i + 4 == letters.size() && k >= 2;
      const auto value = pad ? 0 : kLetters.find(letter);
      TORCH_CHECK_VALUE(value != std::string_view::npos && (pad || padding == 0), who,
                        ": is not base64: unexpected character at ", i + k);
      padding += pad ? 1 : 0;
      group = group << kBits | static_cast<std::uint32_t>(value);
    }
    for (unsigned k = 0; k + padding < 3; ++k) bytes += static_cast<char>(group >> (kByte * (2 - k)) & kEight);
  }
  return bytes;
}

}  // namespace contextpool
