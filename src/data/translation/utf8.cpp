#include "contextpool/data/translation/utf8.h"

#include <algorithm>

namespace contextpool::data {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr unsigned kPayload = 6;  // bits of a continuation byte
constexpr unsigned kPayloadMask = 0x3F;

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// The length of the sequence that this byte opens; 0 if it opens none.
std::size_t length_of(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `next` may follow `lead` directly: some leads leave the first continuation byte less than its full range.
bool may_follow(unsigned lead, unsigned next) {
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  return next >= low && next <= high;
}

struct Step {
  std::size_t bytes;
  char32_t code;
  bool good;
};

// One code point, or the longest part that could have begun one.
Step step_at(std::string_view text, std::size_t i) {
  const auto lead = byte_at(text, i);
  const auto length = length_of(lead);
  if (length == 0) return {1, kReplacement, false};
  if (length == 1) return {1, lead, true};
  char32_t code = lead & (0x7FU >> length);
  for (std::size_t k = 1; k < length; ++k) {
    if (i + k >= text.size()) return {k, kReplacement, false};
    const auto next = byte_at(text, i + k);
    const bool fits = k == 1 ? may_follow(lead, next) : (next & 0xC0U) == 0x80U;
    if (!fits) return {k, kReplacement, false};
    code = (code << kPayload) | (next & kPayloadMask);
  }
  return {length, code, true};
}

void append(std::string& text, char32_t code) {
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80U | ((code >> shift) & kPayloadMask)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0U | (code >> kPayload));
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0U | (code >> 2 * kPayload));
    tail(kPayload);
    tail(0);
  } else {
    text += static_cast<char>(0xF0U | (code >> 3 * kPayload));
    tail(2 * kPayload);
    tail(kPayload);
    tail(0);
  }
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto step = step_at(text, i);
    if (!step.good) return false;
    i += step.bytes;
  }
  return true;
}

std::size_t count_code_points(std::string_view text) {
  const auto opens = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), opens));
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto step = step_at(text, i);
    codes += step.code;
    i += step.bytes;
  }
  return codes;
}

std::string encode_utf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const auto code : text) append(bytes, code);
  return bytes;
}

}  // namespace contextpool::data
