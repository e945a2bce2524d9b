// The format: blocks of 512 bytes; a header block, then the file's bytes filled up to whole blocks; at the end two
// blocks of zeros. A header of kind x (pax) or L (GNU) holds attributes of the next one.
#include "contextpool/data/images/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "io/text.h"

namespace contextpool::data {
namespace {

constexpr std::uint64_t kBlock = 512, kLongestAttributes = 1 << 20;
constexpr std::uint64_t kMostEntries = 100'000'000;

using Block = std::array<char, kBlock>;

std::string_view field(const Block& block, std::size_t at, std::size_t size) {
  const std::string_view all(block.data() + at, size);
  return all.substr(0, all.find('\0'));
}

// Octal digits between spaces; or, with the first bit set, binary from the right.
std::optional<std::uint64_t> number(const Block& block, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  if ((static_cast<unsigned char>(block[at]) & 0x80) != 0) {
    for (std::size_t k = 0; k < size; ++k) {
      const auto byte = static_cast<unsigned char>(block[at + k]) & (k == 0 ? 0x7f : 0xff);
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<std::uint64_t>(byte);
    }
    return value;
  }
  bool ended = false;
  for (const char c : field(block, at, size)) {
    if (c == ' ') {
      ended = value != 0;
    } else if (c < '0' || c > '7' || ended || value >> 60 != 0) {
      return std::nullopt;
    } else {
      value = value << 3 | static_cast<std::uint64_t>(c - '0');
    }
  }
  return value;
}

bool checksum_is_good(const Block& block) {
  constexpr std::size_t kAt = 148, kSize = 8;
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < kBlock; ++k)
    sum += k >= kAt && k < kAt + kSize ? ' ' : static_cast<unsigned char>(block[k]);
  return number(block, kAt, kSize) == sum;
}

// What the headers before an entry say about it.
struct Attributes {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;
};

// Lines "LENGTH KEY=VALUE\n", the length counting all of the line.
bool read_pax(std::string_view text, Attributes& attributes) {
  while (!text.empty() && text[0] != '\0') {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || length > text.size() || length < digits + 2 || *end != ' ' || text[length - 1] != '\n')
      return false;
    const auto line = text.substr(digits + 1, length - digits - 2);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) return false;
    const auto key = line.substr(0, equals), value = line.substr(equals + 1);
    if (key == "path") attributes.name = std::string(value);
    if (key == "size") {
      std::uint64_t size = 0;
      const auto [last, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
      if (bad != std::errc() || last != value.data() + value.size()) return false;
      attributes.size = size;
    }
    text.remove_prefix(length);
  }
  return true;
}

class Reader {
 public:
  Reader(const TarRead& read, std::uint64_t size, const std::string& name) : read_(read), size_(size), name_(name) {}

  std::vector<TarEntry> entries() {
    std::vector<TarEntry> entries;
    Attributes attributes;
    Block block{};
    while (next_block(block)) {
      if (!checksum_is_good(block)) fail("no header of a tar entry", at_ - kBlock);
      const auto stated = number(block, 124, 12);
      const char kind = block[156];
      const bool about_next = kind == 'x' || kind == 'L';
      const auto size = !about_next && attributes.size ? attributes.size : stated;
      // Links and folders have no bytes, whatever the size says.
      const auto length = size && kind >= '1' && kind <= '6' ? 0 : size.value_or(size_ + 1);
      if (length > size_ - at_) fail("an entry that ends behind the file", at_ - kBlock);
      if (about_next || kind == 'K' || kind == 'g') {
        take_attributes(kind, length, attributes);
      } else {
        if (kind == '0' || kind == '\0' || kind == '7')
          entries.push_back({attributes.name.value_or(name_in(block)), at_, length});
        attributes = {};
      }
      if (entries.size() > kMostEntries) fail("more entries than we keep", at_);
      skip(length);
    }
    return entries;
  }

 private:
  [[noreturn]] void fail(std::string_view what, std::uint64_t at) const {
    throw io::Error(io::text(name_, ": not a whole tar file: ", what, " at byte ", at));
  }

  // False at the end: a block of zeros, or the end of the file after some entry.
  bool next_block(Block& block) {
    if (at_ == size_ && at_ > 0) return false;
    if (size_ - at_ < kBlock) fail("a part of a block", at_);
    read_(at_, kBlock, block.data());
    at_ += kBlock;
    return std::any_of(block.begin(), block.end(), [](char c) { return c != 0; });
  }

  // Over the bytes and what fills their last block; the very last may be missing.
  void skip(std::uint64_t length) {
    const auto blocks = (length + kBlock - 1) / kBlock * kBlock;
    at_ += std::min(blocks, size_ - at_);
  }

  void take_attributes(char kind, std::uint64_t length, Attributes& attributes) const {
    if (kind != 'x' && kind != 'L') return;  // of a link, or of all entries: nothing that we need
    if (length > kLongestAttributes) fail("attributes longer than a megabyte", at_ - kBlock);
    std::string text(length, '\0');
    read_(at_, length, text.data());
    if (kind == 'L') {
      attributes.name = text.substr(0, text.find('\0'));
    } else if (!read_pax(text, attributes)) {
      fail("attributes that are not pax's", at_ - kBlock);
    }
  }

  static std::string name_in(const Block& block) {
    const std::string name(field(block, 0, 100));
    const bool posix = std::string_view(block.data() + 257, 6) == std::string_view("ustar\0", 6);
    const auto prefix = posix ? field(block, 345, 155) : std::string_view();
    return prefix.empty() ? name : std::string(prefix) + "/" + name;
  }

  const TarRead& read_;
  std::uint64_t size_;
  const std::string& name_;
  std::uint64_t at_ = 0;
};

}  // namespace

std::vector<TarEntry> read_tar(const TarRead& read, std::uint64_t size, const std::string& name) {
  return Reader(read, size, name).entries();
}

}  // namespace contextpool::data
