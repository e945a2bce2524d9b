#include "eval/tokenize.h"

#include <c10/util/Exception.h>

#include "eval/unicode.h"

namespace contextpool::eval {
namespace {

bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool is_point(char32_t c) { return c == U'.' || c == U','; }

// The ASCII symbols that 13a always sets apart: all but the apostrophe, the comma, the dash and the period.
bool is_apart(char32_t c) {
  return (c >= U' ' && c <= U'&') || (c >= U'(' && c <= U'+') || c == U'/' || (c >= U':' && c <= U'@') ||
         (c >= U'[' && c <= U'`') || (c >= U'{' && c <= U'~');
}

void replace_all(std::u32string& text, std::u32string_view from, std::u32string_view to) {
  std::u32string result;
  std::size_t begin = 0;
  for (auto at = text.find(from); at != std::u32string::npos; at = text.find(from, begin)) {
    result.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  if (begin > 0) text = result.append(text, begin);
}

// A space on each side of every character that is `apart`.
template <typename Apart>
std::u32string set_apart(std::u32string_view text, Apart apart) {
  std::u32string result;
  result.reserve(text.size() * 2);
  for (const auto c : text) {
    if (apart(c)) {
      result += {U' ', c, U' '};
    } else {
      result += c;
    }
  }
  return result;
}

// Pairs of neighbours, from left to right, no character in two of them: first and second become the characters that
// `write` appends.
template <typename Pair, typename Write>
std::u32string rewrite_pairs(std::u32string_view text, Pair pair, Write write) {
  std::u32string result;
  result.reserve(text.size() * 2);
  for (std::size_t i = 0; i < text.size();) {
    if (i + 1 < text.size() && pair(text[i], text[i + 1])) {
      write(result, text[i], text[i + 1]);
      i += 2;
    } else {
      result += text[i++];
    }
  }
  return result;
}

void second_apart(std::u32string& result, char32_t a, char32_t b) { result += {a, U' ', b, U' '}; }
void first_apart(std::u32string& result, char32_t a, char32_t b) { result += {U' ', a, U' ', b}; }

std::u32string tokenize_13a(std::u32string_view line) {
  std::u32string text(line);
  replace_all(text, U"<skipped>", U"");
  replace_all(text, U"-\n", U"");
  replace_all(text, U"\n", U" ");
  // In this order, so that &amp;lt; is read twice, as mteval does.
  replace_all(text, U"&quot;", U"\"");
  replace_all(text, U"&amp;", U"&");
  replace_all(text, U"&lt;", U"<");
  replace_all(text, U"&gt;", U">");
  text = U' ' + text + U' ';
  text = set_apart(text, is_apart);
  text = rewrite_pairs(
      text, [](char32_t a, char32_t b) { return !is_digit(a) && is_point(b); }, second_apart);
  text = rewrite_pairs(
      text, [](char32_t a, char32_t b) { return is_point(a) && !is_digit(b); }, first_apart);
  return rewrite_pairs(
      text, [](char32_t a, char32_t b) { return is_digit(a) && b == U'-'; }, second_apart);
}

std::u32string tokenize_intl(std::u32string_view line) {
  using namespace unicode;
  auto text = rewrite_pairs(
      line, [](char32_t a, char32_t b) { return !is_number(a) && is_punctuation(b); }, second_apart);
  text = rewrite_pairs(
      text, [](char32_t a, char32_t b) { return is_punctuation(a) && !is_number(b); }, first_apart);
  return set_apart(text, is_symbol);
}

}  // namespace

std::vector<std::string> tokenizers() { return {"13a", "intl", "char", "none"}; }

std::u32string tokenize(const std::string& tokenizer, std::u32string_view line) {
  if (tokenizer == "13a") return tokenize_13a(line);
  if (tokenizer == "intl") return tokenize_intl(line);
  if (tokenizer == "char") return set_apart(line, [](char32_t) { return true; });
  TORCH_CHECK_VALUE(tokenizer == "none", "contextpool: tokenizer \"", tokenizer,
                    "\" is unknown; expected 13a, intl, char or none");
  return std::u32string(line);
}

}  // namespace contextpool::eval
