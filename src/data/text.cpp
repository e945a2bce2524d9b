#include "contextpool/data/text.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "base/words.h"
#include "contextpool/data/noise.h"
#include "contextpool/io/crc32c.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kBytes = 256, kLetters = 27;
constexpr std::int64_t kBenchmarkSize = 100'000'000;  // of enwik8 and text8 alike
constexpr std::int64_t kTwentieth = 20;               // dev and test are a twentieth of the file each

struct Layout {
  const char* name;
  std::int64_t vocabulary;
  std::int64_t size;  // 0: any
};
constexpr std::array<Layout, 4> kLayouts = {{{"bytes", kBytes, 0},
                                             {"letters", kLetters, 0},
                                             {"enwik8", kBytes, kBenchmarkSize},
                                             {"text8", kLetters, kBenchmarkSize}}};

const Layout& layout_named(const std::string& name) {
  check_word("contextpool", "layout", name, layouts());
  return *std::find_if(kLayouts.begin(), kLayouts.end(), [&](const Layout& l) { return name == l.name; });
}

// As long as the layout asks, or enough for rows of any length that fits into memory.
std::int64_t noise_size(const std::string& layout) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 22;
  const auto asked = layout_named(layout).size;
  return asked > 0 ? asked : kEnough;
}

// A file of that name is what its name says.
bool is_noise(const std::string& path) { return path == kNoise && !std::filesystem::exists(path); }

bool is_letter(char c) { return c == ' ' || (c >= 'a' && c <= 'z'); }

std::int64_t symbol(char c, std::int64_t vocabulary) {
  if (vocabulary == kBytes) return static_cast<unsigned char>(c);
  return c == ' ' ? 0 : c - 'a' + 1;
}

void check_letters(std::string_view text, const std::string& what) {
  const auto bad = std::find_if_not(text.begin(), text.end(), is_letter);
  TORCH_CHECK_VALUE(bad == text.end(), what, ": byte ", static_cast<int>(static_cast<unsigned char>(*bad)),
                    " at offset ", bad - text.begin(), " is not a letter a-z or a space (27 symbols)");
}

}  // namespace

std::vector<std::string> splits() { return {"train", "dev", "test", "all"}; }

Split split_named(const std::string& name) {
  const auto known = splits();
  check_word("contextpool", "split", name, known);
  return static_cast<Split>(std::find(known.begin(), known.end(), name) - known.begin());
}

std::vector<std::string> layouts() {
  std::vector<std::string> names;
  names.reserve(std::size(kLayouts));
  for (const auto& layout : kLayouts) names.emplace_back(layout.name);
  return names;
}

std::int64_t vocabulary_of(const std::string& layout) { return layout_named(layout).vocabulary; }

std::string layout_of(std::int64_t vocabulary) { return Alphabet(vocabulary).size() == kLetters ? "letters" : "bytes"; }

Alphabet::Alphabet(std::int64_t vocabulary) : size_(vocabulary) {
  TORCH_CHECK_VALUE(size_ == kBytes || size_ == kLetters, "contextpool: a vocabulary of ", size_,
                    " symbols is not an alphabet of text; expected ", kBytes, " (bytes) or ", kLetters, " (letters)");
}

at::Tensor Alphabet::encode(std::string_view text, const std::string& what) const {
  if (size_ == kLetters) check_letters(text, what);
  auto symbols = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
  std::transform(text.begin(), text.end(), symbols.mutable_data_ptr<std::int64_t>(),
                 [this](char c) { return symbol(c, size_); });
  return symbols;
}

std::string Alphabet::decode(const at::Tensor& symbols) const {
  const auto flat = symbols.to(at::kCPU, at::kLong).contiguous();
  std::string text;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const auto s = flat.const_data_ptr<std::int64_t>()[i];
    TORCH_CHECK_VALUE(s >= 0 && s < size_, "contextpool: symbol ", s, " is outside the alphabet of ", size_);
    text += static_cast<char>(size_ == kBytes ? s : s == 0 ? ' ' : 'a' + s - 1);
  }
  return text;
}

Text::Text(const std::string& path, const std::string& layout)
    : path_(path),
      alphabet_(layout_named(layout).vocabulary),
      bytes_(
          std::make_shared<const std::string>(is_noise(path) ? noise_text(noise_size(layout)) : io::read_file(path))),
      checksum_(io::crc32c(std::as_bytes(std::span(*bytes_)))) {
  const auto size = static_cast<std::int64_t>(bytes_->size());
  TORCH_CHECK_VALUE(size > 0, path, ": is empty; a text file is expected");
  const auto expected = layout_named(layout).size;
  TORCH_CHECK_VALUE(expected == 0 || size == expected, path, ": ", layout, " has ", expected, " bytes, this file ",
                    size, "; for another text use the layout ",
                    alphabet_.size() == kLetters ? "\"letters\"" : "\"bytes\"");
  if (alphabet_.size() == kLetters) check_letters(*bytes_, path);
}

std::int64_t Text::start(Split split) const {
  const auto size = static_cast<std::int64_t>(bytes_->size());
  const auto part = size / kTwentieth;
  if (split == Split::train || split == Split::all) return 0;
  return split == Split::dev ? size - 2 * part : size - part;
}

std::int64_t Text::size(Split split) const {
  const auto size = static_cast<std::int64_t>(bytes_->size()), part = size / kTwentieth;
  if (split == Split::all) return size;
  return split == Split::train ? start(Split::dev) : part;
}

at::Tensor Text::symbols(Split split, std::int64_t begin, std::int64_t count) const {
  TORCH_CHECK_VALUE(begin >= 0 && count >= 0 && begin <= size(split) && count <= size(split) - begin, path_, ": ",
                    count, " symbols from ", begin, " on were asked for, of the split \"",
                    splits()[static_cast<int>(split)], "\", which has ", size(split));
  const auto bytes =
      std::string_view(*bytes_).substr(static_cast<std::size_t>(start(split) + begin), static_cast<std::size_t>(count));
  return alphabet_.encode(bytes, path_);
}

}  // namespace contextpool::data
